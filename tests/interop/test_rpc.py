"""PyTorch's RPC (TensorPipe) over the server under test, and an observer of ours that reads who is in its groups."""

import os
import subprocess
import sys
import threading
import unittest

from harness import HERE, RDZV, START_SECONDS, STOP_SECONDS, StoreTest, deadline, read_line

MEMBER_SECONDS = 60.0


class Member:
    """A process that is a worker of PyTorch's, and does what it is told by lines on its stdin."""

    def __init__(self, port, name, rank, world_size):
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "rpc_member.py"), str(port), name, str(rank), str(world_size)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def told(self):
        return read_line(self.process.stdout.fileno(), MEMBER_SECONDS)

    def ask(self, *words):
        self.process.stdin.write((" ".join(words) + "\n").encode())
        self.process.stdin.flush()
        return self.told()

    def close(self):
        self.process.kill()
        self.process.wait(STOP_SECONDS)
        self.process.stdin.close()
        self.process.stdout.close()


class Observer:
    """`rdzv group` as a process."""

    def __init__(self, server):
        self.process = subprocess.Popen(
            [RDZV, "group", "--endpoint", f"{server.host}:{server.port}", "--pause-ms", "50"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        )

    def next(self):
        return read_line(self.process.stdout.fileno(), START_SECONDS)

    def close(self):
        self.process.kill()
        self.process.wait(STOP_SECONDS)
        self.process.stdout.close()


def at_once(functions):
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(MEMBER_SECONDS)


class Rpc(StoreTest):
    def member(self, name, rank, world_size=0):
        member = Member(self.server.port, name, rank, world_size)
        self.addCleanup(member.close)
        return member

    def observer(self):
        observer = Observer(self.server)
        self.addCleanup(observer.close)
        return observer

    def came(self, observer, name, rank):
        words = observer.next().split(" ")
        self.assertEqual(words[:3], ["came", name, str(rank)])

    @deadline(180)
    def test_a_static_group_calls_and_ends_and_is_seen(self):
        observer = self.observer()
        members = [self.member(f"worker{rank}", rank, 3) for rank in range(3)]
        self.assertEqual([member.told() for member in members], ["joined"] * 3)
        self.assertEqual(observer.next(), "static")
        seen = sorted(observer.next().split(" ")[1:3] for _ in range(3))
        self.assertEqual(seen, [["worker0", "0"], ["worker1", "1"], ["worker2", "2"]])
        for member in members:
            self.assertEqual(member.ask("names"), "worker0 worker1 worker2")
            self.assertEqual(member.ask("add", "worker1", "3", "4"), "7")
        ends = []
        at_once([lambda member=member: ends.append(member.ask("shutdown")) for member in members])
        self.assertEqual(ends, ["over"] * 3)

    @deadline(240)
    def test_a_dynamic_group_whose_workers_come_and_go_is_seen(self):
        observer = self.observer()
        first = self.member("first", 0)
        self.assertEqual(first.told(), "joined")
        self.assertEqual(observer.next(), "dynamic")
        self.came(observer, "first", 0)
        second = self.member("second", 1)
        self.assertEqual(second.told(), "joined")
        self.came(observer, "second", 1)
        self.assertEqual(first.ask("add", "second", "1", "2"), "3")
        self.assertEqual(second.ask("add", "first", "2", "2"), "4")
        self.assertEqual(first.ask("names"), "first second")
        self.assertEqual(second.ask("shutdown"), "over")
        self.assertEqual(observer.next(), "went second 1")
        self.assertEqual(first.ask("names"), "first")
        third = self.member("third", 2)
        self.assertEqual(third.told(), "joined")
        self.came(observer, "third", 2)
        self.assertEqual(third.ask("add", "first", "20", "2"), "22")
        self.assertEqual(third.ask("shutdown"), "over")
        self.assertEqual(observer.next(), "went third 2")
        self.assertEqual(first.ask("shutdown"), "over")
        self.assertEqual(observer.next(), "went first 0")


if __name__ == "__main__":
    unittest.main()
