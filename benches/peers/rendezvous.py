"""Rows of the rendezvous: nodes that join, die and meet again, on one core and as processes of their own."""

import contextlib
import itertools
import os
import socket
import statistics
import struct
from dataclasses import dataclass

from programs import HERE, Broken, Programs, Server, say, settled_memory_kib, stop

STEADY = (0.95, 1.05)
ATTEMPTS = 3
STORM_BAR = 2.0
NODE_BYTES_BAR = 4096
RUN_IDS = (f"peers-{os.getpid()}-{number:06}" for number in itertools.count())


@dataclass(frozen=True)
class Outcome:
    """One line of the table, and what --json keeps of it."""

    figure: str
    bar: str
    beside: str
    verdict: str
    figures: dict


@dataclass(frozen=True)
class JoinRow:
    """N nodes connect and join at once, in times as many connections of c10d that connect and greet at once."""

    nodes: int

    @property
    def id(self) -> str:
        return f"join-{self.nodes}"

    def measure(self, programs: Programs) -> Outcome:
        # Ten thousand at once overflow the kernel's queue of newcomers; their repetitions last seconds.
        repetitions = programs.options.repetitions if self.nodes <= 1000 else max(3, programs.options.repetitions // 3)
        for _ in range(ATTEMPTS):
            figures = self._once(programs, repetitions)
            steady = STEADY[0] <= figures["storm_again"] <= STEADY[1]
            if steady:
                break
            say(f"  the second storm came out at {figures['storm_again']:.2f}")
        verdict = ("pass" if figures["ratio"] <= STORM_BAR else "FAIL") if steady else "unsteady"
        beside = (f"a storm of as many: {figures['storm_us']:.1f} us each, and again {figures['storm_again']:.2f}; "
                  f"CPU {figures['cpu_us']:.1f} us a node, {figures['cpu_ratio']:.2f} x")
        return Outcome(f"{figures['join_us']:.1f} us a node, {figures['ratio']:.2f} x", f"{STORM_BAR:.0f} x", beside,
                       verdict, figures)

    def _once(self, programs: Programs, repetitions: int) -> dict:
        with server_of(programs) as server:
            runs = [self._repetition(programs, server) for _ in range(repetitions)]

        def median(of) -> float:
            return statistics.median(of(*run) for run in runs)

        return {"join_us": median(lambda storm, join, again: join["time_us"]),
                "storm_us": median(lambda storm, join, again: storm["time_us"]),
                "ratio": median(lambda storm, join, again: join["time_us"] / storm["time_us"]),
                "storm_again": median(lambda storm, join, again: again["time_us"] / storm["time_us"]),
                "cpu_us": median(lambda storm, join, again: join["server_cpu_us"]),
                "cpu_ratio": median(lambda storm, join, again: join["server_cpu_us"] / storm["server_cpu_us"])}

    def _repetition(self, programs: Programs, server: Server) -> list[dict]:
        found = programs.rendezvous_load("--work", "storm,join,storm", "--connections", self.nodes, "--repetitions", 1,
                                    server.rdzv_target)
        return [work["targets"][0] for work in found]


@dataclass(frozen=True)
class DeathRow:
    """One of the nodes of a round dies: until all others know, or until they are in a new round."""

    work: str
    nodes: int
    bar_ms: float

    @property
    def id(self) -> str:
        return f"{self.work}-{self.nodes}"

    def measure(self, programs: Programs) -> Outcome:
        with server_of(programs) as server:
            found = programs.rendezvous_load("--work", self.work, "--connections", self.nodes, "--repetitions",
                                        programs.options.repetitions, server.rdzv_target)
        figures = found[0]["targets"][0]
        median_ms, longest_ms = figures["time_us"] / 1000, figures["max_us"] / 1000
        verdict = "pass" if median_ms <= self.bar_ms else "FAIL"
        return Outcome(f"{median_ms:.2f} ms", f"{self.bar_ms:.0f} ms", f"the longest {longest_ms:.2f} ms", verdict,
                       figures)


@dataclass(frozen=True)
class NodeMemoryRow:
    """What a node that is in a round costs the server, and how many bytes it is sent until it is."""

    fewer: int
    more: int
    id: str = "join-memory"

    def measure(self, programs: Programs) -> Outcome:
        few, many = (self._hold(programs, nodes) for nodes in (self.fewer, self.more))
        same = few["bytes_to_one"] == many["bytes_to_one"]
        passed = many["server_bytes_each"] <= NODE_BYTES_BAR and same
        beside = (f"{few['server_bytes_each']:.0f} bytes with {self.fewer} nodes; sent to one node until its round: "
                  f"{text_of(few['bytes_to_one'])} bytes with {self.fewer}, {text_of(many['bytes_to_one'])} with "
                  f"{self.more}")
        return Outcome(f"{many['server_bytes_each']:.0f} bytes a node of {self.more}", f"{NODE_BYTES_BAR} bytes", beside,
                       "pass" if passed else "FAIL", {"fewer": few, "more": many})

    @staticmethod
    def _hold(programs: Programs, nodes: int) -> dict:
        with server_of(programs) as server, contextlib.ExitStack() as connections:
            connections.enter_context(joined(server, 1, next(RUN_IDS)))  # the first use touches code
            before = settled_memory_kib(server.process.pid)
            with joined(server, nodes, next(RUN_IDS)) as received:
                after = settled_memory_kib(server.process.pid)
        growth = max((after[field] - before[field]) * 1024 / nodes for field in ("Pss", "Anonymous"))
        return {"server_bytes_each": growth, "bytes_to_one": sorted(set(received))}


@dataclass(frozen=True)
class ProcessesRow:
    """N processes wait at a gate, then each connects and joins: from the gate to the last one's round."""

    nodes: int
    bar_ms: float

    @property
    def id(self) -> str:
        return f"join-processes-{self.nodes}"

    def measure(self, programs: Programs) -> Outcome:
        options = programs.options
        with server_of(programs) as server:
            ours = [self._race(programs, "nodes", self._ours(options, server)) for _ in range(options.repetitions)]
        figures = {"ours_ms": statistics.median(ours), "ours_ms_max": max(ours)}
        beside = f"the longest {figures['ours_ms_max']:.2f} ms"
        if not options.without_torch:
            server = programs.start_torch()
            torch = [self._race(programs, "torch_nodes", self._torch(options, server)) for _ in range(3)]
            stop(server.process)
            figures["torch_ms"] = statistics.median(torch)
            beside += f"; PyTorch {figures['torch_ms']:.0f} ms"
        verdict = "pass" if figures["ours_ms"] <= self.bar_ms else "FAIL"
        return Outcome(f"{figures['ours_ms']:.2f} ms", f"{self.bar_ms:.0f} ms", beside, verdict, figures)

    def _race(self, programs: Programs, name: str, commands: list[list]) -> float:
        # As processes of a host are: wherever there is room.
        nodes = programs.start_nodes(name, commands)
        try:
            return nodes.race(self.nodes)
        finally:
            nodes.stop()

    def _ours(self, options, server: Server) -> list[list]:
        run_id = next(RUN_IDS)
        return [[options.join_node, f"127.0.0.1:{server.port}", run_id, f"node{node:07}", self.nodes]
                for node in range(self.nodes)]

    def _torch(self, options, server: Server) -> list[list]:
        return [[options.torch_python, HERE / "torch_join.py", "127.0.0.1", server.port, next(RUN_IDS), self.nodes]]


ROWS = [
    JoinRow(1000),
    JoinRow(10_000),
    NodeMemoryRow(1000, 10_000),
    DeathRow("death", 64, 10),
    DeathRow("reform", 64, 50),
    ProcessesRow(2, 2),
    ProcessesRow(16, 5),
    ProcessesRow(64, 12),
]


def section(programs: Programs, rows: list, report) -> None:
    lines = []
    for row in rows:
        say(f"measuring {row.id}")
        try:
            outcome = row.measure(programs)
        except (Broken, OSError) as problem:
            outcome = Outcome("-", "-", "", f"BROKE: {problem}", {})
        report.note(row.id, outcome.verdict, outcome.figures)
        lines.append([row.id, outcome.figure, outcome.bar, outcome.beside, outcome.verdict])
    report.table("Rendezvous", "row | ours | bar | beside it | verdict", lines)


@contextlib.contextmanager
def server_of(programs: Programs):
    server = programs.start_ours()
    try:
        yield server
    finally:
        stop(server.process)


def text_of(numbers: list[int]) -> str:
    return " or ".join(map(str, numbers))


def connected(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=60)


@contextlib.contextmanager
def joined(server: Server, nodes: int, run_id: str):
    """Lets so many nodes connect and join one run; yields how many bytes each got until its round."""
    with contextlib.ExitStack() as connections:
        sockets = []
        for index in range(nodes):
            sockets.append(connections.enter_context(connected(server)))
            # At once: a server with few descriptors closes connections that have not greeted after a second.
            sockets[-1].sendall(opening(run_id, f"node{index:07}", nodes))
        yield [bytes_until_round(connection) for connection in sockets]


HELLO, JOIN, ROUND, ERROR = 0x0001, 0x0040, 0x8019, 0x80FF


def counted(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def frame(kind: int, identifier: int, body: bytes) -> bytes:
    return struct.pack("<IHHQQ", len(body), kind, 0, identifier, 0) + body


def opening(run_id: str, node: str, nodes: int) -> bytes:
    """RDZV, Hello and Join (docs/protocol/native.md)."""
    name = counted(node.encode())
    hello = struct.pack("<HHQQ16sIII", 1, 1, 0, 0, b"", 0, 3_600_000, 10) + name + counted(b"")
    terms = (struct.pack("<IIIHQ?H", nodes, nodes, 0, 3, 0, True, 1) + counted(b"") + struct.pack("<IQQQ", 0, 0, 0, 0))
    join = (counted(run_id.encode()) + name + counted(b"192.0.2.1:29500") + struct.pack("<IiQ", 1, -1, 60_000) + terms
            + struct.pack("<Q", 0))
    return b"RDZV" + frame(HELLO, 0, hello) + frame(JOIN, 1, join)


def bytes_until_round(connection: socket.socket) -> int:
    total = 0
    while True:
        header = connection.recv(24, socket.MSG_WAITALL)
        if len(header) < 24:
            raise Broken("the server closed a node's connection")
        length, kind = struct.unpack_from("<IH", header)
        body = connection.recv(length, socket.MSG_WAITALL) if length else b""
        if kind == ERROR:
            raise Broken(f"a node was refused: {body[26:].decode(errors='replace')}")
        total += len(header) + length
        if kind == ROUND:
            return total
