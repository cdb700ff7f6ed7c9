"""Workers of PyTorch's RPC in a dynamic group, each a process of its own: torch_group.py HOST PORT WORKERS LAST.

Imports PyTorch once and forks. The workers join one after the other, WORKERS of them; then LAST more join, each when the
one before has left. Of each of these it says "joined" with how long init_rpc took, in nanoseconds.
"""

import ctypes
import os
import signal
import sys
import time

HOST, PORT = sys.argv[1], sys.argv[2]
os.environ.update(MASTER_ADDR=HOST, MASTER_PORT=PORT, TORCHELASTIC_USE_AGENT_STORE="True", OMP_NUM_THREADS="1")

import torch.distributed.rpc as rpc  # noqa: E402

PR_SET_PDEATHSIG = 1


def join(rank: int) -> int:
    options = rpc.TensorPipeRpcBackendOptions(rpc_timeout=60, init_method="env://")
    began = time.perf_counter_ns()
    rpc.init_rpc(f"worker{rank}", rank=rank, rpc_backend_options=options)
    return time.perf_counter_ns() - began


def start(rank: int, leaves: bool) -> int:
    """How long the worker took to join; one that leaves has gone when this returns."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.close(reader)
        os.write(writer, str(join(rank)).encode())
        os.close(writer)
        if leaves:
            rpc.shutdown()
            os._exit(0)
        signal.pause()
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        took = pipe.read()
    if leaves:
        os.waitpid(pid, 0)
    return int(took)


def main() -> None:
    workers, last = int(sys.argv[3]), int(sys.argv[4])
    for rank in range(workers):
        start(rank, leaves=False)
    for number in range(last):
        took = start(workers + number, leaves=True)
        os.write(1, f"joined {took}\n".encode())
    signal.pause()


if __name__ == "__main__":
    main()
