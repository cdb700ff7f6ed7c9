"""One random sequence of operations against PyTorch's server and ours, answer by answer.

The sequence is a function of its seed (RDZV_INTEROP_SEED, printed with every failure) and of what PyTorch's server
answers, so a failure repeats. Two PyTorch clients and four raw connections take turns; after every step each raw
connection is PINGed, so it is known exactly which waits the step released.

What differs on purpose is kept out of the sequence; `test_differences.py` pins each on both sides:

| situation                                   | PyTorch's server               | rdzv                              |
|---------------------------------------------|--------------------------------|-----------------------------------|
| VALIDATE in several segments                | drops the connection           | waits for all five bytes          |
| wrong magic; first opcode not VALIDATE      | silent until the next segment  | closes at once                    |
| MULTI_SET in several segments, or refused   | early pairs are visible        | all pairs or none                 |
| COMPARE_SET that sets nothing               | wakes the key's waiters        | wakes nobody                      |
| a waiter woken by a push                    | stays on that queue's list     | leaves it                         |
| a waiter that was woken and does not pop    | the item stays for others      | the next waiter is woken          |
| WAIT on [non-empty queue, missing key]      | the key does not release it    | the key releases it               |
| every accept                                | looks up the peer's name       | never does                        |
| bind                                        | always the wildcard            | exactly the address asked for     |

Also left out: a second wait on a connection whose first is outstanding, which correct clients never send, and the
order of LIST_KEYS, which both leave open (it is sorted here).
"""

import os
import random
import struct

from harness import SERVER_UNDER_TEST, StoreTest, connect, deadline, outcome, start_server

from raw_client import (
    ADD, APPEND, BARRIER, CANCEL_WAIT, CHECK, DELETE_KEY, GET, GETNUMKEYS, HANDSHAKE_MAGIC, KEY_BYTES_MAX, KEYS_MAX,
    MULTI_GET, QUEUE_LEN, QUEUE_POP, QUEUE_PUSH, SET, VALUE_BYTES_MAX, WAIT, RawClient, as_bytes, compare_set_frame,
    field, key_frame, list_frame, multi_set_frame, number_frame, ping_frame, value_frame,
)

SEEDS = [int(text) for text in os.environ.get("RDZV_INTEROP_SEED", "20261,20262,20263,20264,20265").split(",")]
STEPS = 700
RAW_CLIENTS = 4
VALUES = ["", "v", "12abc", " 7", "-3", "value", "x" * 300, "9223372036854775807", "ü"]
KEYS = ["/a", "/b", "/c", "/d", "init/", "", "/" + "l" * 120]
COUNTERS = ["/n0", "/n1", "/n2"]
QUEUES = ["/q0", "/q1"]
BARRIERS = ["/gate0", "/gate1"]
DELTAS = [0, 1, -1, 7, 2**62, -(2**63)]


class Side:
    """One server with its clients."""

    def __init__(self, kind):
        self.kind = kind
        self.server = start_server(kind)
        self.stores = [connect(self.server), connect(self.server)]
        self.raws = [self.fresh() for _ in range(RAW_CLIENTS)]
        self.observer = self.fresh()

    def fresh(self):
        return RawClient((self.server.host, self.server.port))

    def batch(self, index, frames):
        return self.raws[index].sync(frames)

    def last_words(self, index, frames):
        """Sends frames of which the last is a violation; returns what comes before the close."""
        self.raws[index].send(frames)
        answer = self.raws[index].read_to_end()
        self.raws[index].close()
        self.raws[index] = self.fresh()
        return answer

    def leave(self, index):
        answer = self.raws[index].leave()
        self.raws[index] = self.fresh()
        return answer

    def releases(self):
        return [client.sync() for client in self.raws]

    def state(self):
        """Everything that can be read: all keys with values, all queue lengths."""
        keys = self.observer.list_keys()
        queues = [self.observer.ask(key_frame(QUEUE_LEN, name), 8) for name in QUEUES]
        return [(key, self.observer.get(key)) for key in keys], queues


