"""Runs the interop tests: `run.py [NAME ...]`, where a NAME is any part of `module.Class.test`.

Every test runs in a process of its own, in a process group of its own, under its own deadline: a test that hangs is
killed with everything it started and counts as failed. The last line is `N passed, N failed`; a skipped test, an
empty selection or a missing PyTorch count as failures, since each would otherwise look like a pass.
"""

import os
import select
import signal
import sys
import tempfile
import time
import traceback
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
DEADLINE_SECONDS = 60.0


def flatten(suite):
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from flatten(item)
        else:
            yield item


def deadline_of(test):
    method = getattr(test, test._testMethodName, None)
    return getattr(method, "deadline_seconds", getattr(test, "deadline_seconds", DEADLINE_SECONDS))


def run_in_this_process(test):
    """Returns the report of a failure, or nothing."""
    result = unittest.TestResult()
    test.run(result)
    problems = [report for _, report in result.failures + result.errors]
    problems += [f"skipped: {reason}" for _, reason in result.skipped]
    problems += ["an expected failure passed" for _ in result.unexpectedSuccesses]
    if not result.testsRun and not problems:
        problems.append("the test did not run")
    return "\n".join(problems)


def child_main(test, output, report):
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    code = 1
    try:
        problems = run_in_this_process(test)
        code = 1 if problems else 0
    except BaseException:
        problems = traceback.format_exc()
    finally:
        os.write(report, problems.encode()[-60000:])
        sys.stdout.flush()
        # Leaves no room for a stuck destructor: what the test found has been reported.
        os._exit(code)


def run_isolated(test):
    """Runs one test in a forked process; returns (passed, text to show when it did not)."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as report:
        child = os.fork()
        if child == 0:
            child_main(test, output.fileno(), report.fileno())
        handle = os.pidfd_open(child)
        ended, _, _ = select.select([handle], [], [], deadline_of(test))
        os.close(handle)
        try:
            # The child is not reaped yet, so the number of its group cannot have been given to anybody else.
            os.killpg(child, signal.SIGKILL)
        except ProcessLookupError:
            pass
        _, status = os.waitpid(child, 0)
        output.seek(0)
        report.seek(0)
        problems = report.read().decode(errors="replace")
        if not ended:
            problems = f"killed: no end after {deadline_of(test):.0f} s\n{problems}"
        elif os.WIFSIGNALED(status):
            problems = f"killed by signal {os.WTERMSIG(status)}\n{problems}"
        passed = bool(ended) and os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0
        return passed, problems + "\n--- output ---\n" + output.read().decode(errors="replace")[-12000:]


def main():
    sys.path.insert(0, str(HERE))
    os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    try:
        # Imported once, here; the forked tests inherit it.
        import torch
        import torch.distributed
    except ImportError as error:
        print(f"PyTorch cannot be imported ({error}): run tests/interop/setup.sh and use its Python")
        print("0 passed, 1 failed")
        return 1
    import harness

    if harness.SERVER_UNDER_TEST == "rdzv" and not os.access(harness.RDZV, os.X_OK):
        print(f"no program at {harness.RDZV}: build rdzv first, or name it by RDZV")
        print("0 passed, 1 failed")
        return 1
    wanted = sys.argv[1:]
    tests = list(flatten(unittest.TestLoader().discover(str(HERE), pattern="test_*.py")))
    tests = [test for test in tests if not wanted or any(part in test.id() for part in wanted)]
    print(f"PyTorch {torch.__version__}, server under test: {harness.SERVER_UNDER_TEST}, {len(tests)} tests")
    passed = failed = 0
    for test in tests:
        started = time.monotonic()
        success, text = run_isolated(test)
        print(f"{'ok  ' if success else 'FAIL'} {test.id()} ({time.monotonic() - started:.2f} s)", flush=True)
        if success:
            passed += 1
        else:
            failed += 1
            print(text.rstrip(), flush=True)
    if not tests:
        print("no test matches")
        failed += 1
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
