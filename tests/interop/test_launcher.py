"""`rdzv run` with PyTorch's workers: DDP over gloo in the store that the agent gives them, through crashes, newcomers
and deaths; and beside torchrun in one static job."""

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import elastic_rank
from harness import HERE, RDZV, RdzvServer, StoreTest, free_port

JOB_SECONDS = 90
WORKER = HERE / "elastic_rank.py"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
STEPS = 12
VARIABLES = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHON_EXEC": sys.executable}


class Launcher:
    """One agent, whose workers say JSON lines on its stdout."""

    def __init__(self, command, folder, name):
        self.log_path = folder / f"{name}.log"
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                list(map(str, command)), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
                env={**os.environ, **VARIABLES},
            )
        self.text = b""
        self.said = []

    @property
    def log(self):
        return self.log_path.read_text(errors="replace")

    def _read(self, until):
        """Takes in what the workers say next; False when there will be nothing more."""
        output = self.process.stdout.fileno()
        ready, _, _ = select.select([output], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            raise AssertionError(f"nothing more within {JOB_SECONDS} s, after {self.said[-4:]}\n{self.log}")
        piece = os.read(output, 65536)
        *lines, self.text = (self.text + piece).split(b"\n")
        self.said += [json.loads(line) for line in lines if line.startswith(b"{")]
        return bool(piece)

    def says(self, count, what, **more):
        """The next `count` lines of this kind, by rank; what was said before them is passed over."""
        until, found = time.monotonic() + JOB_SECONDS, []
        while True:
            while self.said:
                line = self.said.pop(0)
                if line["what"] == what and more.items() <= line.items():
                    found.append(line)
                if len(found) == count:
                    return sorted(found, key=lambda line: int(line["RANK"]))
            if not self._read(until):
                raise AssertionError(f"ended after {found}, before {count} times {what} {more}\n{self.log}")

    def ended(self):
        """The exit code."""
        until = time.monotonic() + JOB_SECONDS
        while self._read(until):
            pass
        return self.process.wait(max(0.0, until - time.monotonic()))

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(JOB_SECONDS)

    def close(self):
        self.kill()
        self.process.stdout.close()


class Ended:
    """Processes of others whose ends are waited for."""

    def __init__(self, pids):
        self.handles = [os.pidfd_open(pid) for pid in pids]

    def within(self, seconds):
        until, all_ended = time.monotonic() + seconds, True
        for handle in self.handles:
            ready, _, _ = select.select([handle], [], [], max(0.0, until - time.monotonic()))
            all_ended &= bool(ready)
            os.close(handle)
        return all_ended


class LauncherTest(StoreTest):
    deadline_seconds = 2 * JOB_SECONDS

    def setUp(self):
        self.server = None
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def launch(self, name, *flags, steps=STEPS, crash_step=None, agent=(RDZV, "run"), workers=2):
        command = [
            *agent, "--nproc-per-node", workers, "--log-dir", self.folder / f"logs-{name}", *flags, WORKER, self.folder,
            steps, *(() if crash_step is None else (crash_step,)),
        ]
        launcher = Launcher(command, self.folder, name)
        self.addCleanup(launcher.close)
        return launcher

    def check_trained(self, lines, world_size, steps=STEPS):
        """All ranks have come to what one process would have come to alone."""
        self.assertEqual({line["WORLD_SIZE"] for line in lines}, {str(world_size)})
        expected = elastic_rank.weights_after(steps)
        for line in lines:
            self.assertEqual((line["step"], len(line["weights"])), (steps, len(expected)))
            for actual, wanted in zip(line["weights"], expected):
                self.assertAlmostEqual(actual, wanted, delta=1e-9)

    def assert_ranks(self, lines, ranks, group_rank, restart_count=0):
        """Who they are, where all nodes have as many workers."""
        size = str(len(ranks))
        self.assertEqual(
            [(line["RANK"], line["LOCAL_RANK"], line["LOCAL_WORLD_SIZE"], line["GROUP_RANK"], line["ROLE_RANK"],
              line["TORCHELASTIC_RESTART_COUNT"]) for line in lines],
            [(str(rank), str(local), size, str(group_rank), str(rank), str(restart_count))
             for local, rank in enumerate(ranks)],
        )


class OneAgent(LauncherTest):
    def test_a_job_comes_to_its_end(self):
        agent = self.launch("a")
        done = agent.says(2, "done")
        self.assertEqual(agent.ended(), 0, agent.log)
        self.assert_ranks(done, [0, 1], 0)
        self.check_trained(done, 2)

    def test_a_killed_worker_is_replaced_and_the_job_goes_on(self):
        agent = self.launch("a", "--max-restarts", 1, steps=0)
        first = agent.says(2, "under way")
        os.kill(first[1]["pid"], signal.SIGKILL)
        again = agent.says(2, "training")
        self.assert_ranks(again, [0, 1], 0, restart_count=1)
        self.assertGreater(again[0]["step"], 0, "it goes on from the checkpoint")
        (self.folder / "stop").touch()
        done = agent.says(2, "done")
        self.assertEqual(agent.ended(), 0, agent.log)
        self.check_trained(done, 2, done[0]["step"])
        self.assertIn("was ended by SIGKILL", agent.log)

    def test_a_worker_that_raises_is_replaced_and_the_job_comes_to_its_end(self):
        agent = self.launch("a", "--max-restarts", 3, crash_step=5)
        self.assert_ranks(agent.says(2, "training", step=0), [0, 1], 0)
        self.assert_ranks(agent.says(2, "training", step=5), [0, 1], 0, restart_count=1)
        done = agent.says(2, "done")
        self.assertEqual(agent.ended(), 0, agent.log)
        self.check_trained(done, 2)
        self.assertIn("ValueError: rank 1 cannot go on at step 5", agent.log)

    def test_workers_of_a_static_job_find_nothing_of_the_start_before(self):
        """PyTorch's agent gives them the store of the first start again, with addresses of the dead."""
        static = ("--rdzv-backend", "static", "--master-port", free_port())
        agent = self.launch("a", *static, "--max-restarts", 1, crash_step=5)
        self.assert_ranks(agent.says(2, "training", step=5), [0, 1], 0, restart_count=1)
        done = agent.says(2, "done")
        self.assertEqual(agent.ended(), 0, agent.log)
        self.check_trained(done, 2)

    def test_the_error_file_of_pytorch_reaches_the_report(self):
        path = self.folder / "report.json"
        agent = self.launch("a", "--report", path, crash_step=5)
        pids = [line["pid"] for line in agent.says(2, "training")]
        self.assertEqual(agent.ended(), 1)
        report = json.loads(path.read_text())
        self.assertEqual(report["verdict"], "failed")
        root = report["failure"]["root_cause"]
        self.assertEqual((root["global_rank"], root["pid"], root["exit_code"]), (1, pids[1], 1))
        self.assertEqual(root["message"], "ValueError: rank 1 cannot go on at step 5")
        self.assertIn("Traceback (most recent call last)", json.dumps(root))
        self.assertIn("ValueError: rank 1 cannot go on at step 5", agent.log)


class SeveralAgents(LauncherTest):
    """At a server that outlives them all."""

    def setUp(self):
        super().setUp()
        self.rendezvous = RdzvServer()
        self.addCleanup(self.rendezvous.stop)

    def join(self, name, nodes, *flags, **more):
        return self.launch(
            name, "--nnodes", nodes, "--rdzv-id", "job", "--rdzv-conf", "last_call_timeout=1",
            "--rdzv-endpoint", f"127.0.0.1:{self.rendezvous.port}", "--local-addr", "127.0.0.1", *flags, **more,
        )

    def go_on_until_stopped(self, agent, count, world_size):
        (self.folder / "stop").touch()
        done = agent.says(count, "done")
        self.assertEqual(agent.ended(), 0, agent.log)
        self.check_trained(done, world_size, done[0]["step"])

    def nodes(self, *agents):
        """The agents and their workers in the first round that has them all, in the order of their nodes."""
        world_size = str(2 * len(agents))
        started = [(agent.says(2, "under way", WORLD_SIZE=world_size), agent) for agent in agents]
        started.sort(key=lambda pair: pair[0][0]["GROUP_RANK"])
        for group_rank, (workers, _) in enumerate(started):
            self.assert_ranks(workers, [2 * group_rank, 2 * group_rank + 1], group_rank)
        return started

    def test_two_agents_of_pytorch_at_our_server(self):
        agents = [self.join(name, 2, "--rdzv-conf", "is_host=0", "--rdzv-backend", "c10d", agent=TORCHRUN)
                  for name in "ab"]
        self.nodes(*agents)
        for agent in agents:
            done = agent.says(2, "done")
            self.assertEqual(agent.ended(), 0, agent.log)
            self.check_trained(done, 4)

    def test_two_agents_with_two_workers_each(self):
        agents = [self.join(name, 2) for name in "ab"]
        self.nodes(*agents)
        for agent in agents:
            done = agent.says(2, "done")
            self.assertEqual(agent.ended(), 0, agent.log)
            self.check_trained(done, 4)

    def test_a_crash_on_one_node_restarts_the_workers_of_both(self):
        agents = [self.join(name, 2, "--max-restarts", 2, crash_step=5) for name in "ab"]
        started = [agent.says(2, "training", step=0) for agent in agents]
        for agent, before in zip(agents, started):
            again = agent.says(2, "training")
            self.assertEqual(again[0]["step"], 5, "it goes on from the checkpoint")
            self.assertEqual({line["WORLD_SIZE"] for line in again}, {"4"})
            self.assertEqual({line["pid"] for line in before} & {line["pid"] for line in again}, set())
        for agent in agents:
            done = agent.says(2, "done")
            self.assertEqual(agent.ended(), 0, agent.log)
            self.check_trained(done, 4)

    def test_one_agent_becomes_two_and_one_again(self):
        first = self.join("a", "1:2", steps=0)
        self.nodes(first)
        second = self.join("b", "1:2", steps=0)
        # There is no restart to spend: who comes and who goes is no failure.
        self.nodes(first, second)
        second.process.send_signal(signal.SIGTERM)
        alone = first.says(2, "training", WORLD_SIZE="2")
        self.assert_ranks(alone, [0, 1], 0)
        self.assertGreater(alone[0]["step"], 1, "it goes on from the checkpoint")
        self.assertEqual(second.ended(), 1, second.log)
        self.go_on_until_stopped(first, 2, 2)

    def after_a_death(self, victim_group_rank):
        agents = self.nodes(*(self.join(name, "1:2", steps=0) for name in "ab"))
        started, victim = agents.pop(victim_group_rank)
        _, survivor = agents[0]
        ended = Ended([line["pid"] for line in started])
        victim.kill()
        self.assertTrue(ended.within(10), "a dead agent's workers end with it")
        # The survivor's budget is 0: the death of another node is no failure of its own.
        alone = survivor.says(2, "training", WORLD_SIZE="2")
        self.assert_ranks(alone, [0, 1], 0)
        self.go_on_until_stopped(survivor, 2, 2)

    def test_a_job_survives_an_agent_that_is_killed(self):
        self.after_a_death(1)

    def test_a_job_survives_the_agent_of_rank_zero(self):
        self.after_a_death(0)


class RanksByHand(LauncherTest):
    def test_nodes_start_anew_together_and_find_nothing_of_the_start_before(self):
        """Between agents of PyTorch, the others do not hear of it, and gloo reads the addresses of the dead."""
        port = free_port()
        agents = [
            self.launch(
                name, "--nnodes", 2, "--node-rank", rank, "--master-addr", "127.0.0.1", "--master-port", port,
                "--max-restarts", 1, crash_step=5, workers=1,
            )
            for rank, name in enumerate("ab")
        ]
        for rank, agent in enumerate(agents):
            self.assertEqual([line["RANK"] for line in agent.says(1, "training", step=5)], [str(rank)])
            self.check_trained(agent.says(1, "done"), 2)
        for agent in agents:
            self.assertEqual(agent.ended(), 0, agent.log)
            self.assertIn("round 1: 2 nodes", agent.log)
            self.assertNotIn("start 2:", agent.log)


class BesideTorchrun(LauncherTest):
    """One static job of an agent of PyTorch and one of ours: they number their workers together."""

    def together(self, agents, counts=(2, 2)):
        port = free_port()
        launchers = [
            self.launch(
                name, "--nnodes", 2, "--rdzv-backend", "static", "--node-rank", rank, "--master-addr", "127.0.0.1",
                "--master-port", port, "--rdzv-id", "job", agent=agent, workers=count,
            )
            for rank, (name, agent, count) in enumerate(zip("ab", agents, counts))
        ]
        first = 0
        for group_rank, (launcher, count) in enumerate(zip(launchers, counts)):
            done = launcher.says(count, "done")
            self.assertEqual(launcher.ended(), 0, launcher.log)
            self.assert_ranks(done, list(range(first, first + count)), group_rank)
            self.check_trained(done, sum(counts))
            first += count

    def test_torchrun_is_node_zero(self):
        self.together((TORCHRUN, (RDZV, "run")))

    def test_torchrun_is_node_one(self):
        self.together(((RDZV, "run"), TORCHRUN))

    def test_they_may_have_different_numbers_of_workers(self):
        self.together((TORCHRUN, (RDZV, "run")), (1, 2))
