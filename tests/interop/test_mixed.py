"""A C++ rank, built on this library, and Python ranks with PyTorch's client, in one job on one store."""

import os
import subprocess

import torch.distributed as dist
from harness import Processes, StoreTest, connect, milliseconds, start_server

WORLD_SIZE = 4
CPP_RANK = 0
PROGRAM_SECONDS = 40


def python_rank(server, rank):
    store = connect(server, timeout_ms=30000)
    store.set(f"py/hello/{rank}", f"hello from Python rank {rank}")
    greeting = store.get("cpp/hello").decode()
    store.add("meet/native_arrived", 1)
    store.barrier("meet/native", WORLD_SIZE)
    native_arrived = store.add("meet/native_arrived", 0)
    store.add("meet/legacy_arrived", 1)
    # PrefixStore.barrier is PyTorch's own meeting by ADD, SET and WAIT, with the key names the C++ rank uses.
    dist.PrefixStore("meet", store).barrier("legacy", WORLD_SIZE, milliseconds(30000))
    return greeting, native_arrived, store.add("meet/legacy_arrived", 0)


class Mixed(StoreTest):
    def setUp(self):
        self.server = None

    def meet(self, kind):
        program = os.environ.get("RDZV_CPP_RANK")
        self.assertTrue(program, "RDZV_CPP_RANK must name the program built from cpp_rank.cpp")
        self.server = start_server(kind)
        ranks = [rank for rank in range(WORLD_SIZE) if rank != CPP_RANK]
        pythons = Processes([lambda rank=rank: python_rank(self.server, rank) for rank in ranks])
        cpp = subprocess.run(
            [program, "127.0.0.1", str(self.server.port), str(CPP_RANK), str(WORLD_SIZE)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, timeout=PROGRAM_SECONDS,
        )
        self.assertEqual(cpp.returncode, 0, cpp.stdout)
        expected = [f"py/hello/{rank} = hello from Python rank {rank}" for rank in ranks]
        expected += [f"native barrier: {WORLD_SIZE} arrived", f"legacy barrier: {WORLD_SIZE} arrived"]
        self.assertEqual(cpp.stdout.splitlines(), expected)
        self.assertEqual(pythons.results(), [(f"hello from C++ rank {CPP_RANK}", WORLD_SIZE, WORLD_SIZE)] * len(ranks))
        store = connect(self.server)
        self.assertEqual(store.get("meet/native"), str(WORLD_SIZE).encode())
        self.assertEqual(store.get("meet/legacy/num_members"), str(WORLD_SIZE).encode())
        self.assertEqual(store.get("meet/legacy/last_member"), b"1")

    def test_on_our_server(self):
        self.meet(None)

    def test_on_the_server_of_pytorch(self):
        self.meet("torch")
