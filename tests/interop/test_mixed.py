"""A C++ rank, built on this library, and Python ranks with PyTorch's client, in one job on one store: a server or a file."""

import os
import subprocess
import tempfile

import torch.distributed as dist
from harness import Processes, StoreTest, connect, milliseconds, start_server

WORLD_SIZE = 4
CPP_RANK = 0
PROGRAM_SECONDS = 40


def python_rank(store, rank):
    store.set(f"py/hello/{rank}", f"hello from Python rank {rank}")
    greeting = store.get("cpp/hello").decode()
    store.add("meet/native_arrived", 1)
    store.barrier("meet/native", WORLD_SIZE)
    native_arrived = store.add("meet/native_arrived", 0)
    store.add("meet/legacy_arrived", 1)
    # PrefixStore.barrier is PyTorch's own meeting by ADD, SET and WAIT, with the key names the C++ rank uses.
    dist.PrefixStore("meet", store).barrier("legacy", WORLD_SIZE, milliseconds(30000))
    return greeting, native_arrived, store.add("meet/legacy_arrived", 0)


def python_rank_by_server(server, rank):
    return python_rank(connect(server, timeout_ms=30000), rank)


def python_rank_by_url(url, rank):
    store, _, _ = next(dist.rendezvous(url, rank, WORLD_SIZE))
    store.set_timeout(milliseconds(30000))
    return python_rank(store, rank)


class Mixed(StoreTest):
    def setUp(self):
        self.server = None

    def meet(self, python_rank, *place):
        program = os.environ.get("RDZV_CPP_RANK")
        self.assertTrue(program, "RDZV_CPP_RANK must name the program built from cpp_rank.cpp")
        ranks = [rank for rank in range(WORLD_SIZE) if rank != CPP_RANK]
        pythons = Processes([lambda rank=rank: python_rank(rank) for rank in ranks])
        cpp = subprocess.run(
            [program, *place, str(CPP_RANK), str(WORLD_SIZE)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, timeout=PROGRAM_SECONDS,
        )
        self.assertEqual(cpp.returncode, 0, cpp.stdout)
        expected = [f"py/hello/{rank} = hello from Python rank {rank}" for rank in ranks]
        expected += [f"native barrier: {WORLD_SIZE} arrived", f"legacy barrier: {WORLD_SIZE} arrived"]
        self.assertEqual(cpp.stdout.splitlines(), expected)
        self.assertEqual(pythons.results(), [(f"hello from C++ rank {CPP_RANK}", WORLD_SIZE, WORLD_SIZE)] * len(ranks))

    def meet_at_a_server(self, kind):
        self.server = start_server(kind)
        self.meet(lambda rank: python_rank_by_server(self.server, rank), "127.0.0.1", str(self.server.port))
        store = connect(self.server)
        self.assertEqual(store.get("meet/native"), str(WORLD_SIZE).encode())
        self.assertEqual(store.get("meet/legacy/num_members"), str(WORLD_SIZE).encode())
        self.assertEqual(store.get("meet/legacy/last_member"), b"1")

    def test_on_our_server(self):
        self.meet_at_a_server(None)

    def test_on_the_server_of_pytorch(self):
        self.meet_at_a_server("torch")

    def test_in_a_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "store")
            self.meet(lambda rank: python_rank_by_url(f"file://{path}", rank), "file", path)
            self.assertEqual(os.listdir(folder), [], "the last of the four has removed it")
