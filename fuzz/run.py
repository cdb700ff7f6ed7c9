#!/usr/bin/env python3
"""Runs the fuzz targets, adds up executions and CPU time, and resumes with the inputs that earlier runs have found.

`make fuzz` runs each target for FUZZ_SECONDS, in slices, so that an interrupted run loses little. What it needs and does
not find, it installs below target/tools (cargo-fuzz) or names in one line (a nightly toolchain, a C++ compiler). The
inputs are in target/fuzz. The sums are in fuzz/record.json, which is committed: no machine runs for all of the time.
`--summary` prints the sums and runs nothing. The exit code is 1 if a target failed in this run.
"""

import argparse
import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CARGO_FUZZ = "0.13.2"
# Longest input, in bytes, and the time after which one input counts as a failure, in seconds.
INPUT_BYTES_MAX, INPUT_SECONDS_MAX, MEMORY_MIB_MAX = 4096, 60, 4096
# Time of a slice, in seconds.
SLICE_SECONDS = 240


def run(command, **keywords):
    print("+ " + " ".join(command), flush=True)
    return subprocess.run(command, cwd=ROOT, check=False, **keywords).returncode


def needs(toolchain, tools):
    """Installs cargo-fuzz if it is absent. Returns its path, or exits with one line on what is missing."""
    if subprocess.run(["cargo", f"+{toolchain}", "--version"], capture_output=True, check=False).returncode:
        sys.exit(f"make fuzz needs a Rust toolchain named {toolchain} (rustup toolchain install {toolchain})")
    if not shutil.which("c++"):
        sys.exit("make fuzz needs a C++ compiler as c++ (libFuzzer is compiled with it)")
    found = shutil.which("cargo-fuzz", path=os.path.join(tools, "bin") + os.pathsep + os.environ["PATH"])
    if found:
        return found
    install = ["cargo", "install", "--locked", "cargo-fuzz", "--version", CARGO_FUZZ, "--root", tools]
    # The flags of the library are not those of a tool.
    environment = {name: value for name, value in os.environ.items() if name != "RUSTFLAGS"}
    if run(install + ["--target-dir", os.path.join(tools, "build")], env=environment):
        sys.exit(f"make fuzz needs cargo-fuzz {CARGO_FUZZ}, and could not install it into {tools}")
    return os.path.join(tools, "bin", "cargo-fuzz")


def empty():
    return {"executions": 0, "cpu_s": 0.0, "clean_cpu_s": 0.0, "findings": []}


def fuzz(options, binary, target, seconds):
    """Runs one target. Returns its executions, its CPU time and the files of the inputs that failed."""
    own = os.path.join(options.record, "corpus", target)
    artifacts = os.path.join(options.record, "artifacts", target)
    os.makedirs(own, exist_ok=True)
    os.makedirs(artifacts, exist_ok=True)
    before = set(os.listdir(artifacts))
    command = [binary, f"-max_total_time={seconds}", f"-max_len={INPUT_BYTES_MAX}", f"-timeout={INPUT_SECONDS_MAX}"]
    command += [f"-rss_limit_mb={MEMORY_MIB_MAX}", "-print_final_stats=1", f"-report_slow_units={INPUT_SECONDS_MAX}"]
    command += [f"-artifact_prefix={artifacts}/"]
    command += [own, os.path.join(ROOT, "fuzz", "corpus", target)]
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=ROOT)  # pylint: disable=consider-using-with
        # The one call that tells the CPU time of this process.
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read()
    executed = re.search(r"stat::number_of_executed_units:\s*(\d+)", text)
    findings = sorted(os.path.join(artifacts, name) for name in set(os.listdir(artifacts)) - before)
    if process.returncode:
        noise = r"#\d+\s|\s+#\d+ 0x|\s+\d+: |\s+at |\tNEW_|INFO: |stat::"
        lines = [line for line in text.splitlines() if not re.match(noise, line)]
        print("\n".join([f"--- {target} failed with {process.returncode}", *lines[-40:]]), flush=True)
        findings = findings or ["no input was written"]
    return int(executed[1]) if executed else 0, usage.ru_utime + usage.ru_stime, findings


def summary(record):
    lines = ["| target | executions | hours of CPU time | of them since the last finding |", "|---|--:|--:|--:|"]
    for target, sums in sorted(record.items()):
        hours, clean = sums["cpu_s"] / 3600, sums["clean_cpu_s"] / 3600
        lines.append(f"| `{target}` | {sums['executions']:,} | {hours:.2f} | {clean:.2f} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="time for each target")
    parser.add_argument("--jobs", type=int, default=1, help="targets at a time")
    parser.add_argument("--toolchain", default="nightly", help="toolchain with sanitizers")
    parser.add_argument("--record", default=os.path.join(ROOT, "target", "fuzz"), help="folder of the inputs")
    parser.add_argument("--sums", default=os.path.join(ROOT, "fuzz", "record.json"), help="file of the sums")
    parser.add_argument("--summary", action="store_true", help="print the sums of the record only")
    parser.add_argument("targets", nargs="*", help="targets; all by default")
    options = parser.parse_args()
    path = options.sums
    try:
        with open(path, encoding="utf-8") as file:
            record = json.load(file)
    except FileNotFoundError:
        record = {}
    if options.summary:
        print(summary(record))
        return
    tool = needs(options.toolchain, os.path.join(ROOT, "target", "tools"))
    listed = subprocess.run([tool, "fuzz", "list"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    unknown = set(options.targets) - set(listed)
    if unknown:
        sys.exit(f"no such fuzz target: {', '.join(sorted(unknown))}; there are {', '.join(listed)}")
    # cargo-fuzz calls cargo, which takes its toolchain from the environment.
    environment = {**os.environ, "RUSTUP_TOOLCHAIN": options.toolchain}
    built = os.path.join(options.record, "build")
    if run([tool, "fuzz", "build", "--target-dir", built], env=environment):
        sys.exit("the fuzz targets could not be built")
    host = subprocess.run(["rustc", "-vV"], capture_output=True, text=True, check=True, env=environment).stdout
    folder = os.path.join(built, re.search(r"host: (\S+)", host)[1], "release")
    failed, lock = [], threading.Lock()

    def one(target, seconds):
        executions, cpu_s, findings = fuzz(options, os.path.join(folder, target), target, seconds)
        with lock:
            sums = record.setdefault(target, empty())
            sums["executions"] += executions
            sums["cpu_s"] += cpu_s
            sums["clean_cpu_s"] = 0.0 if findings else sums["clean_cpu_s"] + cpu_s
            sums["findings"] += map(os.path.basename, findings)
            with open(path + ".new", "w", encoding="utf-8") as file:
                json.dump(record, file, indent=1, sort_keys=True)
                file.write("\n")
            os.replace(path + ".new", path)
            for finding in findings:
                failed.append(target)
                print(f"replay: {os.path.join(folder, target)} {finding}", flush=True)
            print(f"{target}: {executions:,} executions in {cpu_s:.0f} s of CPU time", flush=True)

    os.makedirs(options.record, exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        left, targets = options.seconds, options.targets or listed
        while left > 0:
            # The targets in turns, so that an interrupted run has something of each.
            list(pool.map(one, targets, [min(left, SLICE_SECONDS)] * len(targets)))
            left -= SLICE_SECONDS
    print(summary(record))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
