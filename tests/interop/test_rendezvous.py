"""Rust or C++ ranks and Python ranks in one rendezvous: by tcp://, env:// and file:// URLs and with the static backend, through
one exchange and one barrier of the elastic agent's kind; and both languages read URLs, endpoints and settings alike."""

import importlib
import os
import signal
import subprocess
import tempfile
import time
from datetime import timedelta
from unittest import mock

import torch.distributed as dist
from harness import ROOT, Processes, RdzvServer, StoreTest, connect, free_port, milliseconds, start_server
from torch.distributed.elastic.rendezvous.api import RendezvousParameters, RendezvousStoreInfo
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import create_rdzv_handler
from torch.distributed.elastic.rendezvous.utils import _parse_rendezvous_config, parse_rendezvous_endpoint
from torch.distributed.elastic.utils import store as store_util

# Its package has a function of the same name.
torch_rendezvous = importlib.import_module("torch.distributed.rendezvous")
# Two programs that do the same, by the language that they are written in.
RANK_PROGRAMS = {
    "Rust": os.environ.get("RDZV_RANK", str(ROOT / "target" / "release" / "rank")),
    "C++": os.environ.get("RDZV_CPP_MEETING", str(ROOT / "target" / "cpp_meeting")),
}
PATIENCE_SECONDS = 40
WORLD_SIZE = 4
VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE")


def rank_program(*arguments, program="Rust", **variables):
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    return subprocess.Popen(
        [RANK_PROGRAMS[program], *map(str, arguments)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**environment, **variables},
    )


def work(store, rank, world_size):
    """What rank.rs does under the same name."""
    data = store_util.synchronize(store, f"data of rank {rank} in Python".encode(), rank, world_size, "exchange/", 30)
    store_util.barrier(store, world_size, "door", 30, rank=rank)
    store.set(f"left/{rank}", "")
    if rank == 0:
        store.wait([f"left/{other}" for other in range(1, world_size)], timedelta(seconds=30))
    return [value.decode() for value in data]


def python_by_url(url, rank, world_size, variables):
    os.environ.update(variables)
    meeting = dist.rendezvous(url, rank, world_size, timeout=timedelta(seconds=30))
    store, rank, world_size = next(meeting)
    return work(store, rank, world_size)


def python_static(endpoint, rank):
    parameters = RendezvousParameters("static", endpoint, "run-7", 1, WORLD_SIZE, rank=rank, timeout=30)
    handler = create_rdzv_handler(parameters)
    info = handler.next_rendezvous()
    return work(info.store, info.rank, info.world_size)


