"""Our client, through `rdzv store`, against PyTorch's servers: every operation, and PyTorch's client beside it."""

import subprocess
import time
import unittest

from harness import RDZV, TorchServer, connect, start_server

CALL_SECONDS = 30


class Shell:
    """Calls of one `rdzv store` on one server."""

    def __init__(self, server):
        self.start_of_line = [RDZV, "store", "--endpoint", f"127.0.0.1:{server.port}"]

    def start(self, *arguments):
        return subprocess.Popen([*self.start_of_line, *arguments], stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def finish(self, process):
        output, errors = process.communicate(timeout=CALL_SECONDS)
        return process.returncode, output, errors.decode()

    def call(self, *arguments):
        return self.finish(self.start(*arguments))


class OurClient:
    """What holds with either of PyTorch's backends."""

    backend = "libuv"

    def setUp(self):
        self.server = TorchServer(self.backend)
        self.shell = Shell(self.server)
        self.torch = connect(self.server)

    def tearDown(self):
        self.server.stop()

    def expect(self, output, *arguments):
        code, actual, errors = self.shell.call(*arguments)
        self.assertEqual((code, actual), (0, output), f"{arguments}: {errors}")

    def quiet(self, *arguments):
        self.expect(b"", *arguments)

    def refused(self, *arguments):
        """An error: a code of 2 or more, nothing on stdout, a reason on stderr."""
        code, output, errors = self.shell.call(*arguments)
        self.assertGreaterEqual(code, 2, f"{arguments}: {output!r}")
        self.assertEqual(output, b"")
        self.assertTrue(errors.strip(), "an error without a message")
        return errors

    def test_set_and_get(self):
        large = "x" * 100_000
        for key, value in (("key", "value"), ("empty", ""), ("", "of the empty key"), ("schlüssel", "größe 値"),
                           ("large", large)):
            self.quiet("set", key, value)
            self.expect(value.encode() + b"\n", "get", key)
            self.assertEqual(self.torch.get(key), value.encode())
        self.torch.set("binary", bytes(range(256)))
        self.expect(bytes(range(256)) + b"\n", "get", "binary")

    def test_get_of_a_large_value(self):
        value = bytes(range(256)) * (32 * 1024)
        self.torch.set("large", value)
        self.expect(value + b"\n", "get", "large")

    def test_get_waits(self):
        reader = self.shell.start("get", "late", "--timeout-ms", "20000")
        self.torch.set("late", "came")
        self.assertEqual(self.shell.finish(reader)[:2], (0, b"came\n"))

    def test_get_times_out(self):
        started = time.monotonic()
        self.assertIn("missing", self.refused("get", "missing", "--timeout-ms", "300"))
        self.assertGreaterEqual(time.monotonic() - started, 0.25)
        self.assertFalse(self.torch.check(["missing"]))

    def test_add(self):
        self.expect(b"5\n", "add", "n", "5")
        self.assertEqual(self.torch.add("n", -12), -7)
        self.expect(b"-8\n", "add", "n", "-1")
        self.torch.set("n", str(2**63 - 1))
        self.expect(b"-9223372036854775808\n", "add", "n", "1")
        self.torch.set("text", "no number")
        self.refused("add", "text", "1")

    def test_compare_set(self):
        self.expect(b"expected\n", "compare-set", "key", "expected", "new")
        self.assertFalse(self.torch.check(["key"]))
        self.expect(b"first\n", "compare-set", "key", "", "first")
        self.expect(b"second\n", "compare-set", "key", "first", "second")
        self.expect(b"second\n", "compare-set", "key", "other", "third")
        self.assertEqual(self.torch.get("key"), b"second")

    def test_wait_and_check(self):
        waiter = self.shell.start("wait", "a", "b")
        self.assertEqual(self.shell.call("check", "a", "b")[0], 1)
        self.torch.set("a", "1")
        self.assertEqual(self.shell.call("check", "a")[0], 0)
        self.assertEqual(self.shell.call("check", "a", "b")[0], 1)
        self.torch.set("b", "2")
        self.assertEqual(self.shell.finish(waiter)[:2], (0, b""))
        self.assertEqual(self.shell.call("check", "b", "a")[0], 0)

    def test_delete_num_keys_and_list(self):
        self.expect(b"0\n", "num-keys")
        self.expect(b"", "list")
        self.torch.multi_set(["a", "b", "c/d"], ["1", "2", "3"])
        self.expect(b"3\n", "num-keys")
        code, output, _ = self.shell.call("list")
        self.assertEqual((code, sorted(output.splitlines())), (0, [b"a", b"b", b"c/d"]))
        self.expect(b"1\n", "delete", "a")
        self.expect(b"0\n", "delete", "a")
        self.assertFalse(self.torch.check(["a"]))

    def test_append(self):
        self.quiet("append", "log", "one ")
        self.torch.append("log", "two ")
        self.quiet("append", "log", "three")
        self.expect(b"one two three\n", "get", "log")

    def test_multi_set_and_multi_get(self):
        self.quiet("multi-set", "a=1", "b=", "c=x=y")
        self.assertEqual(self.torch.multi_get(["c", "b", "a"]), [b"x=y", b"", b"1"])
        self.torch.set("d", "late")
        self.expect(b"late\n1\n\n", "multi-get", "d", "a", "b")
        names = [f"key/{number}" for number in range(1000)]
        self.quiet("multi-set", *[f"{name}=value of {name}" for name in names])
        self.assertEqual(self.torch.multi_get(names), [f"value of {name}".encode() for name in names])
        self.expect("".join(f"value of {name}\n" for name in names).encode(), "multi-get", *names)

    def test_barrier(self):
        members = [self.shell.start("barrier", "gate", "3", "--timeout-ms", "20000") for _ in range(2)]
        self.torch.barrier("gate", 3)
        self.assertEqual([self.shell.finish(member)[:2] for member in members], [(0, b"")] * 2)
        self.refused("barrier", "alone", "2", "--timeout-ms", "200")
        self.quiet("barrier", "alone", "2", "--timeout-ms", "20000")

    def test_ping(self):
        self.assertEqual(self.shell.call("ping")[0], 0)

    def test_a_server_that_goes_away(self):
        waiter = self.shell.start("get", "ready", "--timeout-ms", "20000")
        self.torch.set("ready", "v")
        self.assertEqual(self.shell.finish(waiter)[0], 0)
        blocked = self.shell.start("barrier", "gate", "2")
        # The barrier's own counter shows that it has arrived. Only CHECK may look: a WAIT from before the arrival would
        # end with the barrier, and an ADD would end the barrier itself.
        ends = time.monotonic() + CALL_SECONDS
        while not self.torch.check(["gate"]):
            self.assertLess(time.monotonic(), ends, "the barrier never arrived")
        self.server.kill()
        code, output, errors = self.shell.finish(blocked)
        self.assertGreaterEqual(code, 2)
        self.assertEqual(output, b"")
        self.assertTrue(errors.strip())


class AgainstLibuv(OurClient, unittest.TestCase):
    def test_queues(self):
        self.expect(b"0\n", "queue-len", "queue")
        self.quiet("queue-push", "queue", "first")
        self.torch.queue_push("queue", "second")
        self.expect(b"2\n", "queue-len", "queue")
        self.assertEqual(self.torch.queue_pop("queue"), b"first")
        self.expect(b"second\n", "queue-pop", "queue")
        self.refused("queue-pop", "queue", "--timeout-ms", "200")

    def test_queue_pop_waits(self):
        poppers = [self.shell.start("queue-pop", "queue", "--timeout-ms", "20000") for _ in range(3)]
        for item in ("a", "b", "c"):
            self.torch.queue_push("queue", item)
        results = [self.shell.finish(popper)[:2] for popper in poppers]
        self.assertEqual(sorted(results), [(0, b"a\n"), (0, b"b\n"), (0, b"c\n")])

    def test_check_sees_queues(self):
        self.quiet("queue-push", "queue", "item")
        self.assertEqual(self.shell.call("check", "queue")[0], 0)


class AgainstLegacy(OurClient, unittest.TestCase):
    """The server before libuv: it drops a GET of a missing key, and every queue operation."""

    backend = "legacy"

    def test_queues_are_an_error_not_a_hang(self):
        self.refused("queue-len", "queue")
        self.refused("queue-pop", "queue", "--timeout-ms", "2000")


class AgainstOurServer(OurClient, unittest.TestCase):
    """The same expectations of client and server of our own, so that a difference is known to be the other's."""

    def setUp(self):
        self.server = start_server("rdzv")
        self.shell = Shell(self.server)
        self.torch = connect(self.server)
