"""PyTorch's own TCPStore server (libuv) on a free port: prints where it listens, serves until killed.

Start it with RES_OPTIONS="timeout:1 attempts:1": it looks up the name of every peer it accepts, on its event
loop.
"""

import signal

import torch.distributed as dist

store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
print(f"listening on 127.0.0.1:{store.port}", flush=True)
signal.pause()
