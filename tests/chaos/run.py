#!/usr/bin/env python3
"""Runs jobs of real processes, breaks what they need at random, and checks that nothing is lost, doubled, hung or left.

`make chaos MINUTES=10` runs episodes until the time is over. In each, an `rdzv server`, three agents (`rdzv run`) and their
workers, a C++ program that counts, run on hosts of their own: network namespaces with virtual links. A seed decides which
faults come when. After the last fault the job has a deadline to finish. The hosts are private to this program and vanish
with it. A violation prints the seed, and the exit code is 1; 77 means that the machine forbids namespaces.
"""

import argparse
import collections
import json
import os
import random
import re
import resource
import select
import shutil
import signal
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
INSIDE = "RDZV_CHAOS_INSIDE"
HOSTS, WORKERS, PORT = 3, 2, 29400
# An episode: its length in seconds and the pauses between faults.
FAULTS_S, PAUSE_S = 20.0, (0.2, 2.0)
# How long a job may take after the last fault, and a process after it was asked to end.
FINISH_S, END_S = 90.0, 20.0
TOTAL, PAUSE_MS = 10_000, 10
FORBIDDEN = 77


# What a fault returns that could not be caused.
NOTHING = object()


class Violation(Exception):
    """What must hold did not."""


def sh(*command, check=True):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def pass_time(span_s):
    """Lets the job run. What must happen is awaited by `until`."""
    select.select([], [], [], span_s)


def until(deadline_s, what, holds):
    """Waits for an event of another process, with a deadline."""
    end = time.monotonic() + deadline_s
    while not (found := holds()):
        if time.monotonic() > end:
            raise Violation(f"{what} took longer than {deadline_s:.0f} s")
        pass_time(0.02)
    return found


def address(host):
    return f"10.77.0.{host + 1}"


# How a link becomes slow, mildly to badly. netem delays and loses packets. A kernel without it has tbf, the token bucket:
# packets wait for their turn at a low rate, and are lost if they would wait longer than the latency.
SLOW_LINKS = {
    "netem": ["delay 20ms 20ms", "delay 100ms 20ms loss 1%", "delay 300ms 20ms loss 5%"],
    "tbf": ["rate 1mbit burst 2kb latency 50ms", "rate 256kbit burst 2kb latency 200ms", "rate 64kbit burst 2kb latency 500ms"],
}


def make_hosts():
    """Host 0 has the server, the others have agents. All are linked by a bridge. Returns how links can become slow."""
    os.makedirs("/run/netns", exist_ok=True)
    sh("mount", "-t", "tmpfs", "none", "/run/netns")
    sh("ip", "link", "set", "lo", "up")
    sh("ip", "link", "add", "bridge0", "type", "bridge")
    sh("ip", "link", "set", "bridge0", "up")
    for host in range(HOSTS + 1):
        sh("ip", "netns", "add", f"h{host}")
        sh("ip", "link", "add", f"v{host}", "type", "veth", "peer", "name", "eth0", "netns", f"h{host}")
        sh("ip", "link", "set", f"v{host}", "master", "bridge0", "up")
        sh("ip", "-n", f"h{host}", "link", "set", "lo", "up")
        sh("ip", "-n", f"h{host}", "address", "add", f"{address(host)}/24", "dev", "eth0")
        sh("ip", "-n", f"h{host}", "link", "set", "eth0", "up")
    if shutil.which("tc"):
        for slowing, ways in SLOW_LINKS.items():
            command = ["tc", "qdisc", "add", "dev", "v0", "root", slowing, *ways[0].split()]
            if subprocess.run(command, capture_output=True, check=False).returncode == 0:
                sh("tc", "qdisc", "del", "dev", "v0", "root")
                return slowing
    return None


def processes():
    """Parent and name of each live process of this namespace, by pid."""
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8") as file:
                before, after = file.read().rsplit(")", 1)
        except OSError:
            continue
        state, parent = after.split()[:2]
        # This program is the parent of orphans and does not wait for them: a zombie has ended.
        if state != "Z":
            found[int(name)] = (int(parent), before.split("(", 1)[1])
    return found


