#!/usr/bin/env python3
"""Runs the servers and the libraries side by side on one core and prints each figure beside its bar.

Builds the C++ of this folder into target/peers, starts the servers pinned to one core on free ports, loads
them in turn, and prints Markdown tables. The reference stands in every run twice: a row whose second reference
is not within 0.95-1.05 of the first is measured again, three times in all, and then marked unsteady: it shows
nothing.

Exit code: 0 when every bar that was looked at was passed, 1 when a row failed, broke or stayed unsteady, 2 when
something needed is missing.
"""

import argparse
import contextlib
import json
import os
import re
import resource
import signal
import socket
import statistics
import struct
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import agents
import calls
import groups
import rendezvous
from programs import (REPOSITORY, Broken, LibraryBench, Missing, Programs, Server, memory_kib, say,
                      settled_memory_kib, stop)

ATTEMPTS = 3
STEADY = (0.95, 1.05)
IDLE_CONNECTIONS = 10_000
IDLE_BYTES_BAR = 2048
MEMORY_ROW = "memory"


@dataclass(frozen=True)
class ServerRow:
    """One load on whole servers, in times the floor."""

    id: str
    work: str
    connections: int
    operations: int
    depth: int
    wall_bar: float
    cpu_bar: float | None = None
    language: str = "c10d"

    @property
    def torch_takes_part(self) -> bool:
        # PyTorch's server looks up every peer's name on its event loop: its connects measure the resolver.
        return self.language == "c10d" and self.work not in ("connect", "storm")


@dataclass(frozen=True)
class LibraryRow:
    """One operation by n threads through a library's API, in times PyTorch."""

    id: str
    operation: str
    threads: int
    rounds: int
    bar: float


