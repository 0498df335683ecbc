"""Ray: bulk jobs, the sharded index and Ray Serve on clusters of several nodes, some of which are killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import ray
from ray.cluster_utils import Cluster

from mnemorank.bulk import BulkJob, run_bulk

WORDS = "Ruby works at Aurora Labs before Zenith Berlin lives moved cat dog doctor visit March trip Lisbon".split()


@pytest.fixture
def cluster():
    """A cluster whose head has no cores, so that all work is done by nodes that a test may kill."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def connect(cluster: Cluster, nodes: int) -> list:
    added = [cluster.add_node(num_cpus=1) for _ in range(nodes)]
    cluster.wait_for_nodes()
    ray.init(address=cluster.address, log_to_driver=False)
    return added


def write_questions(path: Path, count: int, candidates: int = 6) -> str:
    generator = random.Random(1)
    with path.open("w") as stream:
        for i in range(count):
            texts = [" ".join(generator.choices(WORDS, k=8)) for _ in range(candidates)]
            record = {"id": f"q{i}", "query": " ".join(generator.choices(WORDS, k=4)), "memories": texts}
            stream.write(json.dumps(record) + "\n")
    return str(path)


def run(folder: Path, command: list[str]) -> tuple[int, str, str]:
    """Run a module; return its exit status, stdout and stderr. They are files: Ray's processes would keep pipes open."""
    out, err = folder / "stdout", folder / "stderr"
    with out.open("w") as stdout, err.open("w") as stderr:
        done = subprocess.run([sys.executable, "-m", *command], stdout=stdout, stderr=stderr, timeout=250)
    return done.returncode, out.read_text(), err.read_text()


def rows(folder: Path) -> list[dict]:
    return pq.read_table(folder).to_pylist()


@pytest.mark.parametrize("nodes", [2, 3])
def test_a_cluster_gives_the_same_rows_as_one_process(tmp_path, cluster, nodes):
    path = write_questions(tmp_path / "q.jsonl", 60)
    with open(path, "a") as stream:
        stream.write("not JSON\n")
    local = run_bulk(BulkJob("score", (path,), str(tmp_path / "local"), {"model": "mini"}, 7))
    connect(cluster, nodes)
    on_ray = run_bulk(BulkJob("score", (path,), str(tmp_path / "ray"), {"model": "mini"}, 7), engine="ray")
    assert rows(tmp_path / "ray") == rows(tmp_path / "local")
    assert on_ray.failures == local.failures
    assert (on_ray.rows, len(on_ray.failures)) == (60, 1)


def test_a_lost_node_loses_no_row(tmp_path, cluster):
    path = write_questions(tmp_path / "q.jsonl", 120, 12)
    run_bulk(BulkJob("score", (path,), str(tmp_path / "local"), {"model": "mini"}, 5))
    nodes = connect(cluster, 3)
    killed_at = []

    def kill_a_node(done: int, total: int, *_: int) -> None:
        if done >= 4 and not killed_at:
            killed_at.append(done)
            cluster.remove_node(nodes.pop(), allow_graceful=False)

    job = BulkJob("score", (path,), str(tmp_path / "ray"), {"model": "mini"}, 5)
    result = run_bulk(job, engine="ray", on_progress=kill_a_node)
    assert killed_at
    assert killed_at[0] < 24
    assert result.rows == 120
    assert rows(tmp_path / "ray") == rows(tmp_path / "local")


def test_a_killed_driver_continues_from_its_checkpoints(tmp_path):
    path = write_questions(tmp_path / "q.jsonl", 150, 12)
    output = tmp_path / "ray"
    command = [sys.executable, "-m", "mnemorank", "bulk", "score", path, "--output", str(output), "--block-rows", "5"]
    driver = subprocess.Popen([*command, "--engine", "ray", "--workers", "2"], start_new_session=True)
    try:
        end = time.monotonic() + 120
        while len(list(output.glob("block-*.parquet"))) < 3:
            assert driver.poll() is None
            assert time.monotonic() < end
            time.sleep(0.02)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    finished = len(list(output.glob("block-*.parquet")))
    assert 3 <= finished < 30
    result = json.loads(run(tmp_path, [*command[2:], "--engine", "ray", "--json"])[1])
    assert result["continued"] >= finished
    assert result["rows"] == 150
    run_bulk(BulkJob("score", (path,), str(tmp_path / "local"), {"model": "mini"}, 5))
    assert rows(output) == rows(tmp_path / "local")


def test_an_error_of_the_job_is_reported_as_such(tmp_path):
    path = write_questions(tmp_path / "q.jsonl", 3)
    command = ["bulk", "score", path, "--output", str(tmp_path / "o"), "--engine", "ray", "--model", str(tmp_path)]
    status, _, errors = run(tmp_path, ["mnemorank", *command])
    assert status == 2
    assert "Traceback" not in errors