def send(pid, number):
    """Sends a signal. Returns whether there was still a process to get it."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


class Episode:
    """One job and its faults."""

    def __init__(self, options, seed, counts, slowing):
        self.options, self.seed, self.counts, self.slowing = options, seed, counts, slowing
        self.random = random.Random(seed)
        self.folder = os.path.join(options.record, f"seed-{seed}")
        shutil.rmtree(self.folder, ignore_errors=True)
        os.makedirs(os.path.join(self.folder, "ledger"))
        # The disk of the agents' logs and error files: it can be full.
        self.disk = os.path.join(self.folder, "disk")
        os.makedirs(self.disk)
        sh("mount", "-t", "tmpfs", "-o", "size=4m", "none", self.disk)
        self.agents, self.server, self.baseline, self.heals = {}, None, 0, []
        # A run that was closed because a node failed for good is followed by another one.
        self.starts, self.run = 0, 0

    # Processes

    def spawn(self, host, name, command, stdin=subprocess.DEVNULL):
        with open(os.path.join(self.folder, f"{name}.log"), "ab") as log:
            environment = {**os.environ, "TMPDIR": self.disk, "RDZV_LOG": "info"}
            return subprocess.Popen(["ip", "netns", "exec", f"h{host}", *command], stdin=stdin, stdout=log, stderr=log,
                                    env=environment, cwd=self.folder, start_new_session=True)

    def start_server(self):
        path = os.path.join(self.folder, "server.log")
        before = os.path.getsize(path) if os.path.exists(path) else 0
        self.server = self.spawn(0, "server", [self.options.rdzv, "server", "--bind", f"{address(0)}:{PORT}"])

        def listens():
            if self.server.poll() is not None:
                raise Violation(f"the server ended with {self.server.returncode} at its start")
            with open(path, "rb") as file:
                file.seek(before)
                return b"listening on" in file.read()

        until(END_S, "the start of the server", listens)
        self.baseline = descriptors(self.server.pid)

    def start_agent(self, host):
        self.starts += 1
        name = f"agent-{host}-{self.starts}"
        command = [self.options.rdzv, "run", f"--nnodes=1:{HOSTS}", f"--nproc-per-node={WORKERS}", f"--rdzv-id=job{self.run}"]
        command += [f"--rdzv-endpoint={address(0)}:{PORT}", f"--local-addr={address(host)}", "--max-restarts=1000"]
        command += ["--rdzv-conf", "last_call_timeout=0.5,join_timeout=60,keep_alive_interval=1,keep_alive_max_attempt=3"]
        command += ["--restart-backoff=500ms", "--shutdown-timeout=5s", "--exit-barrier-timeout=30s"]
        command += ["--log-dir", os.path.join(self.disk, "logs"), "-r", "3", self.options.counter]
        command += [address(0), str(PORT), str(TOTAL), str(PAUSE_MS), os.path.join(self.folder, "ledger")]
        self.agents[host] = self.spawn(host, name, command)
        self.agents[host].log, self.agents[host].run = os.path.join(self.folder, f"{name}.log"), self.run

    def tree(self, root):
        """Pids below a process."""
        found, below = processes(), {root}
        while more := {pid for pid, (parent, _) in found.items() if parent in below} - below:
            below |= more
        return below - {root}

    def named(self, host, name):
        agent, found = self.agents[host], processes()
        return [pid for pid in self.tree(agent.pid) if pid in found and found[pid][1] == name]

    # Faults: each returns how it is healed, or None if there is nothing to heal

    def kill_worker(self, host):
        return self.kill(self.named(host, "counter")[:1])

    def kill_guard(self, host):
        return self.kill(self.named(host, "rdzv-guard")[:1])

    def kill_keeper(self, host):
        return self.kill(self.named(host, "rdzv-keeper")[:1])

    @staticmethod
    def kill(pids):
        return None if any([send(pid, signal.SIGKILL) for pid in pids]) else NOTHING

    def kill_agent(self, host):
        agent = self.agents[host]
        below = self.tree(agent.pid)
        agent.kill()
        agent.wait()
        until(END_S, f"the end of the workers of agent {agent.pid}, which was killed", lambda: not below & set(processes()))
        self.start_agent(host)

    def end_agent(self, host):
        agent = self.agents[host]
        agent.send_signal(signal.SIGTERM)
        # One that is stopped would not see it before its time to continue, and nothing else happens during this wait.
        agent.send_signal(signal.SIGCONT)
        self.await_end(agent, f"agent {host} after SIGTERM")
        self.start_agent(host)

    def stop_worker(self, host):
        return self.pause(self.named(host, "counter")[:1])

    def stop_agent(self, host):
        return self.pause([self.agents[host].pid])

    def stop_server(self, _):
        return self.pause([self.server.pid])

    @staticmethod
    def pause(pids):
        if not any([send(pid, signal.SIGSTOP) for pid in pids]):
            return NOTHING

        def heal():
            for pid in pids:
                send(pid, signal.SIGCONT)

        return heal

    def kill_server(self, _):
        self.server.kill()
        self.server.wait()
        self.start_server()

    def link_down(self, host):
        sh("ip", "link", "set", f"v{host}", "down")
        return lambda: sh("ip", "link", "set", f"v{host}", "up")

    def link_slow(self, host):
        if not self.slowing:
            return NOTHING
        way = self.random.choice(SLOW_LINKS[self.slowing])
        sh("tc", "qdisc", "replace", "dev", f"v{host}", "root", self.slowing, *way.split())
        return lambda: sh("tc", "qdisc", "del", "dev", f"v{host}", "root", check=False)

    def no_descriptors(self, host):
        return self.starve(self.agents[host].pid)

    def no_descriptors_at_server(self, _):
        return self.starve(self.server.pid)

    def starve(self, pid):
        try:
            if processes().get(pid, (0, ""))[1] != "rdzv":
                return NOTHING
            soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (descriptors(pid), hard))
        except OSError:
            return NOTHING

        def heal():
            try:
                resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
            except OSError:
                pass

        return heal

    def disk_full(self, _):
        filler = os.path.join(self.disk, "filler")
        try:
            with open(filler, "wb") as file:
                while True:
                    file.write(b"x" * 65536)
        except OSError:
            pass
        return lambda: os.path.exists(filler) and os.remove(filler)

    FAULTS = [(kill_worker, 6), (kill_guard, 2), (kill_keeper, 1), (kill_agent, 3), (end_agent, 2), (stop_worker, 3),
              (stop_agent, 3), (stop_server, 2), (kill_server, 1), (link_down, 4), (link_slow, 4), (no_descriptors, 2),
              (no_descriptors_at_server, 1), (disk_full, 2)]

    # The course of an episode

    def play(self):
        self.start_server()
        for host in range(1, HOSTS + 1):
            self.start_agent(host)
        end = time.monotonic() + FAULTS_S
        due = []
        while time.monotonic() < end and not self.is_done():
            pass_time(self.random.uniform(*PAUSE_S))
            now = time.monotonic()
            for entry in [entry for entry in due if entry[0] <= now]:
                due.remove(entry)
                entry[1]()
            self.revive()
            kinds, weights = zip(*self.FAULTS)
            fault, host = self.random.choices(kinds, weights)[0], self.random.randint(1, HOSTS)
            span = self.random.choice([0.3, 1.0, 2.5, 6.0])
            if any(host in (other, None) and fault.__name__ == name for _, _, name, other in due):
                continue
            self.log(f"{fault.__name__} at host {host}, {span} s")
            heal = fault(self, host)
            self.counts[fault.__name__] += heal is not NOTHING
            if callable(heal):
                due.append((now + span, heal, fault.__name__, host))
        for _, heal, _, _ in due:
            heal()
        self.log("all is healed")
        self.finish()
        self.check()

    def log(self, text):
        with open(os.path.join(self.folder, "faults.log"), "a", encoding="utf-8") as file:
            file.write(f"{time.time():.3f} {text}\n")

    def revive(self):
        """Starts agents anew that have ended, as an operator or a scheduler does."""
        if self.server.poll() is not None:
            raise Violation(f"the server ended by itself with {self.server.returncode}")
        for host, agent in list(self.agents.items()):
            if agent.poll() is not None:
                self.note_end(host, agent)
                self.start_agent(host)

    def note_end(self, host, agent):
        if agent.returncode not in (0, 1):
            raise Violation(f"agent {host} ended with {agent.returncode}")
        self.counts[f"agents that ended with {agent.returncode}"] += 1
        with open(agent.log, encoding="utf-8", errors="replace") as file:
            if agent.run == self.run and "is closed" in file.read():
                self.run += 1
                self.counts["runs that were closed as failed"] += 1

    def value(self, key, timeout="5s"):
        done = subprocess.run(["ip", "netns", "exec", "h0", self.options.rdzv, "store", "--endpoint", f"{address(0)}:{PORT}",
                               "get", key, "--timeout-ms", timeout], capture_output=True, text=True, timeout=END_S, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    def is_done(self):
        return any(agent.poll() == 0 for agent in self.agents.values())

    def finish(self):
        """The job finishes in time. An agent that ends before that is started anew."""
        end = time.monotonic() + FINISH_S
        while int(self.value("count", "0") or 0) < TOTAL:
            if time.monotonic() > end:
                count = self.value("count", "0") or 0
                raise Violation(f"the job is at {count} of {TOTAL} after {FINISH_S:.0f} s without faults")
            self.revive()
            pass_time(0.2)
        for host, agent in self.agents.items():
            self.await_end(agent, f"agent {host} after the job was done", FINISH_S)

    @staticmethod
    def await_end(process, what, deadline_s=END_S):
        try:
            return process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise Violation(f"{what} did not end within {deadline_s:.0f} s") from None

    def check(self):
        """Nothing lost, nothing doubled, nothing left."""
        listed = subprocess.run(["ip", "netns", "exec", "h0", self.options.rdzv, "store", "--endpoint",
                                 f"{address(0)}:{PORT}", "--json", "list", "--prefix", "done/"],
                                capture_output=True, text=True, timeout=60, check=True).stdout
        numbers = sorted(int(number) for number in re.findall(r"done/(\d+)", listed))
        if numbers != list(range(TOTAL)):
            raise Violation(f"{len(numbers)} numbers were taken, and the count is {TOTAL}")
        taken = collections.defaultdict(dict)
        for name in os.listdir(os.path.join(self.folder, "ledger")):
            with open(os.path.join(self.folder, "ledger", name), encoding="utf-8") as file:
                for line in file:
                    incarnation, number, worker = line.split()
                    if number in taken[incarnation]:
                        raise Violation(f"{number} was acknowledged to {taken[incarnation][number]} and to {worker}")
                    taken[incarnation][number] = worker
        self.counts["numbers that were acknowledged"] += sum(len(numbers) for numbers in taken.values())
        with open(os.path.join(self.folder, "server.log"), encoding="utf-8") as file:
            last = str(int(re.findall(r"incarnation ([0-9a-f]+)", file.read())[-1], 16))
        # A worker that died may have taken one more number than it noted, but what was noted stands in the store.
        sample = self.random.sample(sorted(taken[last]), min(50, len(taken[last])))
        for number in sample:
            if (value := self.value(f"done/{number}")) != taken[last][number]:
                raise Violation(f"{number} was acknowledged to {taken[last][number]}, and the store has {value!r}")
        self.counts["values compared"] += len(sample)
        until(END_S, "the end of the server's connections", lambda: descriptors(self.server.pid) <= self.baseline)
        self.server.terminate()
        if code := self.await_end(self.server, "the server after SIGTERM"):
            raise Violation(f"the server ended with {code} after SIGTERM")
        left = lambda: {pid: name for pid, (_, name) in processes().items() if pid not in self.options.own}
        until(END_S, "the end of all processes", lambda: not left())

    def clean(self, failed):
        for pid in processes():
            if pid not in self.options.own:
                send(pid, signal.SIGKILL)
        for process in [*self.agents.values(), self.server]:
            if process:
                process.wait()
        for host in range(HOSTS + 1):
            sh("ip", "link", "set", f"v{host}", "up", check=False)
            sh("tc", "qdisc", "del", "dev", f"v{host}", "root", check=False)
        if failed:
            shutil.copytree(self.disk, os.path.join(self.folder, "disk-left"), dirs_exist_ok=True)
        sh("umount", "-l", self.disk)
        if not failed:
            shutil.rmtree(self.folder, ignore_errors=True)


def inside(options):
    try:
        slowing = make_hosts()
    except RuntimeError as failure:
        print(f"NOT TESTED: this machine forbids private networks: {failure}")
        sys.exit(FORBIDDEN)
    if not slowing:
        print("tc has neither netem nor tbf here: links are taken down, but not slowed")
    counts, failed, seed = collections.Counter(), [], options.seed
    end = time.monotonic() + options.minutes * 60
    options.own = set(processes())
    while time.monotonic() < end:
        episode = Episode(options, seed, counts, slowing)
        violation = None
        try:
            episode.play()
            counts["episodes"] += 1
        except Violation as found:
            violation = found
            failed.append(seed)
            print(f"VIOLATION in seed {seed}: {found}\n  logs: {episode.folder}\n"
                  f"  again: tests/chaos/run.py --seed {seed} --minutes 0.1", flush=True)
        finally:
            episode.clean(violation)
        print(f"seed {seed}: {'failed' if violation else 'passed'}", flush=True)
        seed += 1
    for what, count in sorted(counts.items()):
        print(f"{count:8,} {what}")
    print(f"{len(failed)} of {counts['episodes'] + len(failed)} episodes failed{': seeds ' + str(failed) if failed else ''}")
    with open(os.path.join(options.record, "counts.json"), "w", encoding="utf-8") as file:
        json.dump({"counts": counts, "failed": failed}, file, indent=1)
    sys.exit(1 if failed else 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="time after which no further episode begins")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="seed of the first episode")
    parser.add_argument("--rdzv", default=os.path.join(ROOT, "target/release/rdzv"), help="the program rdzv")
    parser.add_argument("--counter", default=os.path.join(ROOT, "target/chaos/counter"), help="the job")
    parser.add_argument("--record", default=os.path.join(ROOT, "target/chaos"), help="folder of logs and counts")
    options = parser.parse_args()
    if os.environ.get(INSIDE):
        inside(options)
    # A process, a mount and a network namespace of its own: what is left in them ends with this program.
    command = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    command += [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        print("NOT TESTED: this machine forbids namespaces (unshare)")
        sys.exit(FORBIDDEN)
    os.makedirs(options.record, exist_ok=True)
    inner = [sys.executable, os.path.abspath(__file__), *sys.argv[1:], "--seed", str(options.seed)]
    sys.exit(subprocess.run([*command, *inner], env={**os.environ, INSIDE: "1"}, check=False).returncode)


if __name__ == "__main__":
    main()
