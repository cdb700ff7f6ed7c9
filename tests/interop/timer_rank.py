"""A worker that sets timers with PyTorch's client; rank 1 of the first start is too late for one."""

import os
import signal

from torch.distributed.elastic import timer

timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
with timer.expires(after=0.5):
    pass
is_late = os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
with timer.expires(after=0.3 if is_late else 60, scope="train loop"):
    if is_late:
        signal.pause()
