#!/usr/bin/env python3
"""Runs the simulator over seeds that no earlier run has used, in parallel, and adds up what it found.

`make soak SEEDS=100000` runs so many further seeds of each world. The record, tests/soak.json, holds the next seed of
each world and the sums; it is committed, so that no machine has to run all seeds. An interrupted run loses at most one
chunk for each process. `--summary` prints the sums and runs nothing. A failure prints the command that replays it, and
the exit code is 1 as long as the record has failures.
"""

import argparse
import concurrent.futures
import fcntl
import json
import os
import re
import subprocess
import sys
import tempfile

WORLDS = ["store", "elastic", "agents", "membership"]
# Seeds below this number are those of the tests.
FIRST_SEED = 1_000_000
CHUNK = {"store": 200, "elastic": 200, "agents": 5000, "membership": 500}
COUNTS = re.compile(r"(\d+) seeds, (\d+) failed; (\d+) events, .* (\d+) s of virtual time, (\d+) keys undecided")
REPLAY = re.compile(r"cargo run -p rendezvous-tests --bin sim -- .*--seed \d+.*")


def empty_world():
    return {"next": FIRST_SEED, "seeds": 0, "failed": 0, "events": 0, "virtual_s": 0, "cpu_s": 0.0}


def load(path):
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        return {"worlds": {}, "replays": []}


def save(path, record):
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(record, file, indent=1)
        file.write("\n")
    os.replace(path + ".new", path)


def play(sim, world, start, count):
    """Runs one chunk. Returns its sums, and the commands that replay its failures."""
    command = [sim, "--world", world, "--from", str(start), "--count", str(count)]
    with tempfile.TemporaryFile("w+") as error_file:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=error_file, text=True) as process:
            out = process.stdout.read()
            # The one call that tells the CPU time of this process.
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        error_file.seek(0)
        errors = error_file.read()
    seconds = usage.ru_utime + usage.ru_stime
    found = COUNTS.search(out)
    if not found or int(found[1]) != count:
        # It crashed; its seed is in this chunk.
        print(errors[-4000:], file=sys.stderr)
        sums = {"seeds": count, "failed": 1, "events": 0, "virtual_s": 0, "cpu_s": seconds}
        return sums, [" ".join(["cargo run --release -p rendezvous-tests --bin sim --", *command[1:]])]
    replays = REPLAY.findall(errors)
    if int(found[2]):
        print(errors, file=sys.stderr)
    sums = {"seeds": count, "failed": int(found[2]), "events": int(found[3]), "virtual_s": int(found[4])}
    return {**sums, "cpu_s": seconds}, replays


def chunks(record, worlds, seeds):
    """Yields (world, start, count), the worlds in turns, so that an interrupted run has seeds of each."""
    left = {world: seeds for world in worlds}
    at = {world: record["worlds"].setdefault(world, empty_world())["next"] for world in worlds}
    while any(left.values()):
        for world in worlds:
            count = min(left[world], CHUNK[world])
            if count:
                yield world, at[world], count
                at[world] += count
                left[world] -= count


def summary(record):
    lines = ["| world | seeds | of them failed | events | days of virtual time | hours of CPU time |", "|---|--:|--:|--:|--:|--:|"]
    for world, sums in record["worlds"].items():
        days, hours = sums["virtual_s"] / 86400, sums["cpu_s"] / 3600
        lines.append(f"| {world} | {sums['seeds']:,} | {sums['failed']} | {sums['events']:,} | {days:,.0f} | {hours:.1f} |")
    lines += [f"replay: {command}" for command in record["replays"]]
    return "\n".join(lines)


def soak(options, record):
    # Chunks end in any order; the next seed of a world moves on over those that have ended without a gap.
    ended = {world: {} for world in WORLDS}
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        waiting, running = chunks(record, options.worlds, options.seeds), {}
        while True:
            while len(running) < options.jobs and (chunk := next(waiting, None)):
                running[pool.submit(play, options.sim, *chunk)] = chunk
            if not running:
                return
            done, _ = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in done:
                world, start, count = running.pop(future)
                ended[world][start] = (count, future.result())
                sums = record["worlds"][world]
                while sums["next"] in ended[world]:
                    count, (more, replays) = ended[world].pop(sums["next"])
                    sums["next"] += count
                    for name, number in more.items():
                        sums[name] += number
                    record["replays"] += replays
                    for command in replays:
                        print(f"replay: {command}", flush=True)
            save(options.record, record)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sim", default="target/release/sim", help="the simulator")
    parser.add_argument("--seeds", type=int, default=0, help="further seeds of each world")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at a time")
    parser.add_argument("--record", default="tests/soak.json", help="file of the record")
    parser.add_argument("--worlds", nargs="*", default=WORLDS, choices=WORLDS, help="worlds; all by default")
    parser.add_argument("--summary", action="store_true", help="print the sums of the record only")
    options = parser.parse_args()
    # The lock of the folder: the record itself is replaced when it is saved.
    folder = os.open(os.path.dirname(os.path.abspath(options.record)), os.O_RDONLY)
    if not options.summary:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit(f"another soak writes {options.record}")
    record = load(options.record)
    if not options.summary:
        soak(options, record)
    print(summary(record))
    sys.exit(1 if record["replays"] else 0)


if __name__ == "__main__":
    main()
