"""A small c10d client that speaks bytes: for pipelined frames, malformed frames and replies seen one by one."""

import socket
import struct

VALIDATE, SET, COMPARE_SET, GET, ADD, CHECK, WAIT, GETNUMKEYS, DELETE_KEY, APPEND = range(10)
MULTI_GET, MULTI_SET, CANCEL_WAIT, PING, QUEUE_PUSH, QUEUE_POP, QUEUE_LEN, LIST_KEYS, BARRIER = range(10, 19)

MAGIC = 0x3C85F7CE
KEY_BYTES_MAX = 8192
VALUE_BYTES_MAX = 8 * 1024 * 1024
KEYS_MAX = 131072

HANDSHAKE_MAGIC = struct.pack("<BI", VALIDATE, MAGIC)


def as_bytes(text):
    return text.encode() if isinstance(text, str) else text


def field(text):
    raw = as_bytes(text)
    return struct.pack("<Q", len(raw)) + raw


def key_frame(opcode, key):
    """GET, DELETE_KEY, QUEUE_POP, QUEUE_LEN."""
    return bytes([opcode]) + field(key)


def value_frame(opcode, key, value):
    """SET, APPEND, QUEUE_PUSH."""
    return bytes([opcode]) + field(key) + field(value)


def number_frame(opcode, key, number):
    """ADD, BARRIER."""
    return bytes([opcode]) + field(key) + struct.pack("<q", number)


def list_frame(opcode, keys):
    """CHECK, WAIT, MULTI_GET."""
    return bytes([opcode]) + struct.pack("<Q", len(keys)) + b"".join(field(key) for key in keys)


def compare_set_frame(key, expected, desired):
    return bytes([COMPARE_SET]) + field(key) + field(expected) + field(desired)


def multi_set_frame(pairs):
    body = b"".join(field(key) + field(value) for key, value in pairs)
    return bytes([MULTI_SET]) + struct.pack("<Q", len(pairs)) + body


def ping_frame(nonce):
    return bytes([PING]) + nonce


class RawClient:
    """One connection. Every read has a deadline; a peer that says nothing is a TimeoutError, not a hang."""

    def __init__(self, address, handshake=True, timeout_seconds=20.0):
        self.socket = socket.create_connection(address, timeout=timeout_seconds)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.markers = 0
        self.buffer = b""
        if handshake:
            self.send(HANDSHAKE_MAGIC)
            self.sync()

    def send(self, frame):
        self.socket.sendall(frame)

    def read(self, count):
        while len(self.buffer) < count:
            piece = self.socket.recv(65536)
            if not piece:
                raise EOFError(f"closed with {len(self.buffer)} of {count} bytes received")
            self.buffer += piece
        taken, self.buffer = self.buffer[:count], self.buffer[count:]
        return taken

    def read_number(self, layout="<q"):
        return struct.unpack(layout, self.read(struct.calcsize(layout)))[0]

    def read_field(self):
        return self.read(self.read_number("<Q"))

    def ask(self, frame, count):
        """Sends one request whose reply has `count` bytes."""
        self.send(frame)
        return self.read(count)

    def get(self, key):
        self.send(key_frame(GET, key))
        return self.read_field()

    def list_keys(self):
        self.send(bytes([LIST_KEYS]))
        return sorted(self.read_field() for _ in range(self.read_number()))

    def next_marker(self):
        """A PING nonce that occurs in no other reply: it starts with bytes that no key, value or length has."""
        self.markers += 1
        return b"\xa5\xc3" + struct.pack(">H", self.markers % 65536)

    def sync(self, batch=b""):
        """Sends the batch and a PING in one segment; returns all bytes answered before the PING's echo.

        Since requests are answered in order, the echo proves that the whole batch was applied, including requests
        without a reply.
        """
        marker = self.next_marker()
        self.send(batch + ping_frame(marker))
        while marker not in self.buffer:
            piece = self.socket.recv(65536)
            if not piece:
                raise EOFError(f"closed after {self.buffer!r}")
            self.buffer += piece
        answer, _, self.buffer = self.buffer.partition(marker)
        return answer

    def read_to_end(self):
        """All bytes until the peer closes. A reset counts as the end."""
        try:
            while piece := self.socket.recv(65536):
                self.buffer += piece
        except (ConnectionResetError, BrokenPipeError):
            pass
        taken, self.buffer = self.buffer, b""
        return taken

    def leave(self):
        """Half-closes and waits until the server has closed too, hence has forgotten this connection."""
        self.socket.shutdown(socket.SHUT_WR)
        rest = self.read_to_end()
        self.close()
        return rest

    def close(self):
        self.socket.close()