# A repetition lasts some 20 ms where it can: long against the scheduler's turns, short for who waits.
SERVER_ROWS = [
    *(ServerRow(f"barrier-{n}", "barrier", n, rounds, 1, 1.15, 1.35)
      for n, rounds in ((2, 2000), (8, 700), (64, 100), (512, 12))),
    *(ServerRow(f"native-barrier-{n}", "barrier", n, rounds, 1, 1.25, language="native")
      for n, rounds in ((2, 2000), (8, 700), (64, 100), (512, 12))),
    ServerRow("add-1x1", "add", 1, 4000, 1, 1.15),
    ServerRow("add-64x1", "add", 64, 100, 1, 1.15),
    ServerRow("add-64x16", "add", 64, 960, 16, 1.6),
    ServerRow("add-1x64", "add", 1, 64_000, 64, 1.6),
    *(ServerRow(f"{work}-{n}", work, n, 1, 1, 1.3) for work in ("connect", "storm") for n in (1000, 4000)),
]
LIBRARY_ROWS = [
    LibraryRow(f"library-{operation}-{n}", operation, n, max(50, 3000 // n), bar)
    for operation, bar in (("barrier", 1.0), ("legacy", 1.0), ("add", 1.0), ("get", 0.7)) for n in (2, 8, 64)
]


def is_steady(ratio: float) -> bool:
    return STEADY[0] <= ratio <= STEADY[1]


def until_steady(measure, second_reference: str) -> dict:
    """Measures until the second reference agrees with the first; else keeps the attempt that came closest."""
    attempts = []
    for _ in range(ATTEMPTS):
        attempts.append(measure())
        ratio = attempts[-1][second_reference]["ratio"]
        if is_steady(ratio):
            return attempts[-1]
        say(f"  the second reference came out at {ratio:.2f}")
    return min(attempts, key=lambda figures: abs(figures[second_reference]["ratio"] - 1))


def measure_servers(programs: Programs, row: ServerRow, torch: Server | None) -> dict:
    work = [str(word) for word in ("--language", row.language, "--work", row.work, "--n", row.connections,
                                   "--ops", row.operations, "--depth", row.depth)]
    kind = "barrier" if row.work == "barrier" else "echo"
    sizes = programs.request_sizes(work)
    with contextlib.ExitStack() as own_servers:
        servers = [programs.start_floor(name, kind, sizes, row.connections) for name in ("floor", "floor2")]
        if not programs.options.without_ours:
            servers.append(programs.start_ours())
        for server in servers:
            own_servers.callback(stop, server.process)
        if torch and row.torch_takes_part:
            servers.append(torch)
        return until_steady(lambda: programs.load(work, programs.options.repetitions, servers), "floor2")


def measure_libraries(row: LibraryRow, libraries: list[LibraryBench], repetitions: int) -> dict:
    def once() -> dict:
        samples = {library.name: [] for library in libraries}
        for repetition in range(repetitions + 1):
            for turn in range(len(libraries)):
                library = libraries[(turn + repetition) % len(libraries)]
                sample = library.run(f"{row.operation} {row.threads} {row.rounds}")
                if repetition > 0:  # the first is the warm-up
                    samples[library.name].append(sample)

        def against_first(name: str, field: str) -> float:
            pairs = zip(samples[name], samples[libraries[0].name], strict=True)
            return statistics.median(sample[field] / reference[field] for sample, reference in pairs)

        return {name: {"median_us": statistics.median(sample["median_us"] for sample in taken),
                       "p99_us": statistics.median(sample["p99_us"] for sample in taken),
                       "ratio": against_first(name, "median_us"),
                       "wall_ratio": against_first(name, "wall_us")}
                for name, taken in samples.items()}

    return until_steady(once, "torch2")


def greeted_connection(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=30)
    connection.sendall(struct.pack("<BIBI", 0, 0x3C85F7CE, 13, 7))
    if connection.recv(4, socket.MSG_WAITALL) != struct.pack("<I", 7):
        raise Broken("a connection was not greeted")
    return connection


def measure_idle_connections(server: Server) -> dict:
    with contextlib.ExitStack() as connections:
        connections.enter_context(greeted_connection(server.port))  # the first use touches code and tables
        before = settled_memory_kib(server.process.pid)
        for _ in range(IDLE_CONNECTIONS):
            connections.enter_context(greeted_connection(server.port))
        after = settled_memory_kib(server.process.pid)
    growth = {field: (after[field] - before[field]) * 1024 / IDLE_CONNECTIONS for field in ("Pss", "Anonymous")}
    return {"bytes_each": max(growth.values()), "growth_bytes_each": growth, "resident_kib": after["Rss"]}


class Report:
    """Prints the tables and keeps the verdicts."""

    def __init__(self):
        self.results = []

    def verdict(self, row: str, figures: dict, second_reference: str, bars: dict[str, float | None]) -> str:
        if "ours" not in figures:
            outcome = "not measured"
        elif not is_steady(figures[second_reference]["ratio"]):
            outcome = "unsteady"
        else:
            missed = any(bar is not None and figures["ours"][field] > bar for field, bar in bars.items())
            outcome = "FAIL" if missed else "pass"
        return self.note(row, outcome, figures)

    def note(self, row: str, outcome: str, figures: dict) -> str:
        self.results.append({"row": row, "verdict": outcome, "figures": figures})
        return outcome

    @staticmethod
    def table(title: str, header: str, lines: list[list[str]]) -> None:
        columns = header.split(" | ")
        print(f"\n### {title}\n")
        for line in (columns, ["---"] * len(columns), *lines):
            print("| " + " | ".join(line) + " |")
        sys.stdout.flush()

    def close(self) -> int:
        passed = [result["row"] for result in self.results if result["verdict"] == "pass"]
        missed = [result["row"] for result in self.results if result["verdict"] not in ("pass", "not measured")]
        print(f"\nRows passed: {len(passed)}; not passed: {', '.join(missed) or 'none'}.")
        return 1 if missed else 0


def cell(figures: dict, name: str, field: str) -> str:
    return f"{figures[name][field]:.2f}" if name in figures else "-"


def server_section(programs: Programs, rows: list[ServerRow], report: Report) -> None:
    with_torch = not programs.options.without_torch and any(row.torch_takes_part for row in rows)
    torch = programs.start_torch() if with_torch else None
    lines = []
    for row in rows:
        say(f"measuring {row.id}")
        try:
            figures = measure_servers(programs, row, torch)
            bars = {"ratio": row.wall_bar, "cpu_ratio": row.cpu_bar}
            outcome = report.verdict(row.id, figures, "floor2", bars)
        except Broken as problem:
            figures, outcome = {}, report.note(row.id, f"BROKE: {problem}", {})
        lines.append([row.id, cell(figures, "floor", "median_us"), cell(figures, "floor2", "ratio"),
                      cell(figures, "torch", "ratio"), cell(figures, "torch", "cpu_ratio"),
                      cell(figures, "ours", "ratio"), f"{row.wall_bar:.2f}",
                      cell(figures, "ours", "cpu_ratio"), f"{row.cpu_bar:.2f}" if row.cpu_bar else "-",
                      cell(figures, "ours", "p99_ratio"), outcome])
    if torch:
        stop(torch.process)
    report.table("Servers, in times the floor", "load | floor us | floor again | PyTorch wall | PyTorch CPU | "
                 "ours wall | bar | ours CPU | bar | ours p99 | verdict", lines)


def library_section(programs: Programs, rows: list[LibraryRow], report: Report) -> None:
    libraries = [programs.start_library("torch", "torch"), programs.start_library("torch2", "torch")]
    if not programs.options.without_ours:
        libraries.append(programs.start_library("ours", "rdzv"))
    lines = []
    for row in rows:
        say(f"measuring {row.id}")
        try:
            figures = measure_libraries(row, libraries, programs.options.repetitions)
            outcome = report.verdict(row.id, figures, "torch2", {"ratio": row.bar})
        except Broken as problem:
            figures, outcome = {}, report.note(row.id, f"BROKE: {problem}", {})
        lines.append([row.id, cell(figures, "torch", "median_us"), cell(figures, "torch2", "ratio"),
                      cell(figures, "ours", "median_us"), cell(figures, "ours", "ratio"), f"{row.bar:.2f}",
                      cell(figures, "ours", "wall_ratio"), outcome])
    for library in libraries:
        stop(library.process)
    report.table("Libraries, in times PyTorch", "operation | PyTorch us | PyTorch again | ours us | ours | "
                 "bar | ours, until the last rank | verdict", lines)


def memory_section(programs: Programs, report: Report) -> None:
    say("measuring memory")
    lines = []
    if not programs.options.without_ours:
        server = programs.start_ours()
        shown = resident = "-"
        try:
            figures = measure_idle_connections(server)
            passed = figures["bytes_each"] < IDLE_BYTES_BAR
            outcome = report.note(MEMORY_ROW, "pass" if passed else "FAIL", figures)
            shown, resident = f"{figures['bytes_each']:.0f} bytes", f"{figures['resident_kib'] / 1024:.1f} MiB"
        except (Broken, OSError) as problem:
            outcome = report.note(MEMORY_ROW, f"BROKE: {problem}", {})
        stop(server.process)
        what = f"ours: each of {IDLE_CONNECTIONS} idle connections"
        lines.append([what, shown, f"{IDLE_BYTES_BAR} bytes", outcome])
        lines.append(["ours: resident, with all of them", resident, "-", "-"])
    if not programs.options.without_torch:
        server = programs.start_torch()
        resident = memory_kib(server.process.pid, "status")["VmRSS"] / 1024
        stop(server.process)
        lines.append(["PyTorch: resident, with Python, no connection", f"{resident:.1f} MiB", "-", "-"])
    report.table("Memory", "what | user memory | bar | verdict", lines)


def parse_options() -> argparse.Namespace:
    target = REPOSITORY / "target"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="5 repetitions a row instead of 15")
    parser.add_argument("--rows", metavar="REGEX", default="", help="only rows whose name matches")
    parser.add_argument("--core", type=int, default=0, help="the core that everything runs on (0)")
    parser.add_argument("--without-torch", action="store_true", help="leave PyTorch and the library rows out")
    parser.add_argument("--without-ours", action="store_true", help="only the floor and PyTorch")
    parser.add_argument("--rdzv", type=Path, default=target / "release/rdzv", help="our server's binary")
    parser.add_argument("--join-node", type=Path, default=target / "release/join_node",
                        help="the program that is one node of a run")
    parser.add_argument("--group-worker", type=Path, default=target / "release/group_worker",
                        help="the program that is one worker of an RPC group")
    parser.add_argument("--calls", type=Path, default=target / "release/calls",
                        help="the program that makes and takes calls")
    parser.add_argument("--load", type=Path, default=target / "release/load",
                        help="the program that loads a rendezvous")
    parser.add_argument("--lib", type=Path, default=target / "release", help="the folder of librendezvous.so")
    parser.add_argument("--include", type=Path, default=REPOSITORY / "include",
                        help="the folder of rendezvous.hpp")
    parser.add_argument("--torch-python", type=Path, default=target / "torch-venv/bin/python",
                        help="a Python that has PyTorch")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there too")
    options = parser.parse_args()
    options.repetitions = 5 if options.quick else 15
    for name in ("rdzv", "join_node", "group_worker", "calls", "load", "lib", "include"):
        setattr(options, name, getattr(options, name).resolve())
    return options


def raise_file_limit(needed: int) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if most != resource.RLIM_INFINITY and most < needed:
        raise Missing(f"these rows need {needed} open files a process; the limit is {most}")


def conditions(options: argparse.Namespace, torch_version: str) -> str:
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    machine = f"{os.cpu_count()} x {model[1] if model else 'unknown CPU'}, Linux {os.uname().release}"
    return (f"Placement: one-core, every server and load under `taskset -c {options.core}`, interleaved; "
            f"medians of {options.repetitions} repetitions. Machine: {machine}. "
            f"PyTorch: {torch_version or 'left out'}.")


def main() -> int:
    options = parse_options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the children are stopped on the way out
    wanted = re.compile(options.rows)
    server_rows = [row for row in SERVER_ROWS if wanted.search(row.id)]
    library_rows = [row for row in LIBRARY_ROWS if wanted.search(row.id)]
    rendezvous_rows = [row for row in rendezvous.ROWS if wanted.search(row.id)]
    agent_rows = [row for row in agents.ROWS if wanted.search(row.id)]
    group_rows = [row for row in groups.ROWS if wanted.search(row.id)]
    call_rows = [row for row in [*calls.ROWS, calls.DEATH_ROW] if wanted.search(row.id)]
    wants_memory = wanted.search(MEMORY_ROW) is not None
    rpc_rows = group_rows or call_rows
    if not (server_rows or library_rows or rendezvous_rows or agent_rows or rpc_rows or wants_memory):
        raise Missing(f"no row matches {options.rows!r}")
    raise_file_limit(IDLE_CONNECTIONS + 100 if wants_memory or rendezvous_rows else 4100)
    if library_rows and options.without_torch:
        say("library rows left out: PyTorch is their reference")
        library_rows = []
    report = Report()
    with Programs(options) as programs:
        programs.build(with_libraries=bool(library_rows))
        said = conditions(options, programs.torch_version)
        print(said, flush=True)
        if server_rows:
            server_section(programs, server_rows, report)
        if library_rows:
            library_section(programs, library_rows, report)
        if rendezvous_rows and not options.without_ours:
            rendezvous.section(programs, rendezvous_rows, report)
        if agent_rows:
            agents.section(programs, agent_rows, report)
        if group_rows and not options.without_ours:
            groups.section(programs, group_rows, report)
        if call_rows and not options.without_ours:
            calls.section(programs, call_rows, report, until_steady)
        if wants_memory:
            memory_section(programs, report)
    if options.json:
        options.json.write_text(json.dumps({"conditions": said, "rows": report.results}, indent=2) + "\n")
    return report.close()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (Missing, Broken) as problem:
        say(f"benches/peers: {problem}")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
