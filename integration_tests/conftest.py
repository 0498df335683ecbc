"""A real server, for the clients of other servers; a Ray cluster."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shared import started

# For a busy machine. By default, Ray lowers the priority of its workers by 15, which starves them next to other work,
# and Ray Serve kills a proxy that is not ready after 15 seconds.
_PATIENCE = {
    "RAY_worker_niceness": "0",
    "RAY_raylet_start_wait_time_s": "90",
    "RAY_worker_register_timeout_seconds": "240",
    "RAY_health_check_timeout_ms": "60000",
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "240",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "60",
}


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """The address of `mnemorank serve`; needs the extra `serve`."""
    log = Path(tmp_path_factory.mktemp("server") / "log")
    with log.open("w") as stream:
        command = [sys.executable, "-m", "mnemorank", "serve", "--port", "0"]
        server = subprocess.Popen(command, stderr=stream, stdout=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 60
        while (found := re.search(r"http://127\.0\.0\.1:[1-9]\d*", log.read_text())) is None:
            assert time.monotonic() < end, log.read_text()
            assert server.poll() is None, log.read_text()
            time.sleep(0.1)
        yield found[0]
    finally:
        server.terminate()
        server.wait(30)


@pytest.fixture
def cluster():
    """A Ray cluster whose head has no cores, so that all work is done by nodes that a test may kill."""
    for name, value in _PATIENCE.items():
        os.environ.setdefault(name, value)
    import ray
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "include_dashboard": False}
    cluster = started(lambda: Cluster(initialize_head=True, head_node_args=head))
    yield cluster
    ray.shutdown()
    cluster.shutdown()
