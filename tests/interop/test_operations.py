"""Every operation of PyTorch's TCPStore client against the server under test."""

import torch.distributed as dist
from harness import StoreTest, connect, milliseconds

from raw_client import KEYS_MAX, SET, VALUE_BYTES_MAX, value_frame

INT64_MAX = 2**63 - 1
LOST_ON_READ = dist.DistNetworkError


class KeysAndValues(StoreTest):
    def test_set_get_overwrite(self):
        self.store.set("key", "first")
        self.assertEqual(self.store.get("key"), b"first")
        self.store.set("key", "second, longer")
        self.assertEqual(self.store.get("key"), b"second, longer")

    def test_empty_key_and_empty_value(self):
        self.store.set("", "value of the empty key")
        self.store.set("empty", "")
        self.assertEqual(self.store.get(""), b"value of the empty key")
        self.assertEqual(self.store.get("empty"), b"")
        self.assertTrue(self.store.check(["", "empty"]))
        self.assertEqual(sorted(self.store.list_keys()), ["", "empty"])

    def test_unicode(self):
        self.store.set("schlüssel/鍵/🔑", "größe 値")
        self.assertEqual(self.store.get("schlüssel/鍵/🔑").decode(), "größe 値")
        self.assertEqual(self.store.list_keys(), ["schlüssel/鍵/🔑"])

    def test_binary_value(self):
        value = bytes(range(256)) * 3
        self.store.set("binary", value)
        self.store.append("binary", b"\x00\xff")
        self.assertEqual(self.store.get("binary"), value + b"\x00\xff")

    def test_key_with_nul_and_slashes(self):
        for key in ("a\0b", "/", "//a//", "\n", " "):
            self.store.set(key, "v" + key)
        for key in ("a\0b", "/", "//a//", "\n", " "):
            self.assertEqual(self.store.get(key).decode(), "v" + key)
        self.assertFalse(self.store.check(["a"]))

    def test_value_of_8_mib(self):
        value = bytes(VALUE_BYTES_MAX // 256 * [0]) + bytes(range(256)) * (VALUE_BYTES_MAX // 256)
        value = value[-VALUE_BYTES_MAX:]
        self.store.set("large", value)
        self.assertEqual(self.store.get("large"), value)

    def test_value_over_8_mib_loses_only_that_connection(self):
        other = self.store.clone()
        with self.assertRaises(LOST_ON_READ):
            other.set("large", b"x" * (VALUE_BYTES_MAX + 1))
            other.num_keys()
        self.assertFalse(self.store.check(["large"]))
        self.assertEqual(self.store.num_keys(), 0)

    def test_append_creates_and_may_grow_beyond_8_mib(self):
        half = b"a" * (VALUE_BYTES_MAX - 1)
        self.store.append("log", half)
        self.assertEqual(self.store.get("log"), half)
        self.store.append("log", b"")
        self.store.append("log", b"b" * VALUE_BYTES_MAX)
        self.assertEqual(self.store.get("log"), half + b"b" * VALUE_BYTES_MAX)

    def test_key_of_8191_bytes_is_the_longest(self):
        longest, too_long = "k" * 8191, "k" * 8192
        self.store.set(longest, "v")
        self.assertEqual(self.store.get(longest), b"v")
        self.assertEqual(self.store.add("k" * 8190 + "n", 3), 3)
        self.assert_gone(self.store.clone().check, [too_long])
        self.assert_gone(self.store.clone().add, too_long, 1)
        writer = self.store.clone()
        with self.assertRaises(LOST_ON_READ):
            writer.set(too_long, "v")
            writer.num_keys()
        self.assertEqual(self.store.num_keys(), 2)

    def test_delete_key(self):
        self.store.set("key", "v")
        self.assertTrue(self.store.delete_key("key"))
        self.assertFalse(self.store.delete_key("key"))
        self.assertFalse(self.store.check(["key"]))

    def test_num_keys_and_list_keys(self):
        self.assertEqual(self.store.num_keys(), 0)
        self.assertEqual(self.store.list_keys(), [])
        self.store.set("a", "1")
        self.store.add("b", 1)
        self.store.append("c", "1")
        self.store.queue_push("queue", "1")
        self.assertEqual(self.store.num_keys(), 3)
        self.assertEqual(sorted(self.store.list_keys()), ["a", "b", "c"])

    def test_list_keys_hides_what_has_no_prefix(self):
        self.store.set("a", "1")
        self.raw().sync(value_frame(SET, "init/", "1"))
        self.assertEqual(self.store.list_keys(), ["a"])
        self.assertEqual(self.store.num_keys(), 2)

    def test_list_of_many_keys(self):
        names = [f"key/{number}" for number in range(20000)]
        self.store.multi_set(names, names)
        self.assertEqual(sorted(self.store.list_keys()), sorted(names))


class Counters(StoreTest):
    def test_add(self):
        self.assertEqual(self.store.add("n", 5), 5)
        self.assertEqual(self.store.add("n", -12), -7)
        self.assertEqual(self.store.get("n"), b"-7")
        self.assertEqual(self.store.add("zero", 0), 0)
        self.assertEqual(self.store.get("zero"), b"0")

    def test_add_wraps_around(self):
        self.assertEqual(self.store.add("n", INT64_MAX), INT64_MAX)
        self.assertEqual(self.store.add("n", 1), -INT64_MAX - 1)
        self.assertEqual(self.store.get("n"), b"-9223372036854775808")
        self.assertEqual(self.store.add("n", -1), INT64_MAX)

    def test_add_reads_numbers_as_strtoll_does(self):
        for text, number in (("12abc", 12), ("0x10", 0), ("3.9", 3), (" \t\n7", 7), ("+4", 4), ("-4", -4),
                             ("007", 7), (str(INT64_MAX), INT64_MAX), (str(-INT64_MAX - 1), -INT64_MAX - 1)):
            self.store.set("n", text)
            self.assertEqual(self.store.add("n", 0), number, text)
            self.assertEqual(self.store.get("n"), str(number).encode())

    def test_add_on_no_number_closes_only_that_connection(self):
        for text in ("", "abc", "-", " ", "+-1", str(INT64_MAX + 1), "9" * 40):
            self.store.set("n", text)
            self.assert_gone(self.store.clone().add, "n", 1)
            self.assertEqual(self.store.get("n"), text.encode())
            self.assertEqual(self.store.add("other", 0), 0)


class CompareSet(StoreTest):
    def test_missing_and_empty_expectation_creates(self):
        self.assertEqual(self.store.compare_set("key", "", "new"), b"new")
        self.assertEqual(self.store.get("key"), b"new")

    def test_missing_and_an_expectation_creates_nothing(self):
        self.assertEqual(self.store.compare_set("key", "expected", "new"), b"expected")
        self.assertFalse(self.store.check(["key"]))

    def test_equal_replaces(self):
        self.store.set("key", "old")
        self.assertEqual(self.store.compare_set("key", "old", "new"), b"new")
        self.assertEqual(self.store.get("key"), b"new")

    def test_different_keeps(self):
        self.store.set("key", "old")
        self.assertEqual(self.store.compare_set("key", "other", "new"), b"old")
        self.assertEqual(self.store.compare_set("key", "", "new"), b"old")
        self.assertEqual(self.store.get("key"), b"old")

    def test_empty_value_equals_empty_expectation(self):
        self.store.set("key", "")
        self.assertEqual(self.store.compare_set("key", "", "new"), b"new")
        self.assertEqual(self.store.compare_set("key", "new", ""), b"")
        self.assertEqual(self.store.get("key"), b"")


class Several(StoreTest):
    def test_check(self):
        self.store.set("a", "1")
        self.store.queue_push("queue", "1")
        self.assertTrue(self.store.check([]))
        self.assertTrue(self.store.check(["a", "queue", "a"]))
        self.assertFalse(self.store.check(["a", "missing"]))
        self.assertFalse(self.store.check(["missing"]))

    def test_multi_set_and_multi_get(self):
        self.store.multi_set(["a", "b", "a"], ["1", "", "2"])
        self.assertEqual(self.store.multi_get(["b", "a", "b"]), [b"", b"2", b""])
        self.store.multi_set([], [])
        self.assertEqual(self.store.multi_get([]), [])
        self.assertEqual(self.store.num_keys(), 2)

    def test_multi_set_sizes_differ(self):
        self.assert_error(dist.DistStoreError, "multiSet keys and values vectors must be of same size",
                          self.store.multi_set, ["a", "b"], ["1"])
        self.assertEqual(self.store.num_keys(), 0)

    def test_large_multi_set_and_multi_get(self):
        names = [f"key/{number}" for number in range(5000)]
        values = [f"{number}:" + "v" * (number % 900) for number in range(5000)]
        self.store.multi_set(names, values)
        self.assertEqual(self.store.multi_get(names), [value.encode() for value in values])
        self.assertEqual(self.store.num_keys(), 5000)

    def test_multi_get_of_large_values(self):
        values = [bytes([65 + number]) * (4 * 1024 * 1024) for number in range(6)]
        names = [f"large/{number}" for number in range(6)]
        self.store.multi_set(names, values)
        self.assertEqual(self.store.multi_get(names), values)

    def test_131072_keys_are_the_most_in_one_request(self):
        names = [str(number) for number in range(KEYS_MAX)]
        self.store.multi_set(names, names)
        self.assertTrue(self.store.check(names))
        self.store.wait(names, milliseconds(20000))
        self.assertEqual(self.store.multi_get(names), [name.encode() for name in names])
        for ask in (lambda store, keys: store.check(keys), lambda store, keys: store.wait(keys)):
            with self.assertRaises(dist.DistNetworkError):
                ask(self.store.clone(), [*names, "one more"])
        self.assertEqual(self.store.num_keys(), KEYS_MAX)


class Queues(StoreTest):
    def test_first_in_first_out(self):
        for item in ("a", "", "c"):
            self.store.queue_push("queue", item)
        self.assertEqual(self.store.queue_len("queue"), 3)
        self.assertEqual(self.store.queue_pop("queue"), b"a")
        self.assertEqual(self.store.queue_pop("queue", False), b"")
        self.assertEqual(self.store.queue_pop("queue", block=True), b"c")
        self.assertEqual(self.store.queue_len("queue"), 0)

    def test_empty(self):
        self.assertEqual(self.store.queue_len("queue"), 0)
        self.assert_error(dist.QueueEmptyError, "queue is empty", self.store.queue_pop, "queue", False)

    def test_a_queue_and_a_value_of_one_name_are_apart(self):
        self.store.set("name", "value")
        self.store.queue_push("name", "item")
        self.assertTrue(self.store.delete_key("name"))
        self.assertTrue(self.store.check(["name"]))
        self.assertEqual(self.store.queue_pop("name", False), b"item")
        self.assertFalse(self.store.check(["name"]))

    def test_large_items(self):
        item = b"q" * VALUE_BYTES_MAX
        self.store.queue_push("queue", item)
        self.store.queue_push("queue", "small")
        self.assertEqual(self.store.queue_pop("queue"), item)
        self.assertEqual(self.store.queue_pop("queue"), b"small")


class Handles(StoreTest):
    def test_clone_is_a_connection_of_its_own(self):
        twin = self.store.clone()
        self.store.set("key", "v")
        self.assertEqual(self.store.num_keys(), 1)
        self.assertEqual(twin.get("key"), b"v")
        self.assertEqual(twin.timeout, self.store.timeout)
        self.assertEqual(self.store.add("n", 1) + twin.add("n", 1), 3)

    def test_properties(self):
        self.assertTrue(self.store.has_extended_api())
        self.assertEqual((self.store.host, self.store.port), ("127.0.0.1", self.server.port))

    def test_set_timeout(self):
        self.store.set_timeout(milliseconds(150))
        self.assertEqual(self.store.timeout, milliseconds(150))
        self.assert_error(dist.DistStoreError, "wait timeout after 150ms, keys: /missing",
                          self.store.get, "missing")

    def test_the_legacy_backend_of_the_client_works_too(self):
        legacy = connect(self.server, use_libuv=False)
        legacy.set("key", "v")
        self.assertEqual(legacy.get("key"), b"v")
        self.assertEqual(legacy.add("n", 2), 2)
        self.assertTrue(legacy.check(["key", "n"]))


class Prefixes(StoreTest):
    def test_nested_prefixes(self):
        outer = dist.PrefixStore("a", self.store)
        inner = dist.PrefixStore("b", outer)
        inner.set("k", "v")
        self.assertEqual(self.store.get("a/b/k"), b"v")
        self.assertEqual(outer.list_keys(), ["b/k"])
        self.assertEqual(inner.list_keys(), ["k"])
        self.assertEqual(inner.num_keys(), 1)
        dist.PrefixStore("", self.store).set("k", "w")
        self.assertEqual(self.store.get("/k"), b"w")

    def test_every_operation_is_forwarded(self):
        store = dist.PrefixStore("b", dist.PrefixStore("a", self.store))
        self.assertEqual(store.add("n", 2), 2)
        store.append("log", "xy")
        store.multi_set(["m", "o"], ["1", "2"])
        self.assertEqual(store.multi_get(["o", "m", "log"]), [b"2", b"1", b"xy"])
        self.assertEqual(store.compare_set("m", "1", "3"), b"3")
        self.assertTrue(store.check(["n", "log", "m"]))
        store.wait(["n", "log"], milliseconds(20000))
        store.queue_push("q", "item")
        self.assertEqual(store.queue_len("q"), 1)
        self.assertEqual(self.store.queue_len("a/b/q"), 1)
        self.assertEqual(store.queue_pop("q"), b"item")
        self.assertEqual(store.clone().get("log"), b"xy")
        self.assertTrue(store.delete_key("o"))
        self.assertEqual(sorted(self.store.list_keys()), ["a/b/log", "a/b/m", "a/b/n"])

    def test_errors_name_the_whole_key(self):
        store = dist.PrefixStore("b", dist.PrefixStore("a", self.store))
        self.assert_error(dist.DistStoreError, "wait timeout after 80ms, keys: /a/b/x, /a/b/y",
                          store.wait, ["x", "y"], milliseconds(80))
        self.assert_error(dist.DistStoreError, "wait timeout after 80ms, keys: /a/b/gate/last_member",
                          store.barrier, "gate", 2, milliseconds(80))
        self.assertEqual(self.store.get("a/b/gate/num_members"), b"1")
