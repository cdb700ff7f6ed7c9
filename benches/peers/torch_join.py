"""Nodes of PyTorch's c10d rendezvous, each a process of its own: torch_join.py HOST PORT RUN_ID NODES.

Imports PyTorch once and forks. Each node says "ready", waits until stdin ends, connects to the store, goes through
next_rendezvous() of a run of so many nodes, and says "done" with the time, in nanoseconds since 1970. Then it stays
until it is killed. A node first waits up to 0.3 s at random, as PyTorch has it.
"""

import ctypes
import os
import signal
import sys
import time
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler


PR_SET_PDEATHSIG = 1


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def take_part(host: str, port: int, run_id: str, nodes: int) -> None:
    say("ready")
    while os.read(0, 1):
        pass
    store = dist.TCPStore(host, port, None, False, timeout=timedelta(seconds=60), wait_for_workers=False)
    parameters = RendezvousParameters("c10d", f"{host}:{port}", run_id, nodes, nodes, local_addr=host)
    create_handler(store, C10dRendezvousBackend(store, run_id), parameters).next_rendezvous()
    say(f"done {time.time_ns()}")
    signal.pause()


def main() -> None:
    host, port, run_id, nodes = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    for _ in range(nodes):
        if os.fork() == 0:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            take_part(host, port, run_id, nodes)
    os.close(0)
    signal.pause()


if __name__ == "__main__":
    main()
