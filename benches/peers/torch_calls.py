"""PyTorch's RPC over TensorPipe: forks the worker that is called, and obeys the commands of `calls load` on stdin."""

import ctypes
import json
import multiprocessing
import os
import signal
import statistics
import sys
import time

import torch
import torch.distributed.rpc as rpc

ECHO = b"\7" * 64


def echo(payload):
    return payload


def length(payload):
    return payload.numel()


def join(name, rank):
    rpc.init_rpc(name, rank=rank, world_size=2)


PR_SET_PDEATHSIG = 1


def serve():
    # Whoever calls may be killed, and nobody is to go on looking for it on the core that is measured.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    join("b", 1)
    rpc.shutdown()


def timed(calls, call):
    for _ in range(calls // 20 + 1):
        call()
    samples = []
    for _ in range(calls):
        began = time.perf_counter()
        call()
        samples.append((time.perf_counter() - began) * 1e6)
    return samples


def many(calls, depth):
    began = time.perf_counter()
    flying = [rpc.rpc_async("b", echo, args=(ECHO,)) for _ in range(depth)]
    for at in range(calls - depth):
        flying[at % depth].wait()
        flying[at % depth] = rpc.rpc_async("b", echo, args=(ECHO,))
    for future in flying:
        future.wait()
    return [(time.perf_counter() - began) * 1e6 / calls]


def measure(work, calls, *rest):
    if work == "echo":
        return timed(calls, lambda: rpc.rpc_sync("b", echo, args=(ECHO,)))
    if work == "echo-many":
        return many(calls, rest[0])
    payload = torch.full((rest[0],), 7, dtype=torch.uint8)
    return timed(calls, lambda: rpc.rpc_sync("b", length, args=(payload,)))


def main():
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[1])
    torch.set_num_threads(1)
    child = multiprocessing.get_context("fork").Process(target=serve, daemon=True)
    child.start()
    join("a", 0)
    print("ready", flush=True)
    for line in sys.stdin:
        work, _, *numbers = line.split()
        samples = sorted(measure(work, *map(int, numbers)))
        print(json.dumps({"median_us": statistics.median(samples), "p99_us": samples[(len(samples) - 1) * 99 // 100],
                          "mean_us": statistics.fmean(samples)}), flush=True)
    rpc.shutdown()


if __name__ == "__main__":
    main()
