"""Calls between workers: ours beside a bare ping-pong through epoll, a bare stream, and PyTorch's RPC over TensorPipe."""

import contextlib
import json
import socket
import statistics
import subprocess
from dataclasses import dataclass

from programs import HERE, RUN_SECONDS, START_SECONDS, Broken, Programs, read_line, say, stop

PAYLOAD_BYTES = 64 << 20
DEPTH = 64
# What a repetition does; PyTorch, which is slower, does less of it.
TORCH_SHARE = 10


@dataclass(frozen=True)
class CallRow:
    """One load on one worker. `floor_bar`: most times the floor; `torch_bar`: at least so many times PyTorch's speed."""

    id: str
    work: str
    torch_work: str
    floor: str
    calls: int
    more: tuple[int, ...] = ()
    floor_bar: float | None = None
    torch_bar: float | None = None


ROWS = [
    CallRow("call-echo-inline", "echo", "echo", "echo", 3000, floor_bar=1.5, torch_bar=5),
    CallRow("call-echo-pooled", "pooled", "echo", "echo", 3000, floor_bar=2.2, torch_bar=5),
    CallRow("call-echo-inline-64", "echo-many", "echo-many", "echo", 12_800, (DEPTH,), torch_bar=10),
    CallRow("call-echo-pooled-64", "pooled-many", "echo-many", "echo", 12_800, (DEPTH,), torch_bar=10),
    # 0.7 times the speed of the floor.
    CallRow("call-payload-64MiB", "payload", "payload", "sink", 5, (PAYLOAD_BYTES,), floor_bar=1 / 0.7),
]
DEATH_ROW = CallRow("call-peer-death", "death", "", "", 5)
DEATH_BAR_US = 10_000.0


class Loader:
    """Obeys one command at a time."""

    def __init__(self, name: str, process: subprocess.Popen):
        self.name = name
        self.process = process

    def run(self, *words) -> dict:
        with contextlib.suppress(BrokenPipeError):  # it has ended: the empty answer tells
            self.process.stdin.write((" ".join(map(str, words)) + "\n").encode())
        return json.loads(read_line(self.process.stdout, self.name, RUN_SECONDS))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def measure(row: CallRow, sources: dict, repetitions: int) -> dict:
    """Figures by name; the first source is the reference. Sources take turns, each time another one first."""
    names = list(sources)
    samples = {name: [] for name in names}
    for repetition in range(repetitions + 1):
        for turn in range(len(names)):
            name = names[(turn + repetition) % len(names)]
            sample = sources[name]()
            if repetition > 0:  # the first is the warm-up
                samples[name].append(sample["median_us"])

    def against_first(name: str) -> float:
        pairs = zip(samples[name], samples[names[0]], strict=True)
        return statistics.median(sample / reference for sample, reference in pairs)

    figures = {name: {"median_us": statistics.median(taken), "ratio": against_first(name)}
               for name, taken in samples.items()}
    if "torch" in samples:
        pairs = zip(samples["torch"], samples["ours"], strict=True)
        figures["ours"]["ahead"] = statistics.median(torch / ours for torch, ours in pairs)
    return figures


class Setting:
    """The processes of this section, each pinned to the one core."""

    def __init__(self, programs: Programs):
        start, calls = programs.start_pinned_server, programs.options.calls
        self.ours = start("calls-serve", calls, "serve")
        self.echo = start("calls-floor-echo", calls, "floor-echo")
        self.sink = start("calls-floor-sink", calls, "floor-sink", PAYLOAD_BYTES)
        self.loader = Loader("calls-load", programs.start_pinned("calls-load", calls, "load", stdin=subprocess.PIPE))
        self.torch = None
        if not programs.options.without_torch:
            process = programs.start_pinned("torch-calls", programs.options.torch_python, HERE / "torch_calls.py",
                                            free_port(), stdin=subprocess.PIPE)
            if read_line(process.stdout, "torch-calls", START_SECONDS).strip() != "ready":
                raise Broken("PyTorch's workers did not meet")
            self.torch = Loader("torch-calls", process)

    def sources(self, row: CallRow) -> dict:
        def floor():
            if row.floor == "echo":
                return self.loader.run("floor-echo", self.echo.port, 3000)
            return self.loader.run("floor-sink", self.sink.port, row.calls, PAYLOAD_BYTES)

        def torch():
            return self.torch.run(row.torch_work, "-", max(row.calls // TORCH_SHARE, 3 * DEPTH if row.more == (DEPTH,)
                                                           else 2), *row.more)

        sources = {"floor": floor, "floor2": floor,
                   "ours": lambda: self.loader.run(row.work, self.ours.port, row.calls, *row.more)}
        return {**sources, "torch": torch} if self.torch else sources

    def stop(self) -> None:
        for process in (self.loader.process, self.ours.process, self.echo.process, self.sink.process):
            stop(process)
        if self.torch:
            stop(self.torch.process)


def section(programs: Programs, rows: list[CallRow], report, until_steady) -> None:
    """`until_steady` measures again while the second reference does not agree with the first."""
    setting = Setting(programs)
    lines = []
    for row in rows:
        say(f"measuring {row.id}")
        try:
            if row is DEATH_ROW:
                figures = {"ours": setting.loader.run(row.work, row.calls)}
                passed = figures["ours"]["median_us"] <= DEATH_BAR_US
                outcome = report.note(row.id, "pass" if passed else "FAIL", figures)
                lines.append([row.id, "-", "-", f"{figures['ours']['median_us']:.1f}", "-", "10 ms", "-", "-", "-",
                              outcome])
                continue
            figures = until_steady(lambda row=row: measure(row, setting.sources(row), programs.options.repetitions),
                                   "floor2")
            outcome = report.verdict(row.id, figures, "floor2", {"ratio": row.floor_bar})
            if outcome == "pass" and row.torch_bar and figures["ours"].get("ahead", row.torch_bar) < row.torch_bar:
                report.results.pop()
                outcome = report.note(row.id, "FAIL", figures)
        except Broken as problem:
            figures, outcome = {}, report.note(row.id, f"BROKE: {problem}", {})
        shown = {name: f"{found['median_us']:.2f}" for name, found in figures.items()}
        ours = figures.get("ours", {})
        lines.append([row.id, shown.get("floor", "-"), f"{figures['floor2']['ratio']:.2f}" if figures else "-",
                      shown.get("ours", "-"), f"{ours['ratio']:.2f}" if ours else "-",
                      f"{row.floor_bar:.2f}" if row.floor_bar else "-", shown.get("torch", "-"),
                      f"{ours['ahead']:.1f} x" if "ahead" in ours else "-",
                      f"{row.torch_bar} x" if row.torch_bar else "-", outcome])
    setting.stop()
    report.table("Calls between workers", "load | floor us | floor again | ours us | in times the floor | at most | "
                 "PyTorch us | ahead of PyTorch | at least | verdict", lines)
