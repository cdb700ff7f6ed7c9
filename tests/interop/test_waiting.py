"""What waits: timeouts and their texts, releases, barriers, cancellation, many processes, and servers that go."""

import random
import time

import torch.distributed as dist
from harness import Processes, StoreTest, connect, milliseconds

from raw_client import (
    BARRIER, CANCEL_WAIT, SET, WAIT, list_frame, number_frame, value_frame,
)


class Timeouts(StoreTest):
    """Class and text as PyTorch's users see them."""

    def test_wait(self):
        self.store.set("here", "v")
        self.assert_error(dist.DistStoreError, "wait timeout after 120ms, keys: /a, /here, /ü",
                          self.store.wait, ["a", "here", "ü"], milliseconds(120))

    def test_get_multi_get_and_queue_pop(self):
        self.store.set_timeout(milliseconds(90))
        self.store.set("here", "v")
        self.assert_error(dist.DistStoreError, "wait timeout after 90ms, keys: /a", self.store.get, "a")
        self.assert_error(dist.DistStoreError, "wait timeout after 90ms, keys: /here, /b",
                          self.store.multi_get, ["here", "b"])
        self.assert_error(dist.DistStoreError, "wait timeout after 90ms, keys: /q", self.store.queue_pop, "q")

    def test_barrier(self):
        self.assert_error(dist.DistStoreError, "barrier timeout after 110ms, key: gate",
                          self.store.barrier, "gate", 2, milliseconds(110))

    def test_timeout_zero_polls_once(self):
        self.assert_error(dist.DistStoreError, "wait timeout after 0ms, keys: /a",
                          self.store.wait, ["a"], milliseconds(0))

    def test_the_connection_goes_on_after_each_timeout(self):
        for number in range(20):
            with self.assertRaises(dist.DistStoreError):
                self.store.wait([f"missing/{number}"], milliseconds(5))
            self.assertEqual(self.store.add("n", 1), number + 1)

    def test_a_timeout_lasts_as_long_as_it_says(self):
        started = time.monotonic()
        with self.assertRaises(dist.DistStoreError):
            self.store.wait(["missing"], milliseconds(300))
        self.assertGreaterEqual(time.monotonic() - started, 0.25)

    def test_refused_connect(self):
        gone = self.server.port
        self.server.stop()
        with self.assertRaises(dist.DistNetworkError) as caught:
            dist.TCPStore("127.0.0.1", gone, None, False, timeout=milliseconds(600), wait_for_workers=False)
        self.assertEqual(
            str(caught.exception).split("\n")[0],
            f"The client socket has timed out after 600ms while trying to connect to (127.0.0.1, {gone}).")


class Releases(StoreTest):
    """A connection that is known to be parked, and processes that wait, released by writes of this one."""

    def release(self, keys, *writes, processes=2):
        """The last write must release the parked connection, and none before it."""
        waiter = self.raw()
        self.assertEqual(waiter.sync(list_frame(WAIT, [f"/{key}" for key in keys])), b"")
        blocked = Processes([lambda: connect(self.server).wait(keys, milliseconds(20000))] * processes)
        for write in writes[:-1]:
            write()
            self.assertEqual(waiter.sync(), b"")
        writes[-1]()
        self.assertEqual(waiter.read(1), b"\0")
        blocked.results()

    def test_by_set(self):
        self.release(["key"], lambda: self.store.set("key", "v"))

    def test_by_add_and_append(self):
        self.release(["n", "log"], lambda: self.store.add("n", 1), lambda: self.store.append("log", "v"))

    def test_by_multi_set(self):
        self.release(["a", "b", "c"], lambda: self.store.multi_set(["c", "x", "a", "b"], list("1234")))

    def test_by_compare_set_that_creates(self):
        self.release(["key"], lambda: self.store.compare_set("key", "", "v"))

    def test_of_several_keys_one_by_one(self):
        self.release([f"k{number}" for number in range(10)],
                     *[lambda number=number: self.store.set(f"k{number}", "v") for number in range(10)])

    def test_what_was_there_once_stays_counted(self):
        self.release(["a", "b"], lambda: self.store.set("a", "v"), lambda: self.store.delete_key("a"),
                     lambda: self.store.set("b", "v"), processes=0)

    def test_each_push_releases_one_pop(self):
        poppers = Processes([lambda: connect(self.server).queue_pop("queue") for _ in range(4)])
        for item in range(4):
            self.store.queue_push("queue", str(item))
        self.assertEqual(sorted(poppers.results()), [b"0", b"1", b"2", b"3"])
        self.assertEqual(self.store.queue_len("queue"), 0)

    def test_get_returns_what_released_it(self):
        readers = Processes([lambda: connect(self.server).get("key") for _ in range(8)])
        self.store.set("key", "released")
        self.assertEqual(readers.results(), [b"released"] * 8)

    def test_multi_get_of_keys_that_come_late(self):
        reader = Processes([lambda: connect(self.server).multi_get(["a", "b"])])
        self.store.set("b", "2")
        self.store.set("a", "1")
        self.assertEqual(reader.results(), [[b"1", b"2"]])


