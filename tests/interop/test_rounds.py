"""PyTorch's workers in the rounds of a native rendezvous: they share its keys, and those of a dead round write no more."""

import os
import subprocess
import sys
import time

import torch.distributed as dist
from harness import HERE, ROOT, Processes, StoreTest, connect, deadline, read_line

NODE = os.environ.get("RDZV_NODE", str(ROOT / "target" / "release" / "node"))
PATIENCE_SECONDS = 40
LOST = ("Failed to recv, got 0 bytes", "Connection reset by peer", "Broken pipe")


class Child:
    """A process that says lines and is told lines."""

    def __init__(self, *command, **variables):
        self.process = subprocess.Popen(
            list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **variables}
        )

    def told(self, line):
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def says(self, beginning):
        """The next line that begins like this."""
        while True:
            line = read_line(self.process.stdout.fileno(), PATIENCE_SECONDS)
            if line.startswith(beginning):
                return line

    def kill(self):
        self.process.kill()
        self.process.wait(PATIENCE_SECONDS)
        self.process.stdin.close()
        self.process.stdout.close()


class Rounds(StoreTest):
    # By the number of the round: what its keys begin with, which only its nodes are told.
    prefixes = {}

    def child(self, *command, **variables):
        child = Child(*command, **variables)
        self.addCleanup(lambda: child.process.poll() is None and child.kill())
        return child

    def node(self, name):
        node = self.child(NODE, "127.0.0.1", self.server.port, name, "nodes_min=2", "nodes_max=2")
        node.says("open")
        return node

    def meet(self, number, *nodes):
        for node in nodes:
            node.told("join")
        for rank, node in enumerate(nodes):
            joined, prefix = node.says("joined").split(" with the prefix /torch.rendezvous.run.")
            self.assertEqual(joined, f"joined round {number} as {rank}/2")
            self.assertTrue(prefix.endswith(f".{number}/"), prefix)
            # As a prefix store is given it: without the slash that such a store adds.
            self.prefixes = {**self.prefixes, number: f"torch.rendezvous.run.{prefix[:-1]}"}

    def store_of_round(self, number):
        """What an agent gives to its workers."""
        return dist.PrefixStore(self.prefixes[number], connect(self.server))

    def after_a_death(self, first, second):
        """Kills the second node, and returns its heir, with which the first is in round 1."""
        second.kill()
        self.assertIn("died: the connection ended", first.says("node n1 (rank 1 of round 0)"))
        first.says("round 0 is over")
        heir = self.node("n1")
        self.meet(1, first, heir)
        return heir

    def test_both_languages_see_the_same_keys_and_wake_each_other(self):
        node = self.node("n0")
        self.store.set("by_PyTorch", "1")
        node.told("get by_PyTorch")
        self.assertEqual(node.says("got"), "got by_PyTorch = 1")
        # A native wait ends by PyTorch's write,
        node.told("get later")
        node.told("watch news/")
        node.says("watching")
        self.store.set("later", "now")
        self.assertEqual(node.says("got"), "got later = now")
        self.store.add("news/number", 3)
        self.assertEqual(node.says("changed"), "changed news/number")
        # and PyTorch's wait by a native write.
        waiting = Processes([lambda: connect(self.server).get("by_node")])
        node.told("set by_node 2")
        node.says("set done")
        self.assertEqual(waiting.results(), [b"2"])
        self.assertEqual(self.store.num_keys(), 4)

    def test_writes_of_a_dead_round_fail_and_those_of_the_next_work(self):
        first, second = self.node("n0"), self.node("n1")
        self.meet(0, first, second)
        self.store_of_round(0).set("progress", "epoch 3")
        orphans = [self.store_of_round(0) for _ in range(7)]
        self.after_a_death(first, second)
        reader = self.store_of_round(0)
        for orphan, write in zip(orphans, [
            lambda store: store.set("progress", "epoch 4"),
            lambda store: store.set("new", ""),
            lambda store: store.add("count", 1),
            lambda store: store.append("progress", "4"),
            lambda store: store.compare_set("progress", "epoch 3", "epoch 4"),
            lambda store: store.multi_set(["a", "b"], ["1", "2"]),
            lambda store: store.delete_key("progress"),
        ]):
            # A `set` tells nothing of its end; the next answer that is due does.
            def write_and_look(store, write=write):
                write(store)
                store.num_keys()

            self.assert_gone(write_and_look, orphan)
        # What was written in time can still be read.
        self.assertEqual(reader.get("progress"), b"epoch 3")
        self.assertFalse(reader.check(["new"]))
        store = self.store_of_round(1)
        store.set("progress", "epoch 4")
        self.assertEqual(store.add("count", 2), 2)
        self.assertEqual(self.store_of_round(1).get("progress"), b"epoch 4")
        first.told(f"get {self.prefixes[1]}/progress")
        self.assertEqual(first.says("got"), f"got {self.prefixes[1]}/progress = epoch 4")

    def test_who_waits_in_a_round_that_dies_waits_no_more(self):
        first, second = self.node("n0"), self.node("n1")
        self.meet(0, first, second)

        def wait_for_a_key_that_never_comes():
            store = self.store_of_round(0)
            store.set("waiting", "")
            started = time.monotonic()
            try:
                store.get("never")
            except RuntimeError as error:
                return str(error) if time.monotonic() - started < 15 else "timed out"
            return "it came"

        waiting = Processes([wait_for_a_key_that_never_comes])
        self.store_of_round(0).get("waiting")
        # Whether its wait is there already or comes too late: it is told so, not left to its timeout.
        self.after_a_death(first, second)
        (told,) = waiting.results()
        self.assertTrue(any(text in told for text in LOST), told)

    def ranks(self, number):
        program = [sys.executable, HERE / "round_rank.py", self.server.port, self.prefixes[number]]
        variables = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        return [self.child(*program, rank, 2, **variables) for rank in range(2)]

    @deadline(180)
    def test_a_gloo_job_of_a_dead_round_makes_no_more_groups_and_that_of_the_next_does(self):
        first, second = self.node("n0"), self.node("n1")
        self.meet(0, first, second)
        orphans = self.ranks(0)
        for rank in orphans:
            self.assertEqual(rank.says("sum"), "sum 3")
        heir = self.after_a_death(first, second)
        for rank in orphans:
            rank.told("go on")
        for rank in orphans:
            lost = rank.says("lost")
            self.assertTrue(any(words in lost for words in LOST), lost)
        ranks = self.ranks(1)
        for rank in ranks:
            self.assertEqual(rank.says("sum"), "sum 3")
            rank.told("go on")
        for rank in ranks:
            self.assertEqual(rank.says("another"), "another group")
        heir.kill()
