"""One worker of a round: `round_rank.py PORT PREFIX RANK WORLD_SIZE`.

It meets the others of its round in a gloo group whose store is PyTorch's client under the round's prefix, as the agent
of a node gives it to its workers, and says what they summed up. At a line on stdin it makes another group, which takes
writes to the store, and says how that ended.
"""

import sys
from datetime import timedelta

import torch
import torch.distributed as dist

TIMEOUT = timedelta(seconds=30)


def say(text):
    print(text, flush=True)


def main():
    port, prefix, rank, world_size = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    client = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=TIMEOUT)
    store = dist.PrefixStore(prefix, client)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=TIMEOUT)
    total = torch.tensor([rank + 1])
    dist.all_reduce(total)
    say(f"sum {total.item()}")
    sys.stdin.readline()
    try:
        group = dist.new_group(list(range(world_size)), timeout=TIMEOUT, backend="gloo")
        dist.barrier(group=group)
        say("another group")
    except dist.DistNetworkError as error:
        say(f"lost {str(error).splitlines()[0]}")
    sys.stdin.readline()


if __name__ == "__main__":
    main()
