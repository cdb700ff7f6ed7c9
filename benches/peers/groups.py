"""Rows of RPC groups: the last of many workers joins, and one of them dies. Each worker is a process of its own."""

import contextlib
import statistics
import subprocess
import time
from dataclasses import dataclass

from programs import HERE, Broken, Programs, Server, read_line, say, stop
from rendezvous import Outcome, server_of

JOIN_BAR = 10.0
DEATH_BAR_MS = 10.0
TORCH_JOINS = 3
SECONDS = 120


@dataclass(frozen=True)
class JoinRow:
    """All but one are in a dynamic group; how long the last one takes to be in it, beside PyTorch's."""

    workers: int

    @property
    def id(self) -> str:
        return f"group-join-{self.workers}"

    def measure(self, programs: Programs) -> Outcome:
        options = programs.options
        with server_of(programs) as server, members(programs, server, self.workers - 1):
            ours = [self._last(programs, server) for _ in range(options.repetitions)]
        figures = {"ours_ms": statistics.median(ours), "ours_ms_max": max(ours)}
        beside = f"the longest {figures['ours_ms_max']:.2f} ms"
        if options.without_torch:
            return Outcome(f"{figures['ours_ms']:.2f} ms", "-", beside, "-", figures)
        torch = self._torch(programs)
        figures |= {"torch_ms": statistics.median(torch), "ahead": statistics.median(torch) / figures["ours_ms"]}
        beside += f"; PyTorch {figures['torch_ms']:.0f} ms"
        verdict = "pass" if figures["ahead"] >= JOIN_BAR else "FAIL"
        return Outcome(f"{figures['ours_ms']:.2f} ms, {figures['ahead']:.0f} x ahead", f"{JOIN_BAR:.0f} x", beside,
                       verdict, figures)

    def _last(self, programs: Programs, server: Server) -> float:
        with member(programs, server, self.workers - 1) as (process, took_ms):
            process.stdin.close()
            if process.wait(SECONDS) != 0:
                raise Broken("a worker did not leave")
        return took_ms

    def _torch(self, programs: Programs) -> list[float]:
        server = programs.start_torch()
        command = [programs.options.torch_python, HERE / "torch_group.py", "127.0.0.1", server.port, self.workers - 1,
                   TORCH_JOINS]
        process = programs.start_member("torch_group", command)
        try:
            return [joined_ms(process, "torch_group", 600) for _ in range(TORCH_JOINS)]
        finally:
            stop(process)
            stop(server.process)


@dataclass(frozen=True)
class DeathRow:
    """One of the workers is killed: until the last of the others knows."""

    workers: int

    @property
    def id(self) -> str:
        return f"group-death-{self.workers}"

    def measure(self, programs: Programs) -> Outcome:
        with server_of(programs) as server, members(programs, server, self.workers - 1) as others:
            deaths = [self._death(programs, server, others) for _ in range(programs.options.repetitions)]
        figures = {"median_ms": statistics.median(deaths), "max_ms": max(deaths)}
        verdict = "pass" if figures["median_ms"] <= DEATH_BAR_MS else "FAIL"
        return Outcome(f"{figures['median_ms']:.2f} ms", f"{DEATH_BAR_MS:.0f} ms",
                       f"the longest {figures['max_ms']:.2f} ms", verdict, figures)

    def _death(self, programs: Programs, server: Server, others: list[subprocess.Popen]) -> float:
        with member(programs, server, self.workers - 1) as (process, _):
            began = time.time_ns()
            process.kill()
            told = [read_line(other.stdout, "group_worker", SECONDS).split() for other in others]
        wrong = [words for words in told if words[:2] != ["died", f"worker{self.workers - 1}"]]
        if wrong:
            raise Broken(f"a worker said {wrong[0]}")
        return max(int(words[2]) - began for words in told) / 1e6


ROWS = [JoinRow(32), DeathRow(32)]


def section(programs: Programs, rows: list, report) -> None:
    lines = []
    for row in rows:
        say(f"measuring {row.id}")
        try:
            outcome = row.measure(programs)
        except (Broken, OSError, subprocess.TimeoutExpired) as problem:
            outcome = Outcome("-", "-", "", f"BROKE: {problem}", {})
        report.note(row.id, outcome.verdict, outcome.figures)
        lines.append([row.id, outcome.figure, outcome.bar, outcome.beside, outcome.verdict])
    report.table("RPC groups", "row | ours | bar | beside it | verdict", lines)


def joined_ms(process: subprocess.Popen, name: str, seconds: float) -> float:
    words = read_line(process.stdout, name, seconds).split()
    if words[0] != "joined":
        raise Broken(f"{name} said {words}")
    return int(words[1]) / 1e6


@contextlib.contextmanager
def member(programs: Programs, server: Server, number: int):
    """A worker, and how long it took to join."""
    command = [programs.options.group_worker, f"127.0.0.1:{server.port}", f"worker{number}", number]
    process = programs.start_member("group_worker", command)
    try:
        yield process, joined_ms(process, "group_worker", SECONDS)
    finally:
        stop(process)


@contextlib.contextmanager
def members(programs: Programs, server: Server, count: int):
    """So many workers, which joined one after the other."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(member(programs, server, number))[0] for number in range(count)]
