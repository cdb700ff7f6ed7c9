"""Builds the programs of this folder and starts them and the servers, pinned to one core; stops them all."""

import contextlib
import ctypes
import json
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
BUILD = REPOSITORY / "target" / "peers"
START_SECONDS = 60
RUN_SECONDS = 300
LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1


class Missing(Exception):
    """Something that the run needs is not there."""


class Broken(Exception):
    """A measurement ended without a figure."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def die_with_parent() -> None:
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def stop(process: subprocess.Popen) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe:
            pipe.close()


def read_line(pipe, name: str, seconds: float) -> str:
    ready, _, _ = select.select([pipe], [], [], seconds)
    line = pipe.readline().decode() if ready else ""
    if not line:
        raise Broken(f"{name} said nothing; see {BUILD / name}.log")
    return line


def memory_kib(pid: int, file: str = "smaps_rollup") -> dict[str, int]:
    text = Path(f"/proc/{pid}/{file}").read_text()
    return {name: int(kib) for name, kib in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)}


def settled_memory_kib(pid: int) -> dict[str, int]:
    """Reads until two readings in a row agree: the server has then finished what it had to do."""
    deadline = time.monotonic() + 5
    now = memory_kib(pid)
    while time.monotonic() < deadline:
        time.sleep(0.1)
        before, now = now, memory_kib(pid)
        if before == now:
            break
    return now


@dataclass
class Server:
    name: str
    process: subprocess.Popen
    port: int

    @property
    def target(self) -> str:
        """As load_generator has it."""
        return f"{self.name}={self.port}:{self.process.pid}"

    @property
    def rdzv_target(self) -> str:
        """As `load` has it."""
        return f"{self.name}=127.0.0.1:{self.port}:{self.process.pid}"


class LibraryBench:
    """A group_bench that hosts its own server and runs one command at a time."""

    def __init__(self, name: str, process: subprocess.Popen):
        self.name = name
        self.process = process

    def run(self, command: str) -> dict:
        with contextlib.suppress(BrokenPipeError):  # it has ended: the empty answer tells
            self.process.stdin.write(f"{command}\n".encode())
        return json.loads(read_line(self.process.stdout, self.name, RUN_SECONDS))


class Nodes:
    """Processes that say "ready", wait for the end of their stdin, and say "done" with the time."""

    def __init__(self, name: str, gate: int, words: int):
        self.name = name
        self.processes: list[subprocess.Popen] = []
        self.gate = os.fdopen(gate, "wb", buffering=0)
        self.words = os.fdopen(words, "rb", buffering=0)

    def race(self, count: int) -> float:
        """Opens the gate when all are ready: milliseconds until the last is done."""
        for _ in range(count):
            self._word("ready")
        opened_ns = time.time_ns()
        self.gate.close()
        return (max(int(self._word("done")) for _ in range(count)) - opened_ns) / 1e6

    def stop(self) -> None:
        for process in self.processes:
            stop(process)
        self.processes = []
        self.gate.close()
        self.words.close()

    def _word(self, expected: str) -> str:
        word, _, rest = read_line(self.words, self.name, START_SECONDS).strip().partition(" ")
        if word != expected:
            raise Broken(f"{self.name} said {word!r}, not {expected!r}; see {BUILD / self.name}.log")
        return rest


class Programs:
    """What the options name and what is built from it; a context that stops every child at its end."""

    def __init__(self, options):
        self.options = options
        self.torch_version = ""
        self.children = contextlib.ExitStack()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.children.close()

    def build(self, with_libraries: bool) -> None:
        BUILD.mkdir(parents=True, exist_ok=True)
        for log in BUILD.glob("*.log"):
            log.unlink()
        self._compile("floor_server", "floor_server", "-std=c++17")
        self._compile("load_generator", "load_generator", "-std=c++17")
        options = self.options
        if not options.without_torch:
            torch = self._find_torch()
            if with_libraries:
                headers = f"{torch}/include"
                self._compile("group_bench", "group_bench_torch", "-std=c++20", '-DADAPTER="adapter_torch.hpp"',
                              "-isystem", headers, "-isystem", f"{headers}/torch/csrc/api/include",
                              f"-L{torch}/lib", f"-Wl,-rpath,{torch}/lib", "-ltorch_cpu", "-lc10")
        if not options.without_ours:
            needed = [options.rdzv, options.join_node, options.group_worker, options.calls, options.load]
            if with_libraries:
                needed += [options.lib / "librendezvous.so", options.include / "rendezvous.hpp"]
            for path in needed:
                if not path.exists():
                    raise Missing(f"{path} is missing: run `make lib` and `cargo build --release`, or add --without-ours")
            if with_libraries:
                self._compile("group_bench", "group_bench_rdzv", "-std=c++17", '-DADAPTER="adapter_rdzv.hpp"',
                              f"-I{options.include}", f"-L{options.lib}", f"-Wl,-rpath,{options.lib}",
                              "-lrendezvous")

    def build_worker(self) -> None:
        self._compile("idle_worker", "idle_worker", "-std=c++17")

    def _compile(self, source: str, program: str, *flags: str) -> None:
        say(f"building {program}")
        command = [os.environ.get("CXX", "g++"), "-O2", "-Wall", "-Wextra", "-Wpedantic", "-Werror",
                   str(HERE / f"{source}.cpp"), "-o", str(BUILD / program), *flags, "-pthread"]
        if subprocess.run(command).returncode != 0:
            raise Missing(f"could not be built: {shlex.join(command)}")

    def _find_torch(self) -> str:
        query = ("import importlib.metadata as m, importlib.util as u;"
                 "print(u.find_spec('torch').submodule_search_locations[0]); print(m.version('torch'))")
        python = self.options.torch_python
        try:
            found = subprocess.run([python, "-c", query], capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError) as problem:
            raise Missing(f"no PyTorch in {python}: run `make interop` once, which installs it, name another "
                          "Python with --torch-python, or add --without-torch") from problem
        folder, self.torch_version = found.stdout.splitlines()
        return folder

    @staticmethod
    def _pinned(core: int, *command) -> list[str]:
        return ["taskset", "-c", str(core), *map(str, command)]

    def _start(self, name: str, *command, **pipes) -> subprocess.Popen:
        return self._run(name, self._pinned(self.options.core, *command), **pipes)

    def _run(self, name: str, command: list[str], **pipes) -> subprocess.Popen:
        # PyTorch's server asks the resolver for each peer's name; where none answers, it should give up soon.
        environment = dict(os.environ, RES_OPTIONS="timeout:1 attempts:1")
        pipes = {"stdout": subprocess.PIPE, **pipes}
        with open(BUILD / f"{name}.log", "a") as log:
            process = subprocess.Popen(command, stderr=log, bufsize=0, env=environment,
                                       preexec_fn=die_with_parent, **pipes)
        self.children.callback(stop, process)
        return process

    def _start_server(self, name: str, *command) -> Server:
        process = self._start(name, *command)
        first_line = read_line(process.stdout, name, START_SECONDS)
        match = re.fullmatch(r"listening on \S+:(\d+)\s*", first_line)
        if not match:
            raise Broken(f"{name} did not say where it listens, but: {first_line.strip()}")
        return Server(name, process, int(match[1]))

    def start_pinned(self, name: str, *command, **pipes) -> subprocess.Popen:
        return self._start(name, *command, **pipes)

    def start_pinned_server(self, name: str, *command) -> Server:
        return self._start_server(name, *command)

    def start_floor(self, name: str, kind: str, sizes: list[str], world_size: int) -> Server:
        options = zip(("--greeting", "--welcome", "--frame", "--reply"), sizes, strict=True)
        return self._start_server(name, BUILD / "floor_server", kind, *(word for pair in options for word in pair),
                                  "--n", world_size)

    def start_ours(self) -> Server:
        return self._start_server("ours", self.options.rdzv, "server", "--bind", "127.0.0.1:0")

    def start_torch(self) -> Server:
        return self._start_server("torch", self.options.torch_python, HERE / "torch_server.py")

    def start_library(self, name: str, library: str) -> LibraryBench:
        return LibraryBench(name, self._start(name, BUILD / f"group_bench_{library}", stdin=subprocess.PIPE))

    def start_member(self, name: str, command: list) -> subprocess.Popen:
        """A process that is told and tells by lines, on whatever core."""
        words = [str(word) for word in command]
        process = self._run(name, words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.children.callback(stop, process)
        return process

    def start_nodes(self, name: str, commands: list[list]) -> "Nodes":
        """Processes that wait at one gate, on whatever core."""
        gate, gate_end = os.pipe()
        words, words_end = os.pipe()
        nodes = Nodes(name, gate_end, words)
        self.children.callback(nodes.stop)
        for command in commands:
            nodes.processes.append(self._run(name, [str(word) for word in command], stdin=gate, stdout=words_end))
        os.close(gate)
        os.close(words_end)
        return nodes

    def rendezvous_load(self, *arguments) -> list[dict]:
        """The figures of `load`, one object for each work."""
        command = self._pinned(self.options.core, self.options.load, "--json", *arguments)
        return self._run_json(command, "load")

    def request_sizes(self, work: list[str]) -> list[str]:
        command = [str(BUILD / "load_generator"), *work, "--sizes"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()

    def load(self, work: list[str], repetitions: int, servers: list[Server]) -> dict:
        """Figures by the name of the server; the first server is the reference."""
        command = self._pinned(self.options.core, BUILD / "load_generator", *work, "--repetitions", repetitions,
                               "--json", *(server.target for server in servers))
        ports = ", ".join(f"{server.name} is on {server.port}" for server in servers)
        return {line["target"]: line for line in self._run_json(command, ports)}

    @staticmethod
    def _run_json(command: list[str], what: str) -> list[dict]:
        try:
            run = subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS,
                                 preexec_fn=die_with_parent)
        except subprocess.TimeoutExpired as problem:
            raise Broken(f"no end after {RUN_SECONDS} s") from problem
        if run.returncode != 0:
            raise Broken(f"{run.stderr.strip()} ({what})")
        return [json.loads(line) for line in run.stdout.splitlines()]