class Differential(StoreTest):
    def setUp(self):
        self.server = None

    @deadline(240)
    def test_random_sequences(self):
        for seed in SEEDS:
            with self.subTest(seed=seed):
                self.sequence(seed)

    def sequence(self, seed):
        self.random = random.Random(seed)
        self.reference, self.ours = Side("torch"), Side(SERVER_UNDER_TEST)
        self.waiting = {}
        self.clear_registration = []
        for step in range(STEPS):
            self.step(seed, step)
        self.assertEqual(self.ours.server.stop(), 0)
        self.reference.server.stop()

    def both(self, where, description, act):
        expected, actual = act(self.reference), act(self.ours)
        self.assertEqual(actual, expected, f"{where}: {description}: PyTorch answers {expected!r}")
        return expected

    def step(self, seed, number):
        where = f"seed {seed}, step {number}"
        description, act = self.choose()
        self.both(where, description, act)
        for index, answer in enumerate(self.both(where, f"{description}, releases", Side.releases)):
            if answer:
                self.end_wait(index)
        while self.clear_registration:
            # Where PyTorch's server keeps a stale registration, a correct client clears it in this way.
            index = self.clear_registration.pop()
            cancel = bytes([CANCEL_WAIT])
            self.both(where, f"raw {index} clears its registration", lambda side: side.batch(index, cancel))
        if number % 10 == 9:
            self.both(where, "the whole state", Side.state)

    def end_wait(self, index):
        if self.waiting.pop(index) & set(QUEUES):
            self.clear_registration.append(index)

    def choose(self):
        kind = self.random.choices(
            ("store", "batch", "wait", "clear", "cancel", "violate", "leave"), (8, 6, 5, 3, 0.5, 0.5, 0.5))[0]
        return getattr(self, f"choose_{kind}")()

    def pick(self, *pools):
        return self.random.choice([name for pool in pools for name in pool])

    def choose_store(self):
        """One operation of a PyTorch client, which adds the `/` itself."""
        index = self.random.randrange(2)
        key, value = self.pick(KEYS[:4])[1:], self.random.choice(VALUES)
        present = sorted(key for key, _ in self.reference.state()[0] if key.startswith(b"/"))
        some = [key[1:].decode() for key in self.random.sample(present, min(len(present), 3))]
        calls = [
            ("set", key, value), ("append", key, value), ("add", self.pick(COUNTERS)[1:], self.random.choice(DELTAS)),
            ("check", some + [key]), ("delete_key", self.pick(KEYS[:4], COUNTERS, BARRIERS)[1:]), ("num_keys",),
            ("multi_set", [key, "d"], [value, "other"]), ("multi_get", some), ("wait", some),
            ("queue_push", self.pick(QUEUES)[1:], value), ("queue_pop", self.pick(QUEUES)[1:], False),
            ("queue_len", self.pick(QUEUES)[1:]), ("list_keys",),
        ] + [("get", name) for name in some] + [("compare_set", *self.comparison()) for _ in range(2)]
        name, *arguments = self.random.choice(calls)
        if name == "compare_set":
            arguments = [arguments[0].removeprefix("/"), *arguments[1:]]

        def act(side):
            status, result = outcome(getattr(side.stores[index], name), *arguments)
            return status, sorted(result) if name == "list_keys" else result

        return f"store {index} {name}{tuple(arguments)}", act

    def comparison(self):
        """A COMPARE_SET; where somebody waits on the key, only one that sets."""
        values = dict(self.reference.state()[0])
        key = self.pick(KEYS[:4])
        current = values.get(as_bytes(key))
        expected, desired = self.random.choice(VALUES), self.random.choice(VALUES)
        waited = any(key in keys for keys in self.waiting.values())
        if waited or self.random.random() < 0.4:
            expected = "" if current is None else current
        return key, expected, desired

    def frame(self):
        """One request that is answered at once, of those that may stand anywhere in a batch."""
        key, value = self.pick(KEYS), self.random.choice(VALUES)
        several = [self.pick(KEYS, COUNTERS, BARRIERS) for _ in range(self.random.randrange(5))]
        frames = [
            value_frame(SET, key, value), value_frame(APPEND, key, value), key_frame(GET, self.pick(KEYS, COUNTERS)),
            number_frame(ADD, self.pick(COUNTERS), self.random.choice(DELTAS)), bytes([GETNUMKEYS]),
            list_frame(CHECK, several), list_frame(CHECK, [self.pick(QUEUES)]), list_frame(MULTI_GET, several),
            key_frame(DELETE_KEY, self.pick(KEYS, COUNTERS, BARRIERS, QUEUES)), ping_frame(b"ping"),
            multi_set_frame([(name, value) for name in several if name in KEYS]),
            key_frame(QUEUE_POP, self.pick(QUEUES)), key_frame(QUEUE_LEN, self.pick(QUEUES)),
        ]
        return self.random.choice(frames)

    def choose_batch(self):
        """Pipelined requests in one segment. At most one push or COMPARE_SET: see the table."""
        free = [index for index in range(RAW_CLIENTS) if index not in self.waiting]
        # Mostly not from a connection that waits, since `noticing` ends its wait.
        index = self.random.choice(free if free and self.random.random() < 0.85 else range(RAW_CLIENTS))
        frames = [self.frame() for _ in range(self.random.randrange(1, 9))]
        special = self.random.randrange(4)
        if special == 0:
            frames.append(value_frame(QUEUE_PUSH, self.pick(QUEUES), self.random.choice(VALUES)))
        elif special == 1:
            # First in the batch, since what it may do was read from the state before the batch.
            frames.insert(0, compare_set_frame(*self.comparison()))
        batch = b"".join(frames)

        def act(side):
            return side.batch(index, batch)

        return f"raw {index} sends {batch.hex()}", self.noticing(index, act)

    def noticing(self, index, act):
        """A batch may end the wait of its own connection, somewhere among its answers."""
        if index not in self.waiting:
            return act

        def act_and_cancel(side):
            # CANCEL_WAIT ends whatever is left of the wait, so that the next step knows that there is none.
            return act(side), side.batch(index, bytes([CANCEL_WAIT]))

        self.waiting.pop(index)
        return act_and_cancel

    def choose_wait(self):
        free = [index for index in range(RAW_CLIENTS) if index not in self.waiting]
        if not free:
            return self.choose_cancel()
        index = self.random.choice(free)
        what = self.random.randrange(3)
        if what == 0:
            gate, size = self.pick(BARRIERS), self.random.choice([-1, 0, 1, 2, 3, 3, 4])
            names, frame = {gate}, number_frame(BARRIER, gate, size)
        elif what == 1:
            # A queue is waited on alone, and by one connection: see the table.
            idle = [queue for queue in QUEUES if not any(queue in keys for keys in self.waiting.values())]
            if not idle:
                return self.choose_cancel()
            names = {self.random.choice(idle)}
            frame = list_frame(WAIT, sorted(names))
        else:
            present = {key for key, _ in self.reference.state()[0]}
            keys = [self.pick(KEYS, COUNTERS, BARRIERS) for _ in range(self.random.randrange(4))]
            if self.random.random() < 0.7:
                keys = [key for key in keys if as_bytes(key) not in present]
            names, frame = set(keys), list_frame(WAIT, keys)

        def act(side):
            return side.batch(index, frame)

        def act_and_note(side):
            answer = act(side)
            if side is self.reference:
                if answer:
                    self.waiting.pop(index, None)
                else:
                    self.waiting[index] = names
            return answer

        return f"raw {index} waits {frame.hex()}", act_and_note

    def choose_clear(self):
        """Deletes and pops, so that there is something to wait for."""
        index = self.random.randrange(RAW_CLIENTS)
        frames = [key_frame(DELETE_KEY, self.pick(KEYS, COUNTERS, BARRIERS, BARRIERS)) for _ in range(5)]
        frames += [key_frame(QUEUE_POP, self.pick(QUEUES)) for _ in range(3)]
        batch = b"".join(frames)
        return f"raw {index} clears {batch.hex()}", lambda side: side.batch(index, batch)

    def choose_cancel(self):
        index = self.random.randrange(RAW_CLIENTS)
        self.waiting.pop(index, None)
        return f"raw {index} cancels", lambda side: side.batch(index, bytes([CANCEL_WAIT]))

    def choose_violate(self):
        index = self.random.randrange(RAW_CLIENTS)
        self.waiting.pop(index, None)
        words = [
            HANDSHAKE_MAGIC, bytes([self.random.randrange(19, 256)]), bytes([CHECK]) + struct.pack("<Q", 2**62),
            bytes([GET]) + struct.pack("<Q", KEY_BYTES_MAX + 1),
            bytes([SET]) + field("/a") + struct.pack("<Q", VALUE_BYTES_MAX + 1),
            bytes([APPEND]) + struct.pack("<Q", 2**63),
            *[bytes([opcode]) + struct.pack("<Q", KEYS_MAX + 1) for opcode in (CHECK, WAIT, MULTI_GET)],
            value_frame(SET, "/n3", "no number") + number_frame(ADD, "/n3", 1),
            value_frame(SET, "/n3", "") + number_frame(BARRIER, "/n3", 2),
        ]
        frames = self.frame() + self.random.choice(words)
        return f"raw {index} violates with {frames.hex()}", lambda side: side.last_words(index, frames)

    def choose_leave(self):
        index = self.random.randrange(RAW_CLIENTS)
        self.waiting.pop(index, None)
        return f"raw {index} leaves", lambda side: side.leave(index)