class Meetings(StoreTest):
    program = "Rust"

    def setUp(self):
        self.server = None

    def start(self, *arguments, **variables):
        return rank_program(*arguments, program=self.program, **variables)

    def ended(self, process):
        output, errors = process.communicate(timeout=PATIENCE_SECONDS)
        self.assertEqual(process.returncode, 0, errors)
        return output.splitlines()

    def meet(self, rust_ranks, start_rust, python_rank, heading=(), ending=(), hosts=True):
        """Each rank sees the data of all, whatever language each is in."""
        language = [self.program if rank in rust_ranks else "Python" for rank in range(WORLD_SIZE)]
        data = [f"data of rank {rank} in {language[rank]}" for rank in range(WORLD_SIZE)]
        pythons = [rank for rank in range(WORLD_SIZE) if rank not in rust_ranks]
        forked = Processes([lambda rank=rank: python_rank(rank) for rank in pythons])
        rusts = {rank: start_rust(rank) for rank in rust_ranks}
        for rank, process in rusts.items():
            role = "host" if rank == 0 and hosts else "client"
            joined = f"joined as {rank}/{WORLD_SIZE}, {role}"
            self.assertEqual(self.ended(process), [*heading, joined, *data, "met", *ending])
        self.assertEqual(forked.results(), [data] * len(pythons))

    def by_tcp(self, rust_ranks):
        url = f"tcp://127.0.0.1:{free_port()}"
        self.meet(
            rust_ranks,
            lambda rank: self.start("url", f"{url}?rank={rank}&world_size={WORLD_SIZE}", -1, -1),
            lambda rank: python_by_url(url, rank, WORLD_SIZE, {}),
            ending=["again: Unable to perform re-rendezvous using tcp:// method"],
        )

    def by_env(self, rust_ranks, port, hosts=True, **variables):
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(WORLD_SIZE), **variables}
        self.meet(
            rust_ranks,
            lambda rank: self.start("url", "env://", -1, -1, RANK=str(rank), **address),
            lambda rank: python_by_url("env://", -1, -1, {"RANK": str(rank), **address}),
            ending=["again: Unable to perform re-rendezvous using env:// method"],
            hosts=hosts,
        )

    def by_file(self, rust_ranks):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = os.path.join(folder.name, "a%20b;c")
        url = f"file://nobody:x{path}"
        self.meet(
            rust_ranks,
            lambda rank: self.start("url", f"{url}?rank={rank}&world_size={WORLD_SIZE}", -1, -1),
            lambda rank: python_by_url(url, rank, WORLD_SIZE, {}),
            ending=["again: Unable to perform rerendezvous using file:// method"],
            hosts=False,
        )
        return path

    def by_static(self, rust_ranks):
        endpoint = f"127.0.0.1:{free_port()}"
        self.meet(
            rust_ranks,
            lambda rank: self.start("static", endpoint, "run-7", rank, WORLD_SIZE),
            lambda rank: python_static(endpoint, rank),
            heading=[f"store at {endpoint}"],
        )

    def test_tcp_hosted_in_rust(self):
        self.by_tcp([0, 2])

    def test_tcp_hosted_in_python(self):
        self.by_tcp([1, 3])

    def test_env_hosted_in_rust(self):
        self.by_env([0, 3], free_port())

    def test_env_hosted_in_python(self):
        self.by_env([1, 2], free_port())

    def test_env_with_the_store_of_an_agent(self):
        self.server = RdzvServer()
        self.by_env([0, 2], self.server.port, hosts=False, TORCHELASTIC_USE_AGENT_STORE="True")

    def test_one_file(self):
        path = self.by_file([0, 2])
        self.assertEqual(os.listdir(os.path.dirname(path)), [], "the last has removed it")

    def test_one_file_with_rank_zero_in_python(self):
        path = self.by_file([1, 2, 3])
        self.assertEqual(os.listdir(os.path.dirname(path)), [], "the last has removed it")

    def test_a_killed_rank_leaves_the_file(self):
        """Nobody counts it out, in either language: the next run needs another path."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        for language in (self.program, "Python"):
            path = os.path.join(folder.name, language)
            witness = dist.FileStore(path, -1)
            if language == self.program:
                process = self.start("url", f"file://{path}?rank=0&world_size=2", -1, -1)
                pid, wait = process.pid, process.communicate
            else:
                pid = os.fork()
                if pid == 0:
                    python_by_url(f"file://{path}", 0, 2, {})
                    os._exit(0)
                wait = lambda pid=pid: os.waitpid(pid, 0)
            # It has given its data, and waits for that of the other.
            witness.wait(["exchange/0"], timedelta(seconds=30))
            os.kill(pid, signal.SIGKILL)
            wait()
            del witness
            for _ in range(2):
                dist.FileStore(path, 2)
            self.assertTrue(os.path.exists(path), language)
            dist.FileStore(path, 2).set("k", language)
            self.assertEqual(dist.FileStore(path, -1).get("exchange/0").decode(), f"data of rank 0 in {language}")

    def test_static_hosted_in_rust(self):
        self.by_static([0, 2])

    def test_static_hosted_in_python(self):
        self.by_static([1, 2, 3])


class MeetingsInCpp(Meetings):
    """The same through the C ABI and its C++ headers."""

    program = "C++"


class Barriers(StoreTest):
    """Barriers to which not all come. Who waits longest for a trace tells by its time whether that was needed."""

    program = "Rust"

    def setUp(self):
        self.server = start_server()

    def ended(self, process):
        output, errors = process.communicate(timeout=PATIENCE_SECONDS)
        self.assertEqual(process.returncode, 0, errors)
        return output.strip()

    def rust(self, rank, trace_timeout_ms=20000):
        arguments = ("barrier", "127.0.0.1", self.server.port, rank, 5, 1000, trace_timeout_ms)
        return rank_program(*arguments, program=self.program)

    def python(self, rank, trace_timeout=20.0):
        store = connect(self.server)
        try:
            store_util.barrier(
                store, 5, "tr", 1.0, rank=rank, rank_tracing_decoder=lambda rank: f"host{rank}",
                trace_timeout=trace_timeout,
            )
        except dist.DistStoreError as error:
            return str(error)
        return "met"

    def text(self, rank, missing):
        return (
            f"Timed out waiting on barrier on rank {rank}, for key prefix: tr "
            f"(world_size=5, missing_ranks=[{missing}], timeout=1.0)"
        )

    ASK = "[<check rank 0 (host0) for missing rank info>]"

    def test_rank_zero_in_rust_tells_python_ranks_where_to_look(self):
        pythons = Processes([lambda rank=rank: self.python(rank) for rank in (1, 3)])
        started = time.monotonic()
        self.assertEqual(self.ended(self.rust(0)), self.text(0, "host2, host4"))
        self.assertLess(time.monotonic() - started, 15, "nobody waits for a trace that cannot come")
        self.assertEqual(pythons.results(), [self.text(rank, self.ASK) for rank in (1, 3)])

    def test_rust_ranks_ask_a_rank_zero_in_python(self):
        pythons = Processes([lambda: self.python(0, trace_timeout=2.0)])
        rusts = [self.rust(rank) for rank in (2, 4)]
        self.assertEqual([self.ended(rust) for rust in rusts], [self.text(rank, self.ASK) for rank in (2, 4)])
        # Its order is that of a set.
        self.assertIn(pythons.results()[0], [self.text(0, "host1, host3"), self.text(0, "host3, host1")])

    def test_a_missing_rank_zero_is_named(self):
        pythons = Processes([lambda: self.python(1)])
        rusts = [self.rust(rank) for rank in (2, 4)]
        self.assertEqual([self.ended(rust) for rust in rusts], [self.text(rank, "host0, host3") for rank in (2, 4)])
        # PyTorch's own rank waits a second time, and learns nothing.
        self.assertTrue(pythons.results()[0].startswith("wait timeout after 1000ms, keys: /tr/last_member"))


class BarriersInCpp(Barriers):
    """The same through the C ABI and its C++ headers."""

    program = "C++"


class Published(StoreTest):
    def test_an_address_from_rust_is_read_in_python_and_back(self):
        published = rank_program("build", "127.0.0.1", self.server.port, 0)
        read = RendezvousStoreInfo.build(1, self.store, "unused")
        output, errors = published.communicate(timeout=PATIENCE_SECONDS)
        self.assertEqual(published.returncode, 0, errors)
        self.assertEqual(output.strip(), f"{read.master_addr}:{read.master_port}")
        self.assertEqual(read.master_addr, "node-0.example")
        self.assertTrue(0 < read.master_port < 65536)
        self.store.delete_key("MASTER_ADDR")
        self.store.delete_key("MASTER_PORT")
        info = RendezvousStoreInfo.build(0, self.store, "node-1", 4711)
        reader = rank_program("build", "127.0.0.1", self.server.port, 1)
        self.assertEqual(reader.communicate(timeout=PATIENCE_SECONDS)[0].strip(), "node-1:4711")
        self.assertEqual(info.master_port, 4711)


NO_VARIABLES = ("-",) * len(VARIABLES)
WHOLE = ("1", "4", "node-0", "29500", "-")
AGENT = ("0", "4", "node-0", "29500", "True")
URLS = [
    *(
        (url, rank, world_size, NO_VARIABLES)
        for url in (
            "tcp://h:1", "TCP://Node-0:29500", "tcp://[::1]:5/p?x=1#f", "tcp://user:word@h:7", "tcp://h:0", "tcp://h",
            "tcp://h:", "tcp:h:1", "tcp://h:65536", "tcp://h:65535", "tcp://h:x", "tcp://h:-1", "tcp://h: 1",
            "tcp://[::1", "tcp://::1]:5", "tcp://:1", "tcp://h:1?use_libuv=0",
            "tcp://h:1?rank=0", "tcp://h:1?rank=1&world_size=2", "tcp://h:1?rank=0=1&&world_size=+2_0",
            "tcp://h:1?rank=x&world_size=2", "tcp://h:1?rank=0&world_size=it's", "tcp://h:1?rank=0&world_size=",
            "tcp://h:1?rank", "tcp://h:1?rank=3&rank=0&world_size=2", "tcp://h:1?Rank=0&world_size=2",
            "tcp://h:1?rank= 0 &world_size=2", "tcp://h:1;rank=0", "tcp://h:1#?rank=0&world_size=1", "tcp://h:00001",
            "file:///some/f", "file://host/f", "file:/p", "file://", "file://host", "file:///f?rank=0&world_size=1",
            "file:///a%20b", "file:///a;b", "file:rel", "file:", "file:?x=1", "file:///", "file://h:x/f", "file:///f%2f%",
            "file://user:word@h:99999/f", "file://[::1]/f", "file://[x]/f", "file://[x/f", "file:///a?x=1#b", "FILE:///X",
            "file:///a#?rank=0&world_size=1", "file:///a/../b", "file:///\u00e4", "file:///a\tb ", "file:///a\\b",
            "file:///f?rank=0", "file:///f?world_size=2", "file:///f?rank=1=2&world_size=+2_0", "file:///f?rank",
            "file:///f?rank=x&world_size=2", "file:///f?rank=0&world_size=", "file:///f?rank=-1&world_size=-1",
            "nobody://h", "NoBody://h", "", "h", "//h:1", "1tcp://h:1",
            "t_p://h:1", "://h", "tcp", "tcp:", " tcp://h:1", "env://",
        )
        for rank, world_size in ((-1, -1), (0, 2), (1, 2), (0, -1), (-1, 2))
    ),
    *(
        (url, rank, world_size, variables)
        for url in ("env://", "env:", "env://h:7/p?rank=0", "env://?world_size=9", "env://?rank=x")
        for rank, world_size in ((-1, -1), (3, 5))
        for variables in (
            WHOLE, AGENT, NO_VARIABLES, *((*WHOLE[:index], bad, *WHOLE[index + 1 :]) for index in range(4)
                                          for bad in ("-", "", "x", "65536", "-1")),
        )
    ),
    # The world size is not known to the caller: the group is dynamic.
    *(
        (url, rank, "dynamic", variables)
        for url in ("env://", "tcp://h:1", "file:///f", "tcp://h:1?rank=0", "env://?x=1")
        for rank in (-1, 2)
        for variables in (WHOLE, NO_VARIABLES, ("-", *WHOLE[1:]), ("0", "", *WHOLE[2:]), ("", *WHOLE[1:]))
    ),
    *(("tcp://node-0:29500", rank, 4, AGENT) for rank in (0, 1)),
    ("tcp://node-1:29500", 0, 4, AGENT),
    ("tcp://node-0:29501", 0, 4, AGENT),
]
ENDPOINTS = [
    "", "  ", "h", " h:3 ", "h:0", "h:65535", "h:65536", "h:123456", "h:", "h:-1", "h:+1", "h: 1", "h:x", ":80", "[]",
    "[]:3", "[", "]", "a b:3", "http://x:3", "[::1]", "[::1]:5", "[::1", "h_x:3", "a-b.c:3", "10.0.0.1:5", "[h]:3",
    "m\u00fcnchen:3", "::1:29400", "h:00080", "[::1]:", "a:b:3", "[a]:[b]", "h:\u0663",
]
# Right here; cut at the last colon there, which is a misreading.
BARE_IPV6 = {"::1": "::1 -1", "2001:db8::7": "2001:db8::7 -1", "::": ":: -1", "::1:2940": "::1:2940 -1"}
CONFIGS = ["", "  ", "a=1", " a = 1 , b= x y ", "a=1=2", "b=2,a=1,b=3", "=1", "a=1,", ",a=1", " = ", "a", "a=", "x=1, a = "]


class Readings(StoreTest):
    """Both languages make the same of the same text."""

    def setUp(self):
        self.server = None

    def read(self, lines):
        text = "".join("\x1f".join(map(str, line)) + "\n" for line in lines)
        run = subprocess.run(
            [RANK_PROGRAMS["Rust"], "read"], input=text, stdout=subprocess.PIPE, text=True, timeout=PATIENCE_SECONDS
        )
        self.assertEqual(run.returncode, 0)
        answers = run.stdout.splitlines()
        self.assertEqual(len(answers), len(lines))
        return answers

    def compare(self, lines, ours, theirs):
        different = [(line, *pair) for line, *pair in zip(lines, ours, theirs) if pair[0] != pair[1]]
        self.assertEqual(different, [])

    def torch_url(self, url, rank, world_size, variables):
        made = {}

        def tcp_store(host_name=None, port=None, world_size=None, is_master=None, **_):
            if world_size == 0:
                raise ValueError("TCPStore world size cannot be 0")
            made["text"] = f"{'Host' if is_master else 'Client'} {host_name} {port}"

        def file_store(path, _):
            made["text"] = path

        present = {name: value for name, value in zip(VARIABLES, variables) if value != "-"}
        absent = [name for name in VARIABLES if name in os.environ]
        with mock.patch.object(torch_rendezvous, "TCPStore", tcp_store), \
                mock.patch.object(torch_rendezvous, "FileStore", file_store), mock.patch.dict(os.environ):
            for name in absent:
                del os.environ[name]
            os.environ.update(present)
            try:
                if world_size == "dynamic":
                    steps = torch_rendezvous._rendezvous_helper(url, rank, None)
                else:
                    steps = torch_rendezvous.rendezvous(url, rank, world_size)
                _, rank, world_size = next(steps)
            except Exception as error:
                return f"{type(error).__name__}: {error}"
        return f"{made['text']} {rank}/{world_size}"

    def test_urls(self):
        ours = self.read([("url", url, rank, world_size, *variables) for url, rank, world_size, variables in URLS])
        # Python tells of a missing value in words about a list.
        ours = ["IndexError: list index out of range" if text.startswith("IndexError") else text for text in ours]
        self.compare(URLS, ours, [self.torch_url(*line) for line in URLS])

    def torch_parse(self, function, *arguments):
        try:
            return function(*arguments)
        except ValueError as error:
            return f"ValueError: {error}"

    def test_endpoints(self):
        def parse(text):
            host, port = parse_rendezvous_endpoint(text, -1)
            return f"{host} {port}"

        ours = self.read([("endpoint", text) for text in ENDPOINTS])
        self.compare(ENDPOINTS, ours, [self.torch_parse(parse, text) for text in ENDPOINTS])
        self.assertEqual(self.read([("endpoint", text) for text in BARE_IPV6]), list(BARE_IPV6.values()))
        for text, right in BARE_IPV6.items():
            self.assertNotEqual(self.torch_parse(parse, text), right)

    def test_configurations(self):
        def parse(text):
            return ";".join(f"{key}={value}" for key, value in sorted(_parse_rendezvous_config(text).items()))

        ours = self.read([("config", text) for text in CONFIGS])
        self.compare(CONFIGS, ours, [self.torch_parse(parse, text) for text in CONFIGS])