class Barriers(StoreTest):
    def meet(self, make, name, size):
        def member():
            store = make(connect(self.server))
            store.add("arrived", 1)
            store.barrier(name, size, milliseconds(30000))
            return store.add("arrived", 0)

        return Processes([member] * size).results()

    def test_native(self):
        for size in (1, 2, 8):
            self.store.delete_key("arrived")
            self.assertEqual(self.meet(lambda store: store, f"gate/{size}", size), [size] * size)
            self.assertEqual(self.store.get(f"gate/{size}"), str(size).encode())

    def test_of_prefix_stores(self):
        self.assertEqual(self.meet(lambda store: dist.PrefixStore("p", store), "gate", 4), [4] * 4)
        self.assertEqual(self.store.get("p/gate/num_members"), b"4")
        self.assertEqual(self.store.get("p/gate/last_member"), b"1")

    def test_one_key_is_one_barrier(self):
        self.assertEqual(self.meet(lambda store: store, "gate", 2), [2, 2])
        self.store.barrier("gate", 2, milliseconds(20000))
        self.assertEqual(self.store.get("gate"), b"3")
        self.store.delete_key("gate")
        self.assert_error(dist.DistStoreError, "barrier timeout after 60ms, key: gate",
                          self.store.barrier, "gate", 2, milliseconds(60))

    def test_who_timed_out_stays_counted(self):
        self.assert_error(dist.DistStoreError, "barrier timeout after 60ms, key: gate",
                          self.store.barrier, "gate", 2, milliseconds(60))
        self.store.barrier("gate", 2, milliseconds(20000))

    def test_no_participants_asked_for(self):
        self.store.barrier("gate", 0, milliseconds(20000))
        self.store.barrier("gate", -3, milliseconds(20000))
        self.assertEqual(self.store.get("gate"), b"2")

    def test_many_rounds(self):
        def member():
            store = connect(self.server)
            for number in range(100):
                store.barrier(f"gate/{number}", 4, milliseconds(30000))
            return store.num_keys()

        self.assertEqual(Processes([member] * 4).results(), [100] * 4)

    def test_on_no_number(self):
        self.store.set("gate", "text")
        self.assert_gone(self.store.clone().barrier, "gate", 2)
        self.assertEqual(self.store.get("gate"), b"text")


class Races(StoreTest):
    def test_waits_that_are_cancelled_while_released(self):
        """Whoever wins, the connection stays in step: the ADD after it gets the ADD's answer."""
        rounds = 250

        def waiter():
            store, timeouts = connect(self.server), 0
            for number in range(rounds):
                try:
                    store.wait([f"key/{number}"], milliseconds(number % 4))
                except dist.DistStoreError:
                    timeouts += 1
                assert store.add("seen", 1) > 0
            return timeouts

        def setter():
            store = connect(self.server)
            for number in range(rounds):
                store.wait(["seen"], milliseconds(20000))
                store.set(f"key/{number}", "v")
                store.check([f"key/{random.randrange(rounds)}"])
            return -1

        results = Processes([waiter, waiter, waiter, setter]).results()
        self.assertEqual(self.store.add("seen", 0), 3 * rounds)
        self.assertGreater(max(results), 0, "no wait was cancelled, so this raced nothing")

    def test_cancel_is_answered_after_the_release_in_the_same_segment(self):
        for number in range(100):
            client = self.raw()
            frames = (list_frame(WAIT, [f"/k{number}"]) + value_frame(SET, f"/k{number}", "v")
                      + bytes([CANCEL_WAIT]) + bytes([CANCEL_WAIT]))
            self.assertEqual(client.sync(frames), b"\0\1\1")
            client.close()

    def test_barriers_that_time_out_at_random(self):
        def member():
            store = connect(self.server)
            for number in range(100):
                try:
                    store.barrier(f"gate/{number}", 3, milliseconds(number % 5))
                except dist.DistStoreError:
                    pass
                assert store.add(f"count/{number}", 1) in (1, 2, 3)
            return True

        Processes([member] * 3).results()
        self.assertEqual([self.store.add(f"gate/{number}", 0) for number in range(100)], [3] * 100)


