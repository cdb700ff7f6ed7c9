"""PyTorch's RPC (TensorPipe) over the server under test, and observers of ours that read who is in its groups."""

import os
import subprocess
import sys
import threading
import unittest

from harness import HERE, RDZV, ROOT, START_SECONDS, STOP_SECONDS, StoreTest, deadline, read_line

MEMBER_SECONDS = 60.0
CPP_OBSERVER = os.environ.get("RDZV_CPP_OBSERVER", str(ROOT / "target" / "cpp_observer"))


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
    """A process that says who comes and goes, one line for each."""

    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def next(self):
        return read_line(self.process.stdout.fileno(), START_SECONDS)

    def ask(self, words):
        self.process.stdin.write((words + "\n").encode())
        self.process.stdin.flush()
        return self.next()

    def end(self):
        """Its exit code, once nobody asks it any more."""
        self.process.stdin.close()
        return self.process.wait(STOP_SECONDS)

    def close(self):
        self.process.kill()
        self.process.wait(STOP_SECONDS)
        self.process.stdin.close()
        self.process.stdout.close()


class Observers:
    """`rdzv group` and a C++ program, which see the same."""

    def __init__(self, server):
        endpoint = f"{server.host}:{server.port}"
        self.command = Observer([RDZV, "group", "--endpoint", endpoint, "--pause-ms", "50"])
        self.cpp = Observer([CPP_OBSERVER, server.host, str(server.port)])

    def next(self):
        return self.next_few(1)[0]

    def next_few(self, count):
        """So many lines of each, in any order, without the addresses that all who come must have."""
        lines = sorted(self.command.next().split(" ") for _ in range(count))
        others = sorted(self.cpp.next().split(" ") for _ in range(count))
        if lines != others:
            raise AssertionError(f"`rdzv group` has seen {lines}, the C++ program {others}")
        for words in lines:
            if words[0] == "came" and not words[3:][0]:
                raise AssertionError(f"{words[1]} has no address")
        return [" ".join(words[:3]) for words in lines]

    def names(self):
        return sorted(self.cpp.ask("names").split(" ")[1:])

    def close(self):
        self.command.close()
        self.cpp.close()


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

    def observers(self):
        observers = Observers(self.server)
        self.addCleanup(observers.close)
        return observers

    def came(self, observers, name, rank):
        self.assertEqual(observers.next(), f"came {name} {rank}")

    @deadline(180)
    def test_a_static_group_calls_and_ends_and_is_seen(self):
        observers = self.observers()
        members = [self.member(f"worker{rank}", rank, 3) for rank in range(3)]
        self.assertEqual([member.told() for member in members], ["joined"] * 3)
        self.assertEqual(observers.next(), "static")
        self.assertEqual(observers.next_few(3), ["came worker0 0", "came worker1 1", "came worker2 2"])
        self.assertEqual(observers.names(), ["worker0", "worker1", "worker2"])
        for member in members:
            self.assertEqual(member.ask("names"), "worker0 worker1 worker2")
            self.assertEqual(member.ask("add", "worker1", "3", "4"), "7")
        ends = []
        at_once([lambda member=member: ends.append(member.ask("shutdown")) for member in members])
        self.assertEqual(ends, ["over"] * 3)
        self.assertEqual(observers.cpp.end(), 0)

    @deadline(240)
    def test_a_dynamic_group_whose_workers_come_and_go_is_seen(self):
        observers = self.observers()
        first = self.member("first", 0)
        self.assertEqual(first.told(), "joined")
        self.assertEqual(observers.next(), "dynamic")
        self.came(observers, "first", 0)
        second = self.member("second", 1)
        self.assertEqual(second.told(), "joined")
        self.came(observers, "second", 1)
        self.assertEqual(observers.names(), ["first", "second"])
        self.assertEqual(first.ask("add", "second", "1", "2"), "3")
        self.assertEqual(second.ask("add", "first", "2", "2"), "4")
        self.assertEqual(first.ask("names"), "first second")
        self.assertEqual(second.ask("shutdown"), "over")
        self.assertEqual(observers.next(), "went second 1")
        self.assertEqual(observers.names(), ["first"])
        self.assertEqual(first.ask("names"), "first")
        third = self.member("third", 2)
        self.assertEqual(third.told(), "joined")
        self.came(observers, "third", 2)
        self.assertEqual(third.ask("add", "first", "20", "2"), "22")
        self.assertEqual(third.ask("shutdown"), "over")
        self.assertEqual(observers.next(), "went third 2")
        self.assertEqual(first.ask("shutdown"), "over")
        self.assertEqual(observers.next(), "went first 0")
        self.assertEqual(observers.names(), [])
        self.assertEqual(observers.cpp.end(), 0)


if __name__ == "__main__":
    unittest.main()
