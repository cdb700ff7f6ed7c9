#!/usr/bin/env python3
"""Sends a server requests that cost much, and measures what they cost the server and its other clients.

Each row starts a server of its own. Beside the costly client, another one adds to a counter all the time: its longest
round trip shows how long the server was busy in one turn. CPU time and memory are those of the server's process.

Exit code: 0 when every row is within its bar, 1 when one is not.
"""

import argparse
import os
import re
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

from programs import REPOSITORY, die_with_parent, memory_kib, stop

MIB = 1 << 20
TICKS = os.sysconf("SC_CLK_TCK")
# Code of the error of a full store.
STORE_FULL = 301
# Keys that a request may have at most.
C10D_KEYS_MAX, NATIVE_KEYS_MAX = 131_072, 32_768
# The last bytes of keys for which the product of a fast hash becomes 0.
COLLIDING = bytes.fromhex("170947b5b5d5843f")


def text(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


def listed(keys: list[bytes]) -> bytes:
    return struct.pack("<Q", len(keys)) + b"".join(map(text, keys))


def key_of(prefix: bytes, number: int) -> bytes:
    """Returns a key; those of successive numbers are far apart in order."""
    return prefix + b"%08x" % (number * 2654435761 % 2**32)


class Client:
    def __init__(self, port: int, greeting: bytes):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=120)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(greeting)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read(self, count: int) -> bytes:
        parts = []
        while count > 0:
            part = self.socket.recv(min(count, MIB))
            if not part:
                raise SystemExit("the server closed a connection")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def close(self) -> None:
        self.socket.close()


class C10d(Client):
    def __init__(self, port: int):
        super().__init__(port, struct.pack("<BI", 0, 0x3C85F7CE))

    def add(self, key: bytes, delta: int) -> int:
        self.send(b"\x04" + text(key) + struct.pack("<q", delta))
        return struct.unpack("<q", self.read(8))[0]

    def set(self, key: bytes, value: bytes) -> None:
        self.send(b"\x01" + text(key) + text(value))

    def append(self, key: bytes, value: bytes) -> None:
        self.send(b"\x09" + text(key) + text(value))

    def multi_set(self, keys: list[bytes], value: bytes = b"") -> None:
        self.send(b"\x0b" + struct.pack("<Q", len(keys)) + b"".join(text(key) + text(value) for key in keys))

    def fill(self, prefix: bytes, count: int) -> None:
        for start in range(0, count, 1000):
            numbers = range(start, min(start + 1000, count))
            self.multi_set([key_of(prefix, number) for number in numbers])
        self.add(b"/done", 1)


class Native(Client):
    """A session without a grace period, which sends no heartbeat."""

    def __init__(self, port: int, name: bytes):
        body = struct.pack("<HHQQ16sIII", 1, 1, 0, 0, bytes(16), 0, 60_000, 3) + text(name) + text(b"")
        super().__init__(port, b"RDZV" + self.frame(0x0001, 0, body))
        self.frames()

    @staticmethod
    def frame(kind: int, request: int, body: bytes) -> bytes:
        return struct.pack("<IHHQQ", len(body), kind, 0, request, 0) + body

    def ask(self, kind: int, request: int, body: bytes) -> None:
        self.send(self.frame(kind, request, body))

    def frames(self) -> tuple[int, bytes]:
        """Reads one frame: its kind and body."""
        length, kind, _, _, _ = struct.unpack("<IHHQQ", self.read(24))
        return kind, self.read(length)


class Server:
    def __init__(self, rdzv: Path, options: tuple[str, ...] = ()):
        self.process = subprocess.Popen([rdzv, "server", "--bind", "127.0.0.1:0", *options], stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, preexec_fn=die_with_parent)
        for line in self.process.stdout:
            found = re.search(rb"127\.0\.0\.1:(\d+)", line)
            if found:
                self.port = int(found[1])
                break
        threading.Thread(target=self.process.stdout.read, daemon=True).start()

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def peak_mib(self) -> float:
        return memory_kib(self.process.pid, "status")["VmHWM"] / 1024