class ManyClients(StoreTest):
    deadline_seconds = 90

    def test_wait_for_workers(self):
        def worker():
            store = dist.TCPStore("127.0.0.1", self.server.port, 6, False, timeout=milliseconds(20000),
                                  wait_for_workers=True)
            return store.add("joined", 1)

        self.assertEqual(sorted(Processes([worker] * 6).results()), [1, 2, 3, 4, 5, 6])
        self.assertEqual(self.raw().get("init/"), b"6")
        self.assertEqual(self.store.list_keys(), ["joined"])
        self.assertEqual(self.store.num_keys(), 2)

    def test_processes_with_several_connections_each(self):
        processes, connections, rounds = 6, 20, 20

        def worker(rank):
            stores = [connect(self.server) for _ in range(connections)]
            for number in range(rounds):
                for index, store in enumerate(stores):
                    store.set(f"{rank}/{index}", str(number))
                    store.add("total", 1)
            stores[0].barrier("written", processes, milliseconds(60000))
            peer = (rank + 1) % processes
            return stores[-1].multi_get([f"{peer}/{index}" for index in range(connections)])

        results = Processes([lambda rank=rank: worker(rank) for rank in range(processes)]).results(80)
        self.assertEqual(results, [[str(rounds - 1).encode()] * connections] * processes)
        self.assertEqual(self.store.add("total", 0), processes * connections * rounds)

    def test_compare_set_counts_every_winner_once(self):
        def worker(rank):
            store = connect(self.server)
            for _ in range(40):
                current = store.get("n").decode()
                while True:
                    # The rank makes the value this worker's own: the answer tells a win from a rival's equal step.
                    desired = f"{int(current.split(':')[0]) + 1}:{rank}"
                    seen = store.compare_set("n", current, desired).decode()
                    if seen == desired:
                        break
                    current = seen

        self.store.set("n", "0:nobody")
        Processes([lambda rank=rank: worker(rank) for rank in range(4)]).results()
        self.assertEqual(self.store.get("n").split(b":")[0], b"160")


class Departures(StoreTest):
    def test_the_server_stops_while_clients_are_blocked(self):
        self.depart(lambda: self.assertEqual(self.server.stop(), 0))

    def test_the_server_is_killed_while_clients_are_blocked(self):
        self.depart(self.server.kill)
        self.server = None

    def depart(self, leave):
        def blocked(call):
            store = connect(self.server)
            store.queue_push("about to block", "1")
            self.assert_gone(call, store)

        calls = [lambda store: store.wait(["missing"]), lambda store: store.get("missing"),
                 lambda store: store.barrier("gate", 9), lambda store: store.queue_pop("queue"),
                 lambda store: store.multi_get(["missing", "other"])]
        children = Processes([lambda call=call: blocked(call) for call in calls])
        parked = [self.raw(), self.raw()]
        self.assertEqual(parked[0].sync(list_frame(WAIT, ["/missing"])), b"")
        self.assertEqual(parked[1].sync(number_frame(BARRIER, "/other gate", 2)), b"")
        for _ in calls:
            self.store.queue_pop("about to block")
        leave()
        self.assertEqual([client.read_to_end() for client in parked], [b"", b""])
        children.results()
        self.assert_gone(self.store.num_keys)

    def test_a_client_that_dies_leaves_its_marks_and_nothing_else(self):
        dying = self.raw()
        dying.sync(value_frame(SET, "/mark", "v") + number_frame(BARRIER, "/gate", 2))
        dying.leave()
        self.assertEqual(self.store.get("mark"), b"v")
        self.store.barrier("gate", 2, milliseconds(20000))
