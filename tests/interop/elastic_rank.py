"""One worker of an elastic job, as a user of torchrun would write it: `elastic_rank.py FOLDER STEPS [CRASH_STEP]`.

It trains by DistributedDataParallel over gloo, joined by env://, and keeps a checkpoint in FOLDER, from which a later
start goes on. The gradient is that of all samples however many ranks share them, so the weights after a step do not
depend on who took it. With 0 for STEPS it trains until FOLDER has a file `stop`. With CRASH_STEP, rank 1 of the first
start raises there. Each line on stdout is a JSON object.
"""

import json
import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

SAMPLES = 24
LEARNING_RATE = 0.1
TIMEOUT = timedelta(seconds=60)
STARTED = {name: os.environ.get(name) for name in (
    "GROUP_RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "RANK", "ROLE_RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT",
)}


def data():
    inputs = torch.linspace(-1, 1, SAMPLES * 3, dtype=torch.float64).reshape(SAMPLES, 3).sin()
    return inputs, inputs @ torch.tensor([[1.0], [-2.0], [0.5]], dtype=torch.float64) + 0.25


def new_model():
    model = torch.nn.Linear(3, 1, dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.1, 0.2, -0.3]]))
        model.bias.fill_(0.05)
    return model


def weights_of(model):
    return model.weight.flatten().tolist() + model.bias.tolist()


def take_step(model, optimizer, mine):
    inputs, targets = data()
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(inputs[mine]), targets[mine]).backward()
    optimizer.step()


def weights_after(steps):
    """What one process that takes all samples comes to."""
    model = new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    for _ in range(steps):
        take_step(model, optimizer, slice(None))
    return weights_of(model)


def say(what, **more):
    # One write, so that lines of several workers do not mix.
    os.write(1, (json.dumps({"what": what, "pid": os.getpid(), **STARTED, **more}) + "\n").encode())


def save(path, **state):
    new = path.with_suffix(".new")
    torch.save(state, new)
    new.replace(path)


@record
def main():
    folder, steps = Path(sys.argv[1]), int(sys.argv[2])
    crash_step = int(sys.argv[3]) if len(sys.argv) > 3 else None
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="env://", timeout=TIMEOUT)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    bare, step, checkpoint = new_model(), 0, folder / "checkpoint"
    if checkpoint.exists():
        state = torch.load(checkpoint)
        bare.load_state_dict(state["model"])
        step = state["step"]
    dist.barrier()
    model = torch.nn.parallel.DistributedDataParallel(bare)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    share, begun = SAMPLES // world_size, step
    say("training", step=step)
    while True:
        # Rank 0 decides for all.
        over = torch.tensor([step >= steps if steps else (folder / "stop").exists()], dtype=torch.int32)
        dist.broadcast(over, 0)
        if over.item():
            break
        # Rank 0 has kept the step before it sent its word.
        if step == crash_step and rank == 1 and STARTED["TORCHELASTIC_RESTART_COUNT"] == "0":
            raise ValueError(f"rank 1 cannot go on at step {step}")
        take_step(model, optimizer, slice(rank * share, (rank + 1) * share))
        step += 1
        if rank == 0:
            save(checkpoint, model=bare.state_dict(), step=step)
        if step == begun + 1:
            say("under way", step=step)
    say("done", step=step, weights=weights_of(bare))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    # Without the interpreter's way out: on a busy machine a thread of PyTorch's aborts it there now and then.
    sys.stdout.flush()
    os._exit(0)
