"""`rdzv run` under PyTorch's own ways to look: its timers in the workers, its parser on the events."""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from torch.distributed.elastic.events import Event, EventSource

from harness import HERE, RDZV, SERVER_UNDER_TEST

JOB_SECONDS = 90


@unittest.skipUnless(SERVER_UNDER_TEST == "rdzv", "about this launcher only")
class Watchdog(unittest.TestCase):
    def test_a_timer_of_pytorchs_client_ends_its_worker_and_the_group_starts_anew(self):
        with tempfile.TemporaryDirectory() as folder:
            log, pipe = Path(folder) / "events", Path(folder) / "timers"
            ended = subprocess.run(
                [RDZV, "run", "--nproc-per-node", "2", "--max-restarts", "1", "--log-dir", folder,
                 "--event-log-handler", f"file:{log}", str(HERE / "timer_rank.py")],
                env={**os.environ, "PYTHON_EXEC": sys.executable, "TORCHELASTIC_ENABLE_FILE_TIMER": "1",
                     "TORCHELASTIC_TIMER_FILE": str(pipe), "OMP_NUM_THREADS": "1"},
                capture_output=True, text=True, timeout=JOB_SECONDS,
            )
            self.assertEqual(ended.returncode, 0, ended.stderr)
            self.assertIn("watchdog: timer train loop (set for ", ended.stderr)
            self.assertIn(") of rank 1 (local rank 1) expired", ended.stderr)
            self.assertFalse(pipe.exists())
            events = [Event.deserialize(line) for line in log.read_text().splitlines()]
        states = [event.metadata["state"] for event in events if event.source == EventSource.WORKER]
        wanted = ["START", "START", "TERMINATED", "FAILED", "START", "START", "SUCCEEDED", "SUCCEEDED"]
        self.assertEqual(states, wanted)
        names = [event.name for event in events if event.metadata["state"] == "RUNNING"]
        once = ["watchdog started", "watchdog stopped"]
        self.assertEqual(names, [once[0], "timer expired", "kill worker process", once[1], *once])
