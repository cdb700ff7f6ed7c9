"""A gloo job of four processes whose store is the server under test."""

import json
import os
import subprocess
import sys

import gloo_rank
from harness import HERE, StoreTest

WORLD_SIZE = 4
JOB_SECONDS = 120


class Gloo(StoreTest):
    deadline_seconds = JOB_SECONDS + 30

    def run_job(self, mode):
        def rank_environment(rank):
            return os.environ | {
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self.server.port), "RANK": str(rank),
                "WORLD_SIZE": str(WORLD_SIZE), "LOCAL_RANK": str(rank), "TORCHELASTIC_USE_AGENT_STORE": "True",
                "TORCHELASTIC_RESTART_COUNT": "0", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1",
            }

        ranks = [
            subprocess.Popen(
                [sys.executable, str(HERE / "gloo_rank.py"), mode, str(self.server.port), str(rank), str(WORLD_SIZE)],
                env=rank_environment(rank), stdout=subprocess.PIPE, text=True,
            )
            for rank in range(WORLD_SIZE)
        ]
        outputs = [process.communicate(timeout=JOB_SECONDS)[0] for process in ranks]
        self.assertEqual([process.returncode for process in ranks], [0] * WORLD_SIZE)
        return [json.loads(output.splitlines()[-1]) for output in outputs]

    def check(self, results):
        weights = gloo_rank.weights_after_one_step(WORLD_SIZE)
        for rank, result in enumerate(results):
            self.assertEqual((result["rank"], result["world_size"]), (rank, WORLD_SIZE))
            self.assertEqual(result["all_reduce"], [6.0, 10.0, 14.0, 18.0])
            self.assertEqual(result["new_group"], [1, 1, 5, 5][rank])
            self.assertEqual(result["gathered"], [f"rank {other}" for other in range(WORLD_SIZE)])
            self.assertEqual(len(result["weights"]), len(weights))
            for actual, expected in zip(result["weights"], weights):
                self.assertAlmostEqual(actual, expected, delta=1e-12)
        # The job must have met here: its ranks registered, and its groups left their addresses.
        self.assertEqual(self.raw().get("init/"), str(WORLD_SIZE).encode())
        self.assertTrue([key for key in self.store.list_keys() if key.endswith("//cpu//0/0")], self.store.list_keys())

    def test_store_given_to_init_process_group(self):
        self.check(self.run_job("store"))

    def test_store_named_by_the_environment(self):
        self.check(self.run_job("env"))
