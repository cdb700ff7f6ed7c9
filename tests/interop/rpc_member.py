"""A worker of PyTorch's RPC: rpc_member.py PORT NAME RANK WORLD_SIZE, where a world size of 0 means a dynamic group.

It says "joined", and then answers each line on its stdin with one: "names", "add WORKER A B", "shutdown".
"""

import os
import sys

os.environ["MASTER_ADDR"] = "127.0.0.1"
os.environ["MASTER_PORT"] = sys.argv[1]
# The store is there already; nobody hosts another one.
os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"

import torch.distributed.rpc as rpc  # noqa: E402


def add(one, other):
    return one + other


def main():
    name, rank, world_size = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    options = rpc.TensorPipeRpcBackendOptions(rpc_timeout=30, init_method="env://")
    rpc.init_rpc(name, rank=rank, world_size=world_size or None, rpc_backend_options=options)
    print("joined", flush=True)
    for line in sys.stdin:
        match line.split():
            case ["names"]:
                infos = rpc.api._get_current_rpc_agent().get_worker_infos()
                print(" ".join(sorted(info.name for info in infos)), flush=True)
            case ["add", worker, one, other]:
                print(rpc.rpc_sync(worker, add, args=(int(one), int(other))), flush=True)
            case ["shutdown"]:
                rpc.shutdown()
                print("over", flush=True)
                return


if __name__ == "__main__":
    main()
