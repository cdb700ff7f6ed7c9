"""Rows of the agent: workers, agents and hosts that die beneath `rdzv run`, and beneath torchrun at the same time."""

import contextlib
import itertools
import os
import select
import shutil
import signal
import socket
import statistics
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from programs import BUILD, START_SECONDS, Broken, Programs, memory_kib, say, stop

WAIT_SECONDS = 75
# How long torchrun is watched for what it may never do.
WATCH_SECONDS = 20
# A worker whose peer has died fails about this much later, when its next exchange with it does.
PEER_ERROR_SECONDS = 0.1
RUN_IDS = (f"agents-{os.getpid()}-{number}" for number in itertools.count())
NEAR, FAR = "10.77.0.1", "10.77.0.2"


@dataclass(frozen=True)
class Born:
    """What a worker said when its main began."""

    at_s: float
    pid: int
    rank: int
    world_size: int


class Job:
    """The agents of one job, and the pipe through which its workers say that they are there."""

    def __init__(self, programs: Programs, name: str):
        self.programs, self.name = programs, name
        self.folder = Path(tempfile.mkdtemp(prefix="rdzv-bench-"))
        self.path = self.folder / "born"
        os.mkfifo(self.path)
        self.pipe = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        self.text = b""
        self.agents: list[subprocess.Popen] = []
        self.handles: dict[int, int] = {}

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        for agent in self.agents:
            stop(agent)
        # Of torchrun's agents, workers stay.
        for pid, handle in self.handles.items():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            os.close(handle)
        os.close(self.pipe)
        shutil.rmtree(self.folder)

    def start(self, *flags, before=(), after=()) -> subprocess.Popen:
        options = self.programs.options
        # The rows measure restarts, not the pauses between those that fail at once.
        launcher = ([options.rdzv, "run", "--restart-backoff=0"] if self.name == "ours" else
                    [options.torch_python, "-m", "torch.distributed.run", "--no-python"])
        command = [*before, *launcher, *flags, BUILD / "idle_worker", self.path, *after]
        environment = dict(os.environ, OMP_NUM_THREADS="1")
        with open(BUILD / f"{self.name}-agent.log", "a") as log:
            agent = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                     env=environment)
        self.agents.append(agent)
        return agent

    def born(self, world_size: int, count: int, within_s: float = WAIT_SECONDS) -> list[Born]:
        """The next `count` workers of a group of this size; those of a group that did not last are passed over."""
        until, group = time.monotonic() + within_s, {}
        while len(group) < count:
            ready, _, _ = select.select([self.pipe], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                raise Broken(f"{len(group)} of {count} workers of {world_size} came within {within_s} s; see "
                             f"{BUILD / self.name}-agent.log")
            *lines, self.text = (self.text + os.read(self.pipe, 65536)).split(b"\n")
            for line in lines:
                at_ns, pid, rank, size = map(int, line.split())
                with contextlib.suppress(ProcessLookupError):
                    self.handles[pid] = os.pidfd_open(pid)
                if size == world_size:
                    group[rank] = Born(at_ns / 1e9, pid, rank, size)
        return list(group.values())

    def kill(self, *pids: int) -> float:
        """When they were killed."""
        killed_s = time.monotonic()
        for pid in pids:
            # A guard may have been faster.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return killed_s

    def all_ended(self, pids: list[int], within_s: float) -> bool:
        until, handles = time.monotonic() + within_s, {self.handles[pid] for pid in pids}
        while handles:
            ended, _, _ = select.select(handles, [], [], max(0.0, until - time.monotonic()))
            if not ended:
                return False
            handles -= set(ended)
        return True


@dataclass
class Column:
    """What one launcher took, in milliseconds."""

    samples: list[float] = field(default_factory=list)
    words: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    def __str__(self) -> str:
        if not self.samples:
            return self.words or "-"
        return f"{written(self.median)} (most {written(max(self.samples))}){self.words}"

    def figures(self) -> dict:
        return {"ms": self.samples, "words": self.words}


def written(ms: float) -> str:
    return f"{ms:.1f} ms" if ms < 1000 else f"{ms / 1000:.2f} s"


def last(born: list[Born]) -> float:
    return max(worker.at_s for worker in born)


@dataclass(frozen=True)
class Row:
    id: str
    bar_ms: float

    def names(self, programs: Programs) -> list[str]:
        options = programs.options
        return ([] if options.without_torch else ["torchrun"]) + ([] if options.without_ours else ["ours"])


@dataclass(frozen=True)
class RestartRow(Row):
    """One worker is killed: until the main of the last new one."""

    workers: int

    def measure(self, programs: Programs) -> dict[str, Column]:
        with contextlib.ExitStack() as stack:
            jobs = {name: stack.enter_context(Job(programs, name)) for name in self.names(programs)}
            groups = {}
            for name, job in jobs.items():
                job.start("--standalone", "--nproc-per-node", self.workers, "--max-restarts", 1000)
                groups[name] = job.born(self.workers, self.workers)
            columns = {name: Column() for name in jobs}
            for repetition in range(programs.options.repetitions + 1):
                for name, job in jobs.items():
                    victim = groups[name][repetition % self.workers]
                    killed_s = job.kill(victim.pid)
                    groups[name] = job.born(self.workers, self.workers)
                    if repetition > 0:  # the first is the warm-up: torchrun waits at random then
                        columns[name].samples.append((last(groups[name]) - killed_s) * 1000)
            return columns


@dataclass(frozen=True)
class StartRow(Row):
    """From the start of the launcher to the main of its last worker."""

    workers: int

    def measure(self, programs: Programs) -> dict[str, Column]:
        columns = {name: Column() for name in self.names(programs)}
        for repetition in range(programs.options.repetitions + 1):
            for name, column in columns.items():
                # The slow one is as steady as it needs to be after a few.
                if name == "torchrun" and repetition > 5:
                    continue
                with Job(programs, name) as job:
                    began_s = time.monotonic()
                    job.start("--standalone", "--nproc-per-node", self.workers)
                    took_s = last(job.born(self.workers, self.workers)) - began_s
                if repetition > 0:
                    column.samples.append(took_s * 1000)
        return columns


@dataclass(frozen=True)
class StubbornRow(Row):
    """One of two workers is killed; the other ignores SIGTERM, and may take two seconds to end."""

    def measure(self, programs: Programs) -> dict[str, Column]:
        columns = {}
        for name in self.names(programs):
            columns[name] = Column()
            # torchrun's are 30 s each.
            repetitions = 1 if name == "torchrun" else max(3, programs.options.repetitions // 3)
            if name == "torchrun" and programs.options.quick:
                continue
            with Job(programs, name) as job:
                job.start("--standalone", "--nproc-per-node", 2, "--max-restarts", 100, "--shutdown-timeout", 2,
                          after=["ignores-term"])
                group = job.born(2, 2)
                for _ in range(repetitions):
                    killed_s = job.kill(next(worker.pid for worker in group if worker.rank == 1))
                    group = job.born(2, 2)
                    columns[name].samples.append((last(group) - killed_s) * 1000)
        return columns


@dataclass(frozen=True)
class NodeRow(Row):
    """The second of two agents dies, with or without its workers: until the survivor's are a group of their own."""

    workers_too: bool

    def measure(self, programs: Programs) -> dict[str, Column]:
        columns = {}
        for name in self.names(programs):
            columns[name] = Column()
            if name == "torchrun" and programs.options.quick:
                continue
            repetitions = 1 if name == "torchrun" else programs.options.repetitions
            with Job(programs, name) as job:
                self._deaths(job, columns[name], repetitions)
        return columns

    def _deaths(self, job: Job, column: Column, repetitions: int) -> None:
        port = free_port()
        backend = "c10d" if job.name == "torchrun" else "rdzv"
        flags = ["--nnodes", "1:2", "--nproc-per-node", 2, "--rdzv-id", next(RUN_IDS), "--max-restarts", 100,
                 "--rdzv-backend", backend, "--rdzv-endpoint", f"127.0.0.1:{port}", "--local-addr", "127.0.0.1"]
        # The first serves the store, and stays.
        first = job.start(*flags)
        listens(port, first)
        for _ in range(repetitions):
            second = job.start(*flags)
            group = job.born(4, 4)
            its = [worker.pid for worker in group if parent_is(worker.pid, second.pid)]
            others = [worker.pid for worker in group if worker.pid not in its]
            if len(its) != 2:
                raise Broken(f"the agent that is to die has {len(its)} workers beneath it, not 2")
            killed_s = job.kill(second.pid, *(its if self.workers_too else []))
            if job.name == "torchrun":
                if self.workers_too:
                    time.sleep(PEER_ERROR_SECONDS)
                    for pid in others:
                        os.kill(pid, signal.SIGUSR1)
                else:
                    with contextlib.suppress(Broken):
                        job.born(2, 2, WATCH_SECONDS)
                        raise AssertionError("torchrun noticed")
                    orphans = "" if job.all_ended(its, 0) else "; its workers stay as orphans"
                    column.words = f"not noticed within {WATCH_SECONDS} s{orphans}"
                    return
            column.samples.append((last(job.born(2, 2)) - killed_s) * 1000)
            if not job.all_ended(its, 5):
                raise Broken("workers of the agent that died are still there")
            second.wait()


@dataclass(frozen=True)
class SilentRow(Row):
    """The second agent's host falls silent, as if its cable were pulled."""

    def measure(self, programs: Programs) -> dict[str, Column]:
        columns = {name: Column() for name in self.names(programs) if name == "ours"}
        for name, column in columns.items():
            for _ in range(max(3, programs.options.repetitions // 5)):
                with Link() as link, Job(programs, name) as job:
                    column.samples.append(self._silence(job, link) * 1000)
        return columns

    @staticmethod
    def _silence(job: Job, link: "Link") -> float:
        flags = ["--nnodes", "1:2", "--nproc-per-node", 2, "--rdzv-id", next(RUN_IDS), "--rdzv-endpoint",
                 f"{NEAR}:29400"]
        job.start(*flags, "--local-addr", NEAR, before=link.inside(link.near))
        link.listens(29400)
        job.start(*flags, "--local-addr", FAR, before=link.inside(link.far))
        job.born(4, 4)
        # All has been acknowledged by then: what is on its way is another case.
        time.sleep(0.5)
        link.ip(link.far, "link set far down")
        silent_s = time.monotonic()
        return last(job.born(2, 2)) - silent_s


class Link:
    """Two network namespaces and a virtual cable between them."""

    def __enter__(self):
        self.near, self.far = self._namespace(), self._namespace()
        self.ip(self.near, f"link add near type veth peer name far netns {self.far.pid}")
        for where, name, address in ((self.near, "near", NEAR), (self.far, "far", FAR)):
            for arguments in ("link set lo up", f"addr add {address}/24 dev {name}", f"link set {name} up"):
                self.ip(where, arguments)
        return self

    def __exit__(self, *exception):
        for holder in (self.near, self.far):
            stop(holder)

    @staticmethod
    def _namespace() -> subprocess.Popen:
        """A process that holds it open: it says so, and waits until its stdin ends."""
        holder = subprocess.Popen(["unshare", "--net", "sh", "-c", "echo; read _"], stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE)
        if holder.stdout.readline() != b"\n":
            raise Broken("this machine gives no private network namespaces")
        return holder

    @staticmethod
    def inside(holder: subprocess.Popen) -> list[str]:
        return ["nsenter", f"--net=/proc/{holder.pid}/ns/net"]

    def ip(self, holder: subprocess.Popen, arguments: str) -> None:
        run = subprocess.run([*self.inside(holder), "ip", *arguments.split()], capture_output=True, text=True)
        if run.returncode != 0:
            raise Broken(f"ip {arguments}: {run.stderr.strip()}")

    def listens(self, port: int) -> None:
        """Waits until somebody does."""
        until = time.monotonic() + START_SECONDS
        needle = f":{port:04X} 00000000:0000 0A "
        while time.monotonic() < until:
            if needle in Path(f"/proc/{self.near.pid}/net/tcp").read_text():
                return
            time.sleep(0.01)
        raise Broken(f"nobody listens on port {port}")


@dataclass(frozen=True)
class MemoryRow(Row):
    """What the agent and its guard have resident, in KiB."""

    workers: int

    def measure(self, programs: Programs) -> dict[str, Column]:
        columns = {}
        for name in self.names(programs):
            with Job(programs, name) as job:
                agent = job.start("--standalone", "--nproc-per-node", self.workers)
                job.born(self.workers, self.workers)
                pids = [agent.pid]
                if name == "ours":
                    keepers = [pid for pid in children_of(agent.pid) if is_named(pid, "rdzv-keeper")]
                    pids += keepers + [pid for keeper in keepers for pid in children_of(keeper)]
                each = [memory_kib(pid) for pid in pids]
                resident, shared_out = (sum(memory[kind] for memory in each) / 1024 for kind in ("Rss", "Pss"))
                own = each[0]["Rss"] / 1024
                column = Column(words=f"{own:.1f} MiB"
                                + (f", with its guard {resident:.1f}" if name == "ours" else "")
                                + f" ({shared_out:.1f} proportional)")
                columns[name] = column
                columns[f"{name}-mib"] = Column(samples=[own])
        return columns


def children_of(pid: int) -> list[int]:
    children = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        children += map(int, (task / "children").read_text().split())
    return children


def is_named(pid: int, name: str) -> bool:
    return Path(f"/proc/{pid}/comm").read_text().strip() == name


def parent_is(pid: int, ancestor: int) -> bool:
    """Whether one is beneath the other."""
    while pid > 1:
        if pid == ancestor:
            return True
        status = Path(f"/proc/{pid}/stat").read_text()
        pid = int(status[status.rindex(")") + 2 :].split()[1])
    return False


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def listens(port: int, process: subprocess.Popen) -> None:
    """Waits until its store is there: the second agent must not be the one that hosts it."""
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.01)
    raise Broken(f"nobody listens on port {port}")


MEMORY_BAR_MIB = 8
ROWS = [
    *(RestartRow(f"agent-restart-{workers}", bar_ms, workers) for workers, bar_ms in ((1, 15), (4, 25), (8, 40))),
    NodeRow("agent-node-death", 250, workers_too=True),
    NodeRow("agent-alone-death", 250, workers_too=False),
    SilentRow("agent-silent-host", 7000),
    StartRow("agent-start-4", 60, workers=4),
    StubbornRow("agent-stubborn", 2200),
    MemoryRow("agent-memory-8", MEMORY_BAR_MIB, workers=8),
]


def section(programs: Programs, rows: list[Row], report) -> None:
    programs.build_worker()
    lines = []
    for row in rows:
        say(f"measuring {row.id}")
        is_memory = isinstance(row, MemoryRow)
        bar = f"{MEMORY_BAR_MIB} MiB" if is_memory else written(row.bar_ms)
        try:
            columns = row.measure(programs)
        except (Broken, OSError) as problem:
            lines.append([row.id, "-", "-", bar, report.note(row.id, f"BROKE: {problem}", {})])
            continue
        judged = columns.get("ours-mib" if is_memory else "ours")
        outcome = "not measured" if judged is None else "pass" if judged.median <= row.bar_ms else "FAIL"
        report.note(row.id, outcome, {name: column.figures() for name, column in columns.items()})
        lines.append([row.id, str(columns.get("torchrun", "-")), str(columns.get("ours", "-")), bar, outcome])
    report.table("Agents, on whatever core", "row | torchrun, median | ours, median | bar | verdict", lines)