def bystander(port: int) -> None:
    """Adds to a counter until stdin ends, and prints the longest time that this took, in seconds."""
    client, longest = C10d(port), 0.0
    client.add(b"/bystander", 1)
    print("ready", flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        before = time.monotonic()
        client.add(b"/bystander", 1)
        longest = max(longest, time.monotonic() - before)
    print(longest, flush=True)


def measured(server: Server, work) -> tuple[float, float]:
    """Returns the server's CPU time for `work`, and the bystander's longest round trip meanwhile, in seconds."""
    other = subprocess.Popen([sys.executable, __file__, "--bystander", str(server.port)], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, preexec_fn=die_with_parent)
    other.stdout.readline()
    before = server.cpu_seconds()
    work()
    spent = server.cpu_seconds() - before
    longest = float(other.communicate()[0])
    return spent, longest


def colliding_keys(server: Server) -> dict:
    """One MULTI_SET of keys that collide in a hash which multiplies their last bytes, against one of other keys."""
    client, times = C10d(server.port), []
    for tail in (bytes(range(8)), COLLIDING):
        keys = [struct.pack("<Q", number) + tail for number in range(32_768)]
        before = time.monotonic()
        client.multi_set(keys)
        client.add(b"/done", 1)
        times.append(time.monotonic() - before)
    return {"figure": f"{times[1] / times[0]:.2f} times other keys", "ok": times[1] <= 3 * times[0]}


def waiting_gets(server: Server) -> dict:
    """640 native Gets wait for a key; then it gets a value of 8 MiB. Half of the clients read late."""
    clients = [Native(server.port, b"waiting") for _ in range(640)]
    for client in clients:
        client.ask(0x0012, 1, struct.pack("<Q", 60_000) + text(b"/k"))
    writer = C10d(server.port)
    writer.add(b"/done", 1)

    def work() -> None:
        writer.set(b"/k", bytes(8 * MIB))
        for client in clients[::2] + clients[1::2]:
            client.frames()

    _, longest = measured(server, work)
    peak = server.peak_mib()
    return {"figure": f"{peak:.0f} MiB at most; another client waited {longest * 1000:.0f} ms",
            "ok": peak <= 2048 * 1.1 and longest <= 0.05}


def appends(server: Server) -> dict:
    """10,000 appends of a byte to a value of 256 MiB and to a short one, after a native session was opened."""
    native, client, times = Native(server.port, b"any"), C10d(server.port), []
    for _ in range(32):
        client.append(b"/long", bytes(8 * MIB))
    for key in (b"/short", b"/long"):
        client.add(b"/done", 1)
        before = server.cpu_seconds()
        for _ in range(10_000):
            client.append(key, b"x")
        client.add(b"/done", 1)
        times.append(max(server.cpu_seconds() - before, 1 / TICKS))
    native.close()
    return {"figure": f"{times[1] / times[0]:.1f} times a short value", "ok": times[1] <= 20 * times[0]}


def prefix(server: Server) -> dict:
    """A DeletePrefix of a million keys."""
    client, native = C10d(server.port), Native(server.port, b"any")
    for start in range(0, 1_000_000, 50_000):
        client.multi_set([b"/p/%d" % number for number in range(start, start + 50_000)])
    client.add(b"/done", 1)

    def work() -> None:
        native.ask(0x001F, 1, text(b"/p/"))
        native.frames()

    return others_wait(server, work)


def watches(server: Server) -> dict:
    """20,000 requests for watches from the oldest change of a full history on."""
    native, client = Native(server.port, b"any"), C10d(server.port)
    for start in range(0, 66_000, 6_000):
        client.multi_set([b"/h/%d" % number for number in range(start, start + 6_000)])
    client.add(b"/done", 1)
    first = client.add(b"/done", 1)
    assert first

    def work() -> None:
        ask = (native.frame(0x0023, number, text(b"/none/%d" % number) + struct.pack("<Q", 600))
               for number in range(1, 20_001))
        data = b"".join(ask)
        threading.Thread(target=native.send, args=(data,), daemon=True).start()
        for _ in range(20_000):
            native.frames()

    return others_wait(server, work)


def others_wait(server: Server, work, longest_max: float = 0.05) -> dict:
    """The figures of a row that is judged by the longest wait of another client."""
    spent, longest = measured(server, work)
    return {"figure": f"{spent:.2f} s of CPU; another client waited {longest * 1000:.1f} ms", "ok": longest <= longest_max}


def growth(server: Server) -> dict:
    """A million new keys, 1,000 at a time: the tables of the store grow."""
    client = C10d(server.port)
    return others_wait(server, lambda: client.fill(b"/g/", 1_000_000))


def all_keys(server: Server) -> dict:
    """A LIST_KEYS of a million keys."""
    client = C10d(server.port)
    client.fill(b"/l/", 1_000_000)

    def work() -> None:
        client.send(b"\x11")
        count = struct.unpack("<Q", client.read(8))[0]
        # Each key of this row has eleven bytes, but for the two counters.
        client.read(19 * (count - 2) + 2 * 8 + len(b"/done") + len(b"/bystander"))

    return others_wait(server, work)


def long_lists(server: Server) -> dict:
    """MULTI_SET, CHECK, MULTI_GET and WAIT with as many keys as a request may have."""
    client = C10d(server.port)
    client.add(b"/done", 1)
    keys = [b"/list/%d" % number for number in range(C10D_KEYS_MAX)]

    def work() -> None:
        client.multi_set(keys)
        client.send(b"\x05" + listed(keys))
        client.read(1)
        client.send(b"\x0a" + listed(keys))
        client.read(8 * len(keys))
        client.send(b"\x06" + listed([key + b"x" for key in keys]) + b"\x0c")
        client.read(1)

    return others_wait(server, work)


def long_values(server: Server) -> dict:
    """A MULTI_SET and a native MultiSet of the longest values, in a frame as long as may be."""
    client, native = C10d(server.port), Native(server.port, b"any")
    client.add(b"/done", 1)
    keys, value = [b"/long/%d" % number for number in range(31)], bytes(8 * MIB - 64)
    pairs = struct.pack("<Q", 4) + b"".join(text(key) + text(value) for key in keys[:4])

    def work() -> None:
        client.multi_set(keys, value)
        client.add(b"/done", 1)
        native.ask(0x001A, 1, pairs)
        kind, _ = native.frames()
        assert kind == 0x8010, f"frame {kind:#x}"

    return others_wait(server, work)


def long_answers(server: Server) -> dict:
    """A MULTI_GET and a native MultiGet that name one key with a value of 1 KiB as often as they may."""
    client, native, keys = C10d(server.port), Native(server.port, b"any"), [b"/k"] * C10D_KEYS_MAX
    client.set(b"/k", bytes(1024))
    client.add(b"/done", 1)

    def work() -> None:
        client.send(b"\x0a" + listed(keys))
        client.read(1032 * len(keys))
        native.ask(0x0019, 1, struct.pack("<Q", 0) + listed(keys[:NATIVE_KEYS_MAX]))
        kind, _ = native.frames()
        assert kind == 0x8013, f"frame {kind:#x}"

    return others_wait(server, work)


def random_keys(server: Server) -> dict:
    """As long_lists for keys at random among a million, and native requests with as many keys as may be."""
    client, native = C10d(server.port), Native(server.port, b"any")
    client.fill(b"/l/", 1_000_000)
    keys = [key_of(b"/l/", number * 7919 % 1_000_000) for number in range(C10D_KEYS_MAX)]
    native_list = listed(keys[:NATIVE_KEYS_MAX])
    for request in (1, 2):
        native.ask(0x0024, request, struct.pack("<Q", 0))
        native.frames()

    def work() -> None:
        client.multi_set(keys)
        for opcode, answer_bytes in ((5, 1), (6, 1), (10, 8 * len(keys))):
            client.send(bytes([opcode]) + listed(keys))
            client.read(answer_bytes)
        for request, (kind, number, answer) in enumerate([(0x0019, 0, 0x8013), (0x0025, 1, 0x8010), (0x0025, 2, 0x8010)], 3):
            native.ask(kind, request, struct.pack("<Q", number) + native_list)
            kind, _ = native.frames()
            assert kind == answer, f"frame {kind:#x}"

    return others_wait(server, work)


def ordered_store(server: Server) -> dict:
    """WAIT, MULTI_SET and native MultiSet of as many new keys as a request may have, into a million that were listed once."""
    native, client = Native(server.port, b"any"), C10d(server.port)
    client.fill(b"/l/", 1_000_000)
    native.ask(0x001E, 1, text(b"/l/") + text(b"") + struct.pack("<I", 1))
    native.frames()
    names = [key_of(b"/l/", number) for number in range(C10D_KEYS_MAX)]
    pairs = struct.pack("<Q", NATIVE_KEYS_MAX) + b"".join(text(name + b".") + text(b"") for name in names[:NATIVE_KEYS_MAX])

    def work() -> None:
        client.send(b"\x06" + listed([name + b"?" for name in names]) + b"\x0c")
        client.read(1)
        client.multi_set([name + b"!" for name in names])
        client.add(b"/done", 1)
        native.ask(0x001A, 2, pairs)
        kind, _ = native.frames()
        assert kind == 0x8010, f"frame {kind:#x}"

    return others_wait(server, work)


def barrier_names(server: Server) -> dict:
    """An arrival at a barrier with as many names as a list may have, and its cancellation."""
    native, client = Native(server.port, b"any"), C10d(server.port)
    client.add(b"/done", 1)
    names = listed([b"node%d" % number for number in range(NATIVE_KEYS_MAX)])
    body = text(b"/b") + struct.pack("<Q", 0) + text(b"node0") + struct.pack("<QB", 60_000, 1) + names

    def work() -> None:
        native.ask(0x0030, 1, body)
        client.add(b"/done", 1)
        native.ask(0x0031, 2, text(b"/b") + text(b"node0"))
        for _ in range(2):
            native.frames()

    return others_wait(server, work)


def full_store(server: Server) -> dict:
    """MultiSet, Wait and LeaseAttach of as many keys as a request may have, which a nearly full store refuses."""
    native, client = Native(server.port, b"any"), C10d(server.port)
    for number in range(15):
        client.set(b"/fill/%d" % number, bytes(4 * MIB))
    client.add(b"/done", 1)
    native.ask(0x0024, 1, struct.pack("<Q", 0))
    native.frames()
    names = [b"/list/%d" % number for number in range(NATIVE_KEYS_MAX)]
    keys = listed(names)
    pairs = struct.pack("<Q", len(names)) + b"".join(text(name) + text(b"") for name in names)

    def work() -> None:
        for request, (kind, body) in enumerate([(0x001A, pairs), (0x0015, struct.pack("<Q", 60_000) + keys),
                                                (0x0025, struct.pack("<Q", 1) + keys)], 2):
            native.ask(kind, request, body)
            kind, error = native.frames()
            assert (kind, error[:2]) == (0x80FF, struct.pack("<H", STORE_FULL)), f"frame {kind:#x}, {error[:64]}"

    return others_wait(server, work)


full_store.options = ("--stored-bytes-max", "64MiB")


def leased_keys(server: Server) -> dict:
    """A LeaseAttach of as many keys as a request may have, and the end of the lease."""
    native, client = Native(server.port, b"any"), C10d(server.port)
    client.add(b"/done", 1)
    native.ask(0x0024, 1, struct.pack("<Q", 0))
    native.frames()
    keys = listed([b"/list/%d" % number for number in range(NATIVE_KEYS_MAX)])

    def work() -> None:
        for request, (kind, body, answer) in enumerate([(0x0025, keys, 0x8010), (0x0027, b"", 0x8011)], 2):
            native.ask(kind, request, struct.pack("<Q", 1) + body)
            kind, _ = native.frames()
            assert kind == answer, f"frame {kind:#x}"

    return others_wait(server, work)


def session_end(server: Server) -> dict:
    """The end of a session with 100,000 watches, 100,000 leases and a wait for as many keys as a request may have."""
    native, client = Native(server.port, b"any"), C10d(server.port)
    client.add(b"/done", 1)
    count = 100_000
    frames = [native.frame(0x0022, 2 * number, text(b"/%d" % number) + struct.pack("<Q", 0)) +
              native.frame(0x0024, 2 * number + 1, struct.pack("<Q", 0)) for number in range(1, count + 1)]
    threading.Thread(target=native.send, args=(b"".join(frames),), daemon=True).start()
    for _ in range(2 * count):
        native.frames()
    keys = listed([b"/w/%d" % number for number in range(NATIVE_KEYS_MAX)])
    native.ask(0x0015, 2 * count + 2, struct.pack("<Q", 1_000_000) + keys)

    def work() -> None:
        native.close()
        time.sleep(3)

    return others_wait(server, work)


def leases(server: Server) -> dict:
    """200,000 leases that expire within a moment."""
    native, client = Native(server.port, b"any"), C10d(server.port)
    client.add(b"/done", 1)
    grants = b"".join(native.frame(0x0024, number, struct.pack("<Q", 3000)) for number in range(1, 200_001))

    def work() -> None:
        threading.Thread(target=native.send, args=(grants,), daemon=True).start()
        # An answer each, and the end of each.
        for _ in range(2 * 200_000):
            native.frames()

    return others_wait(server, work)


def timeouts(server: Server) -> dict:
    """100 sessions with 1,000 pops each, all of which time out at about one instant."""
    clients = [Native(server.port, b"any") for _ in range(100)]
    until = time.monotonic() + 6

    def work() -> None:
        for client in clients:
            left = struct.pack("<Q", int((until - time.monotonic()) * 1000))
            client.send(b"".join(client.frame(0x001C, number, left + text(b"/q/%d" % number)) for number in range(1, 1001)))
        for client in clients:
            for _ in range(1000):
                client.frames()

    return others_wait(server, work)


def arrivals(server: Server) -> dict:
    """A million arrivals at eight barriers, all of which time out at about one instant, before the barriers do."""
    client, first = C10d(server.port), Native(server.port, b"any")
    sessions = [Native(server.port, b"any") for _ in range(250)]
    until = time.monotonic() + 20

    def arrive(barrier: int, name: bytes, request: int, left_ms: int) -> bytes:
        body = text(b"/b/%d" % barrier) + struct.pack("<Q", 0) + text(name) + struct.pack("<QBI", left_ms, 0, 131_072)
        return Native.frame(0x0030, request, body)

    def work() -> None:
        first.send(b"".join(arrive(barrier, b"first", barrier + 1, 60_000) for barrier in range(8)))
        for number, session in enumerate(sessions):
            for start in range(1, 4001, 250):
                # A timeout begins when the server reads the request, so it has to have read the earlier ones.
                client.add(b"/done", 1)
                left_ms = int((until - time.monotonic()) * 1000)
                session.send(b"".join(arrive(number % 8, b"%d/%d" % (number, request), request, left_ms)
                                      for request in range(start, start + 250)))
        for session in sessions:
            for _ in range(4000):
                kind, _ = session.frames()
                assert kind == 0x8018, f"frame {kind:#x}"

    return others_wait(server, work)


def transact(native: Native, request: int, writes: list[bytes]) -> None:
    records = struct.pack("<Q", len(writes)) + b"".join(struct.pack("<I", len(write)) + write for write in writes)
    native.ask(0x0020, request, bytes(8) + records + bytes(8))
    kind, _ = native.frames()
    assert kind == 0x8014, f"frame {kind:#x}"


def transaction(server: Server) -> dict:
    """A transaction that writes 2,000 keys, adds to one, and removes their prefix 2,000 times."""
    native = Native(server.port, b"any")
    writes = [b"\x00" + text(b"/t/%d" % number) + text(b"") for number in range(2_000)]
    writes += [b"\x03" + text(b"/n") + struct.pack("<q", 1)] + [b"\x02" + text(b"/t/")] * 2_000

    return others_wait(server, lambda: transact(native, 1, writes))


def deletes(server: Server) -> dict:
    """A transaction that adds to a key and removes 4,095 keys at random from a million that were listed."""
    client, native = C10d(server.port), Native(server.port, b"any")
    client.fill(b"/l/", 1_000_000)
    native.ask(0x001E, 1, text(b"/l/") + text(b"") + struct.pack("<I", 1))
    native.frames()
    writes = [b"\x03" + text(b"/n") + struct.pack("<q", 1)]
    writes += [b"\x01" + text(b"/l/%d" % (number * 2654435761 % 1_000_000)) for number in range(4_095)]

    return others_wait(server, lambda: transact(native, 2, writes))


def long_queue(server: Server) -> dict:
    """A DeletePrefix of a queue with a million items, and of one with 240 items of 8 MiB."""
    native, client = Native(server.port, b"any"), C10d(server.port)
    push = b"\x0e" + text(b"/q/many") + text(b"x")
    for _ in range(1000):
        client.send(push * 1000)
    push = b"\x0e" + text(b"/q/long") + text(bytes(8 * MIB))
    for _ in range(240):
        client.send(push)
    client.add(b"/done", 1)

    def work() -> None:
        native.ask(0x001F, 1, text(b"/q/"))
        native.frames()
        # The server frees the items while it serves others.
        for _ in range(20_000):
            client.add(b"/done", 1)

    return others_wait(server, work)


def replaced_values(server: Server) -> dict:
    """A native MultiSet of short values in place of 12,000 of 255 KiB."""
    native, client = Native(server.port, b"any"), C10d(server.port)
    keys = [b"/r/%d" % number for number in range(12_000)]
    value = bytes(255 * 1024)
    for start in range(0, len(keys), 30):
        client.multi_set(keys[start:start + 30], value)
    client.add(b"/done", 1)

    def work() -> None:
        native.ask(0x001A, 1, struct.pack("<Q", len(keys)) + b"".join(text(key) + text(b"") for key in keys))
        kind, _ = native.frames()
        assert kind == 0x8010, f"frame {kind:#x}"
        for _ in range(20_000):
            client.add(b"/done", 1)

    return others_wait(server, work)


def nested_watches(server: Server) -> dict:
    """Watches of each prefix of a key of 4,000 bytes, and a MULTI_SET of as many keys that begin with it as fit."""
    native, client = Native(server.port, b"any"), C10d(server.port)
    long = b"/" + b"x" * 3999
    asked = (native.frame(0x0023, number, text(long[:number]) + struct.pack("<Q", 0)) for number in range(1, len(long)))
    data = b"".join(asked)
    threading.Thread(target=native.send, args=(data,), daemon=True).start()
    for _ in range(1, len(long)):
        native.frames()

    def work() -> None:
        client.multi_set([long + b"%d" % number for number in range(4180)])
        client.add(b"/done", 1)
        native.close()

    return others_wait(server, work)


ROWS = [colliding_keys, waiting_gets, appends, prefix, watches, growth, all_keys, long_lists, long_values,
        long_answers, random_keys, ordered_store, barrier_names, full_store, leased_keys, session_end, leases,
        timeouts, arrivals, transaction, deletes, long_queue, replaced_values, nested_watches]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rdzv", type=Path, default=REPOSITORY / "target/release/rdzv", help="our server's binary")
    parser.add_argument("--rows", default="", metavar="REGEX", help="only rows whose name matches")
    parser.add_argument("--bystander", type=int, metavar="PORT", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.bystander:
        bystander(options.bystander)
        return 0
    print("| input | measured | verdict |\n|---|---|---|")
    failed = 0
    for row in ROWS:
        if not re.search(options.rows, row.__name__):
            continue
        server = Server(options.rdzv, getattr(row, "options", ()))
        try:
            outcome = row(server)
        finally:
            stop(server.process)
        failed += not outcome["ok"]
        print(f"| {row.__name__} | {outcome['figure']} | {'pass' if outcome['ok'] else 'FAIL'} |", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
