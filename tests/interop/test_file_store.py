"""Our file store, through `rdzv store --file`, beside PyTorch's FileStore on one file; and prefixes beside PrefixStore."""

import os
import subprocess
import tempfile
import unittest

import torch.distributed as dist

from harness import RDZV, Processes, TorchServer, connect, milliseconds

CALL_SECONDS = 30


def call(where, *arguments):
    """One `rdzv store`: its exit code, its stdout, its stderr."""
    ran = subprocess.run([RDZV, "store", *where, *arguments], stdin=subprocess.DEVNULL, capture_output=True,
                         timeout=CALL_SECONDS)
    return ran.returncode, ran.stdout, ran.stderr.decode()


class Shared(unittest.TestCase):
    def expect(self, output, *arguments):
        code, actual, errors = call(self.where, *arguments)
        self.assertEqual((code, actual), (0, output), f"{arguments}: {errors}")


class FileStore(Shared):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "store")
        self.where = ["--file", self.path]

    def open(self, world_size=-1):
        store = dist.FileStore(self.path, world_size)
        store.set_timeout(milliseconds(20000))
        return store

    def test_each_reads_what_the_other_writes(self):
        torch = self.open()
        for key, value in (("key", b"value"), ("empty", b""), ("-x", b"no deletion"), ("binary", bytes(range(1, 128)))):
            torch.set(key, value)
            self.expect(value + b"\n", "get", "--", key)
            self.expect(b"", "set", "--", "ours-" + key, os.fsdecode(value))
            self.assertEqual(torch.get("ours-" + key), value)
        self.assertEqual(torch.add("n", 5), 5)
        self.expect(b"-2\n", "add", "n", "-7")
        self.assertEqual(torch.add("n", 0), -2)
        self.expect(b"expected\n", "compare-set", "c", "expected", "new")
        self.assertFalse(torch.check(["c"]))
        self.expect(b"first\n", "compare-set", "c", "", "first")
        self.assertEqual(torch.compare_set("c", "first", "second"), b"second")
        self.expect(b"second\n", "get", "c")
        torch.delete_key("c")
        self.assertNotEqual(call(self.where, "get", "c", "--timeout-ms", "0")[0], 0)
        self.expect(b"1\n", "delete", "empty")
        self.assertFalse(torch.check(["empty"]))
        torch.multi_set(["m1", "m2"], ["x", "yy"])
        self.expect(b"yy\nx\n", "multi-get", "m2", "m1")
        # Both count the two counters of the file, too.
        self.expect(str(torch.num_keys()).encode() + b"\n", "num-keys")

    def test_numbers_that_are_none_are_refused_by_both(self):
        torch = self.open()
        torch.set("text", "no number")
        with self.assertRaises(ValueError):
            torch.add("text", 1)
        code, _, errors = call(self.where, "add", "text", "1")
        self.assertEqual(code, 2, errors)
        self.assertEqual(torch.get("text"), b"no number")

    def test_waits_end_with_the_other_side(self):
        torch = self.open()
        waiter = subprocess.Popen([RDZV, "store", *self.where, "get", "late", "--timeout-ms", "20000"],
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        torch.set("late", "came")
        self.assertEqual(waiter.communicate(timeout=CALL_SECONDS)[0], b"came\n")

        def wait_for_ours():
            return self.open().get("ours")

        waiting = Processes([wait_for_ours])
        self.expect(b"", "set", "ours", "came")
        self.assertEqual(waiting.results(), [b"came"])

    def test_one_barrier(self):
        ours = subprocess.Popen([RDZV, "store", *self.where, "barrier", "gate", "2", "--timeout-ms", "20000"],
                                stdin=subprocess.DEVNULL)
        self.open().barrier("gate", 2, milliseconds(20000))
        self.assertEqual(ours.wait(CALL_SECONDS), 0)

    def test_no_increment_and_no_append_is_lost(self):
        rounds = 40

        def torch_rank():
            store = self.open()
            for _ in range(rounds * 5):
                store.add("sum", 1)
            return True

        ranks = Processes([torch_rank, torch_rank])
        for _ in range(rounds):
            code, _, errors = call(self.where, "add", "sum", "1")
            self.assertEqual(code, 0, errors)
            # PyTorch's own append would lose every second one of these.
            code, _, errors = call(self.where, "append", "log", "x")
            self.assertEqual(code, 0, errors)
        self.assertEqual(ranks.results(), [True, True])
        torch = self.open()
        self.assertEqual(torch.add("sum", 0), rounds * 11)
        self.assertEqual(torch.get("log"), b"x" * rounds)

    def test_the_counters_are_those_of_both(self):
        torch = self.open(2)
        self.expect(b"", "set", "k", "v")
        # One object of PyTorch's is alive, and one of ours has come and gone.
        self.assertTrue(os.path.exists(self.path))
        self.expect(b"v\n", "get", "k")
        del torch
        self.assertFalse(os.path.exists(self.path), "PyTorch's was the last, and two have been there before it")

    def test_a_torn_record_is_refused_with_its_offset(self):
        torch = self.open()
        torch.set("k", "v")
        offset = os.path.getsize(self.path)
        with open(self.path, "ab") as file:
            file.write(b"\x05\x00\x00\x00/to")
        code, _, errors = call(self.where, "get", "k")
        self.assertEqual(code, 5)
        self.assertIn(f"torn record at offset {offset}", errors)
        # PyTorch would spin on it for ever.
        os.truncate(self.path, offset)

    def test_zeros_are_refused_with_their_offset(self):
        """PyTorch takes them for records without a key, counts one, and cannot list its keys any more."""
        torch = self.open()
        torch.set("k", "v")
        offset, keys = os.path.getsize(self.path), torch.num_keys()
        with open(self.path, "ab") as file:
            file.write(bytes(16))
        self.assertEqual(torch.num_keys(), keys + 1)
        with self.assertRaises(IndexError):
            torch.list_keys()
        code, _, errors = call(self.where, "get", "k")
        self.assertEqual(code, 5)
        self.assertIn(f"a record without a key at offset {offset}", errors)
        self.assertEqual(os.path.getsize(self.path), offset + 16, "it is left as it was")

    def test_records_of_any_length_at_any_place_of_a_page(self):
        """Between ours stand records that say nothing, so that a writer that is killed leaves whole ones."""
        torch = self.open()
        for length in [*range(1, 4200, 97), 9000, 70000, 4100, 4096]:
            torch.set("theirs", "t" * (length % 13))
            self.expect(b"", "set", f"ours{length}", "x" * length)
            self.expect(b"", "multi-set", "a=" + "1" * (length % 4096), f"b={length}")
            self.assertEqual(torch.get(f"ours{length}"), b"x" * length)
            self.assertEqual(torch.get("b"), str(length).encode())
        late = self.open()
        self.assertEqual(late.num_keys(), torch.num_keys())
        self.assertEqual(sorted(late.list_keys()), sorted(torch.list_keys()))
        self.expect(str(late.num_keys()).encode() + b"\n", "num-keys")
        # It counts itself in, and then there is one that ends four bytes before a page does.
        entered, header = 18, 4 + len("/edge") + 4
        length = (4092 - os.path.getsize(self.path) - entered - header) % 4096
        self.expect(b"", "set", "edge", "e" * length)
        self.assertEqual(torch.get("edge"), b"e" * length)
        with open(self.path, "rb") as file:
            self.assertEqual(file.read().count(b"e\x01\0\0\0-\x04\0\0\0\0\0\0\0\x08\0\0\0cleanup/"), 1)
        self.assertEqual(late.num_keys(), torch.num_keys())

    def test_one_count_of_both(self):
        """PyTorch's counters and ours are one: those of living and closed objects of both, in any order."""
        torch = [self.open(), self.open()]
        self.expect(b"", "set", "k", "v")
        twin = torch[0].clone()
        self.assertEqual(self.counters(), (3, 1))
        del torch, twin
        self.assertEqual(self.counters(), (0, 4))

    def counters(self):
        """The last values of the two, read as records."""
        values, offset = {}, 0
        with open(self.path, "rb") as file:
            data = file.read()
        while offset < len(data):
            pair = []
            for _ in range(2):
                length = int.from_bytes(data[offset:offset + 4], "little")
                pair.append(data[offset + 4:offset + 4 + length])
                offset += 4 + length
            values[pair[0]] = pair[1]
        return int(values[b"refcount/"]), int(values[b"cleanup/"])


class Prefixes(Shared):
    def setUp(self):
        self.server = TorchServer()
        self.addCleanup(self.server.stop)
        self.where = ["--endpoint", f"127.0.0.1:{self.server.port}"]
        self.tcp = connect(self.server)

    def test_they_compose_alike(self):
        for names in ([""], ["p"], ["a", "b"], ["a/", ""], ["x", "", "y"]):
            store = self.tcp
            for name in names:
                store = dist.PrefixStore(name, store)
            scope = [word for name in names for word in ("--scope", name)]
            store.set("theirs", "1")
            self.expect(b"1\n", "get", "theirs", *scope)
            self.expect(b"", "set", "ours", "2", *scope)
            self.assertEqual(store.get("ours"), b"2")
            code, output, errors = call(self.where, "list", *scope)
            # Beneath an empty prefix within another one, PyTorch lists keys twice.
            theirs = sorted({key.encode() for key in store.list_keys()})
            self.assertEqual((code, sorted(output.splitlines())), (0, theirs), errors)
            self.expect(str(store.num_keys()).encode() + b"\n", "num-keys", *scope)

    def test_they_meet_in_one_barrier(self):
        ours = subprocess.Popen([RDZV, "store", *self.where, "barrier", "gate", "2", "--scope", "p", "--timeout-ms",
                                 "20000"], stdin=subprocess.DEVNULL)
        dist.PrefixStore("p", self.tcp).barrier("gate", 2, milliseconds(20000))
        self.assertEqual(ours.wait(CALL_SECONDS), 0)
