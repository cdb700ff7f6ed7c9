"""PyTorch's own TCPStore server as a program: `torch_server.py [--backend libuv|legacy] [--bind-port N]`.

Prints `listening on 127.0.0.1:PORT` and ends when its standard input does, so it never outlives whoever started it.
"""

import argparse
import os
import sys

# The libuv server looks up the name of every peer on its event loop; a resolver that does not answer would stall
# it for many seconds per connection.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")


def start(backend="libuv", port=0):
    """Starts the server on a thread of this process and returns the store that owns it."""
    import torch.distributed as dist

    return dist.TCPStore(
        "127.0.0.1", port, None, True, wait_for_workers=False, use_libuv=backend == "libuv"
    )


def main():
    parser = argparse.ArgumentParser(description="PyTorch's TCPStore server")
    parser.add_argument("--backend", choices=("libuv", "legacy"), default="libuv")
    parser.add_argument("--bind-port", type=int, default=0, help="0 lets the system choose")
    arguments = parser.parse_args()
    store = start(arguments.backend, arguments.bind_port)
    print(f"listening on 127.0.0.1:{store.port}", flush=True)
    sys.stdin.buffer.read()


if __name__ == "__main__":
    main()
