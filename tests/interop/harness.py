"""What the interop tests share: servers, processes with deadlines, and assertions on PyTorch's errors."""

import os
import pickle
import select
import signal
import subprocess
import sys
import time
import traceback
import unittest
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

import torch_server
from raw_client import RawClient

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SERVER_UNDER_TEST = os.environ.get("RDZV_SERVER_UNDER_TEST", "rdzv")
if SERVER_UNDER_TEST not in ("rdzv", "torch"):
    sys.exit(f"RDZV_SERVER_UNDER_TEST is rdzv or torch, not {SERVER_UNDER_TEST}")
RDZV = os.environ.get("RDZV", str(ROOT / "target" / "release" / "rdzv"))
START_SECONDS = 30.0
STOP_SECONDS = 10.0


def deadline(seconds):
    """Gives one test another overall deadline than run.py's default."""

    def mark(function):
        function.deadline_seconds = seconds
        return function

    return mark


def milliseconds(count):
    return timedelta(milliseconds=count)


def read_line(descriptor, seconds):
    """One line from a pipe, or an AssertionError when it does not come in time."""
    ends, line = time.monotonic() + seconds, b""
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([descriptor], [], [], max(0.0, ends - time.monotonic()))
        if not ready:
            raise AssertionError(f"no whole line within {seconds} s, only {line!r}")
        piece = os.read(descriptor, 1)
        if not piece:
            raise AssertionError(f"ended before its first whole line, after {line!r}")
        line += piece
    return line.decode().rstrip("\n")


def parse_address(line):
    prefix = "listening on "
    if not line.startswith(prefix):
        raise AssertionError(f"first line is {line!r}, expected {prefix}ADDR:PORT")
    host, _, port = line[len(prefix) :].rpartition(":")
    return host.strip("[]"), int(port)


class RdzvServer:
    """`rdzv server` as a process."""

    def __init__(self):
        self.process = subprocess.Popen(
            [RDZV, "server", "--bind", "127.0.0.1:0"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        )
        self.host, self.port = parse_address(read_line(self.process.stdout.fileno(), START_SECONDS))

    def kill(self):
        self.process.kill()
        self.process.wait(STOP_SECONDS)
        self.process.stdout.close()

    def stop(self):
        """A clean stop: SIGTERM ends it with exit code 0."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            code = self.process.wait(STOP_SECONDS)
        else:
            code = self.process.returncode
        self.process.stdout.close()
        return code


class TorchServer:
    """PyTorch's server in a forked process, which has torch imported already."""

    def __init__(self, backend="libuv"):
        reader, writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                store = torch_server.start(backend)
                os.write(writer, f"listening on 127.0.0.1:{store.port}\n".encode())
                while True:
                    signal.pause()
            finally:
                os._exit(1)
        os.close(writer)
        self.host, self.port = parse_address(read_line(reader, START_SECONDS))
        os.close(reader)

    def kill(self):
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0

    def stop(self):
        self.kill()
        return 0


def start_server(kind=None):
    return RdzvServer() if (kind or SERVER_UNDER_TEST) == "rdzv" else TorchServer()


def connect(server, timeout_ms=20000, **options):
    """A client of PyTorch; without a world size, so that it leaves no `init/` key behind."""
    options.setdefault("world_size", None)
    options.setdefault("wait_for_workers", False)
    return dist.TCPStore(
        "127.0.0.1", server.port, is_master=False, timeout=milliseconds(timeout_ms), **options
    )


def free_port():
    """A port that was free a moment ago: rank 0, whoever it is, binds it next."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    return store.port


class Processes:
    """Forked functions whose results come back through pipes."""

    def __init__(self, functions):
        self.children = []
        for function in functions:
            reader, writer = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(reader)
                try:
                    answer = (True, function())
                except BaseException:
                    answer = (False, traceback.format_exc())
                with os.fdopen(writer, "wb") as pipe:
                    pickle.dump(answer, pipe)
                os._exit(0)
            os.close(writer)
            self.children.append((pid, reader))

    def results(self, seconds=40.0):
        """The value of each function; raises on the first that failed or did not end in time."""
        ends, values = time.monotonic() + seconds, []
        for index, (pid, reader) in enumerate(self.children):
            data = b""
            while True:
                ready, _, _ = select.select([reader], [], [], max(0.0, ends - time.monotonic()))
                if not ready:
                    os.kill(pid, signal.SIGKILL)
                    raise AssertionError(f"process {index} did not end within {seconds} s")
                piece = os.read(reader, 65536)
                if not piece:
                    break
                data += piece
            os.close(reader)
            os.waitpid(pid, 0)
            success, value = pickle.loads(data) if data else (False, "died without a result")
            if not success:
                raise AssertionError(f"process {index}: {value}")
            values.append(value)
        return values


def outcome(function, *arguments):
    """("ok", value) or (class name, first line of the message): what two servers are compared by."""
    try:
        return "ok", function(*arguments)
    except Exception as error:
        return type(error).__name__, str(error).split("\n")[0]


class StoreTest(unittest.TestCase):
    """A fresh server, and one PyTorch client on it as `self.store`."""

    maxDiff = 2000

    def setUp(self):
        self.server = start_server()
        self.store = connect(self.server)

    def tearDown(self):
        # Whatever a test did to it, the server must still be alive and end cleanly when asked to.
        if self.server:
            self.assertEqual(self.server.stop(), 0, "the server did not stop with exit code 0")

    def raw(self, **options):
        client = RawClient((self.server.host, self.server.port), **options)
        self.addCleanup(client.close)
        return client

    def assert_error(self, error_class, text, function, *arguments, **named):
        """Exactly this class, and exactly this first line."""
        with self.assertRaises(error_class) as caught:
            function(*arguments, **named)
        self.assertIs(type(caught.exception), error_class)
        self.assertEqual(str(caught.exception).split("\n")[0], text)

    def assert_gone(self, function, *arguments):
        """The connection is lost, in one of the three ways in which PyTorch's client reports that."""
        with self.assertRaises(dist.DistNetworkError) as caught:
            function(*arguments)
        line = str(caught.exception).split("\n")[0]
        lost = ("Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?",
                "Connection reset by peer", "Broken pipe")
        self.assertIn(line, lost)
