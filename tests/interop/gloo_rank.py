"""One rank of a gloo job: `gloo_rank.py store|env PORT RANK WORLD_SIZE`.

With `store` the process group gets a TCPStore client that this program makes; with `env` PyTorch makes it from
MASTER_ADDR and MASTER_PORT, as under torchrun. The last line on stdout is a JSON object of what the rank computed.
"""

import json
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

SAMPLES_PER_RANK = 8
LEARNING_RATE = 0.1
TIMEOUT = timedelta(seconds=60)


def data(world_size):
    """Inputs and targets of all ranks together."""
    count = world_size * SAMPLES_PER_RANK
    inputs = torch.linspace(-1, 1, count * 3, dtype=torch.float64).reshape(count, 3).sin()
    return inputs, inputs @ torch.tensor([[1.0], [-2.0], [0.5]], dtype=torch.float64) + 0.25


def first_weights():
    return torch.tensor([[0.1, 0.2, -0.3]], dtype=torch.float64), torch.tensor([0.05], dtype=torch.float64)


def weights_after_one_step(world_size):
    """What one process computes on all samples, with the gradient of the mean squared error written out."""
    inputs, targets = data(world_size)
    weight, bias = first_weights()
    slope = 2 * (inputs @ weight.T + bias - targets) / len(inputs)
    weight, bias = weight - LEARNING_RATE * (slope.T @ inputs), bias - LEARNING_RATE * slope.sum(0)
    return weight.flatten().tolist() + bias.tolist()


def ddp_step(rank, world_size):
    model = torch.nn.Linear(3, 1, dtype=torch.float64)
    if rank == 0:
        # The other ranks start from random weights: DDP has to broadcast these.
        with torch.no_grad():
            model.weight.copy_(first_weights()[0])
            model.bias.copy_(first_weights()[1])
    model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    inputs, targets = data(world_size)
    mine = slice(rank * SAMPLES_PER_RANK, (rank + 1) * SAMPLES_PER_RANK)
    torch.nn.functional.mse_loss(model(inputs[mine]), targets[mine]).backward()
    optimizer.step()
    return model.module.weight.flatten().tolist() + model.module.bias.tolist()


def group_sums(rank, world_size):
    """A group of the lower and one of the upper half; the sum of the ranks in this rank's own."""
    halves = [list(range(world_size // 2)), list(range(world_size // 2, world_size))]
    groups = [dist.new_group(half, timeout=TIMEOUT, backend="gloo") for half in halves]
    mine = next(group for group, half in zip(groups, halves) if rank in half)
    value = torch.tensor([rank])
    dist.all_reduce(value, group=mine)
    dist.barrier(group=mine)
    return value.item()


def main():
    mode, port, rank, world_size = sys.argv[1], *map(int, sys.argv[2:5])
    torch.set_num_threads(1)
    if mode == "store":
        store = dist.TCPStore("127.0.0.1", port, world_size, is_master=False, timeout=TIMEOUT)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=TIMEOUT)
    else:
        dist.init_process_group("gloo", init_method="env://", timeout=TIMEOUT)
    results = {"rank": dist.get_rank(), "world_size": dist.get_world_size()}
    total = torch.arange(4, dtype=torch.float64) + rank
    dist.all_reduce(total)
    results["all_reduce"] = total.tolist()
    dist.barrier()
    dist.monitored_barrier(timeout=TIMEOUT)
    results["new_group"] = group_sums(rank, world_size)
    gathered = [None] * world_size
    dist.all_gather_object(gathered, f"rank {rank}")
    results["gathered"] = gathered
    results["weights"] = ddp_step(rank, world_size)
    dist.monitored_barrier(timeout=TIMEOUT)
    dist.destroy_process_group()
    print(json.dumps(results), flush=True)


if __name__ == "__main__":
    main()
