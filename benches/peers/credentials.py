#!/usr/bin/env python3
"""Tries to get into a server that asks for a token: without one, with a wrong one, and with a recorded greeting.

Each attempt is a connection of its own. CPU time is that of the server's process, with accepting and closing. The server and
the client share a core: what it costs to wake another core depends on the machine, above all on a virtual one.

Exit code: 0 when nothing was admitted and each attempt cost less than the bar, 1 otherwise.
"""

import argparse
import hashlib
import hmac
import os
import secrets
import socket
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

from programs import REPOSITORY, die_with_parent, stop

BAR_US = 100
TICKS = os.sysconf("SC_CLK_TCK")
NAME = b"default"
WELCOME, CHALLENGE, PROOF, ERROR = 0x8001, 0x8004, 0x8005, 0x80FF
UNAUTHENTICATED = 110


def hello(auth: bytes) -> bytes:
    """The body of a HELLO (docs/protocol/native.md, section 5.1)."""
    fields = struct.pack("<HHQQ16sIII", 1, 1, 0, 0, bytes(16), 0, 5000, 3)
    node = b"stranger"
    return fields + struct.pack("<Q", len(node)) + node + struct.pack("<Q", len(auth)) + auth


def frame(body: bytes) -> bytes:
    return struct.pack("<IHHQQ", len(body), 1, 0, 0, 0) + body


def proven(secret: bytes, client: bytes, server: bytes) -> bytes:
    """The second HELLO, with the client's proof (section 4.6)."""
    start = b"rdzv-auth-client" + client + server + bytes(32)
    proof = hmac.new(secret, start + hello(b"\2" + bytes(32) + NAME), hashlib.sha256).digest()
    return frame(hello(b"\2" + proof + NAME))


class Attempt:
    def __init__(self, port: int):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)

    def read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = self.socket.recv(count - len(data))
            if not part:
                raise SystemExit("the server closed a connection without a reason")
            data += part
        return data

    def answer(self) -> tuple[int, bytes]:
        length, kind, _, _, _ = struct.unpack("<IHHQQ", self.read(24))
        return kind, self.read(length)

    def is_admitted(self) -> bool:
        kind, body = self.answer()
        self.socket.close()
        if kind == ERROR and struct.unpack_from("<H", body)[0] == UNAUTHENTICATED:
            return False
        if kind in (PROOF, WELCOME):
            return True
        raise SystemExit(f"an answer of kind {kind:#06x}: {body!r}")

    def challenge(self, client: bytes) -> bytes:
        self.socket.sendall(b"RDZV" + frame(hello(b"\1" + client + NAME)))
        kind, nonce = self.answer()
        if kind != CHALLENGE:
            raise SystemExit(f"an answer of kind {kind:#06x} in place of a challenge")
        return nonce


def without(port: int) -> bool:
    attempt = Attempt(port)
    attempt.socket.sendall(b"RDZV" + frame(hello(b"")))
    return attempt.is_admitted()


def with_secret(port: int, secret: bytes) -> tuple[bool, bytes, bytes]:
    attempt, client = Attempt(port), secrets.token_bytes(32)
    second = proven(secret, client, attempt.challenge(client))
    attempt.socket.sendall(second)
    return attempt.is_admitted(), client, second


def replayed(port: int, client: bytes, second: bytes) -> bool:
    attempt = Attempt(port)
    attempt.challenge(client)
    attempt.socket.sendall(second)
    return attempt.is_admitted()


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rdzv", default=REPOSITORY / "target/release/rdzv", help="the program to measure")
    parser.add_argument("--attempts", type=int, default=10_000, help="attempts of each kind")
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as folder:
        secret = secrets.token_hex(32).encode()
        tokens = Path(folder) / "tokens"
        tokens.write_bytes(secret)
        command = [arguments.rdzv, "server", "--bind", "127.0.0.1:0", "--log", "error", "--auth-token-file", tokens]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=die_with_parent)
        try:
            port = int(server.stdout.readline().rsplit(":", 1)[1])
            is_admitted, client, second = with_secret(port, secret)
            if not is_admitted:
                raise SystemExit("the right token was refused")
            kinds = {
                "without a token": lambda: without(port),
                "with a wrong token": lambda: with_secret(port, b"f" * 64)[0],
                "with a recorded greeting": lambda: replayed(port, client, second),
            }
            is_good = True
            print(f"{'attempts':<26} {'number':>8} {'admitted':>9} {'server CPU':>12}   bar: 0 admitted, {BAR_US} us each")
            for name, attempt in kinds.items():
                before = cpu_seconds(server.pid)
                admitted = sum(attempt() for _ in range(arguments.attempts))
                each_us = (cpu_seconds(server.pid) - before) / arguments.attempts * 1e6
                is_good &= admitted == 0 and each_us < BAR_US
                print(f"{name:<26} {arguments.attempts:>8} {admitted:>9} {each_us:>9.1f} us")
        finally:
            stop(server)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
