"""Kill a process at a random point of its work."""

import json
import os
import random
import signal
import time


def run_until_killed(work, generator: random.Random, *, max_reports=20, max_wait=0.03):
    """Run `work(report)` in a forked process, kill it with SIGKILL, and return what it reported until then.

    It is killed a random while after a random number of reports, or when it ends by itself.

    :param work: calls `report` with a JSON value after each step that must not be lost.
    """
    read_end, write_end = os.pipe()
    child = os.fork()
    if not child:  # the child must not continue the test run
        status = 1
        try:
            signal.alarm(120)
            os.close(read_end)
            work(lambda value: os.write(write_end, json.dumps(value).encode() + b"\n"))
            status = 0
        finally:
            os._exit(status)
    os.close(write_end)
    reports = []
    count = generator.randint(0, max_reports)
    with os.fdopen(read_end) as stream:
        for line in stream if count else ():
            reports.append(json.loads(line))
            if len(reports) == count:
                break
        time.sleep(generator.uniform(0, max_wait))
        os.kill(child, signal.SIGKILL)
        reports += [json.loads(line) for line in stream if line.endswith("\n")]
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "the process failed"
    return reports
