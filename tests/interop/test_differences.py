"""What our server does differently from PyTorch's on purpose: each pinned on both servers.

The side of PyTorch stands here too, so that a new release that behaves otherwise is noticed, and the table in
`test_differential.py` stays true.
"""

import select
import time
import unittest

from harness import SERVER_UNDER_TEST, start_server

from raw_client import (
    CHECK, HANDSHAKE_MAGIC, MULTI_SET, QUEUE_PUSH, SET, WAIT, RawClient, compare_set_frame, field, list_frame,
    multi_set_frame, ping_frame, value_frame,
)

NONCE = b"abcd"
# How long a server must have said nothing to count as silent; one that closes ends the test long before.
SILENCE_SECONDS = 2.0


def wait(*keys):
    return list_frame(WAIT, keys)


class Differences(unittest.TestCase):
    def setUp(self):
        self.sides = {"torch": start_server("torch"), SERVER_UNDER_TEST: start_server()}

    def tearDown(self):
        for server in self.sides.values():
            self.assertEqual(server.stop(), 0)

    def on_both(self, scenario, torch, rdzv):
        for kind, server in self.sides.items():
            with self.subTest(server=kind):
                clients = [RawClient((server.host, server.port)) for _ in range(2)]
                expected = {"torch": torch, "rdzv": rdzv}[kind]
                self.assertEqual(scenario(server, *clients), expected)
                for client in clients:
                    client.close()

    def test_validate_in_two_segments(self):
        def scenario(server, other, _):
            client = RawClient((server.host, server.port), handshake=False)
            client.send(HANDSHAKE_MAGIC[:2])
            # Both servers have seen the first piece by then: they answer one connection's segments in turn.
            other.sync()
            try:
                client.send(HANDSHAKE_MAGIC[2:] + ping_frame(NONCE))
                return client.read(4)
            except (EOFError, ConnectionError):
                return b"closed"

        self.on_both(scenario, torch=b"closed", rdzv=NONCE)

    def test_bad_first_bytes(self):
        def scenario(server, *_):
            clients = [RawClient((server.host, server.port), handshake=False) for _ in range(3)]
            for client, first in zip(clients, (b"\x00\x01\x02\x03\x04", b"\x07", b"\x41")):
                client.send(first)
            ends, closed = time.monotonic() + SILENCE_SECONDS, []
            while len(closed) < len(clients) and time.monotonic() < ends:
                silent = {client.socket: client for client in clients if client not in closed}
                ready, _, _ = select.select(list(silent), [], [], max(0.0, ends - time.monotonic()))
                closed += [silent[ended] for ended in ready if silent[ended].read_to_end() == b""]
            for client in clients:
                client.close()
            return len(closed)

        self.on_both(scenario, torch=0, rdzv=3)

    def test_multi_set_in_two_segments(self):
        def scenario(_, writer, reader):
            frame = multi_set_frame([("/early", "1"), ("/late", "2")])
            # A complete request in front shows, by its answer, that the server has read this far.
            writer.send(ping_frame(NONCE) + frame[:-1])
            writer.read(4)
            seen = [reader.ask(list_frame(CHECK, ["/early"]), 1)]
            writer.sync(frame[-1:])
            return seen + [reader.ask(list_frame(CHECK, ["/early", "/late"]), 1)]

        self.on_both(scenario, torch=[b"\0", b"\0"], rdzv=[b"\1", b"\0"])

    def test_multi_set_with_a_refused_pair(self):
        def scenario(_, writer, reader):
            oversized = (2**40).to_bytes(8, "little")
            writer.send(bytes([MULTI_SET]) + (2).to_bytes(8, "little") + field("/early") + field("1") + oversized)
            writer.read_to_end()
            return reader.ask(list_frame(CHECK, ["/early"]), 1)

        self.on_both(scenario, torch=b"\0", rdzv=b"\1")

    def test_compare_set_that_sets_nothing(self):
        def scenario(_, waiter, writer):
            waiter.sync(wait("/key"))
            writer.sync(compare_set_frame("/key", "expected", "desired"))
            return waiter.sync()

        self.on_both(scenario, torch=b"\0", rdzv=b"")

    def test_waiter_released_by_a_push_leaves_the_queue(self):
        def scenario(_, waiter, writer):
            waiter.sync(wait("/queue"))
            writer.sync(value_frame(QUEUE_PUSH, "/queue", "1"))
            waiter.sync(wait("/key"))
            writer.sync(value_frame(QUEUE_PUSH, "/queue", "2"))
            return waiter.sync()

        self.on_both(scenario, torch=b"\0", rdzv=b"")

    def test_waiter_that_does_not_pop_leaves_the_item_to_the_next(self):
        def scenario(server, waiter, other):
            writer = RawClient((server.host, server.port))
            waiter.sync(wait("/queue"))
            other.sync(wait("/queue"))
            writer.sync(value_frame(QUEUE_PUSH, "/queue", "1"))
            # It was woken, and sends another request than the pop.
            waiter.sync(value_frame(SET, "/key", "v"))
            answer = other.sync()
            writer.close()
            return answer

        self.on_both(scenario, torch=b"", rdzv=b"\0")

    def test_wait_on_a_filled_queue_and_a_missing_key(self):
        def scenario(_, waiter, writer):
            writer.sync(value_frame(QUEUE_PUSH, "/queue", "1"))
            waiter.sync(wait("/queue", "/key"))
            writer.sync(value_frame(SET, "/key", "v"))
            return waiter.sync()

        self.on_both(scenario, torch=b"", rdzv=b"\0")
