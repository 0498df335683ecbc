"""Bulk jobs on Ray clusters of several nodes, some of which are killed: the rows are those of one process."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import ray
from tests.data.endpoint import Endpoint, serving

from mnemorank import InputError
from mnemorank.bulk import BulkJob, run_bulk
from shared import connect, wait_for

pytestmark = pytest.mark.timeout(1800)  # for what hangs; a busy machine is slow

WORDS = "Ruby works at Aurora Labs before Zenith Berlin lives moved cat dog doctor visit March trip Lisbon".split()


def write_questions(path: Path, count: int, candidates: int = 6) -> str:
    generator = random.Random(1)
    with path.open("w") as stream:
        for i in range(count):
            texts = [" ".join(generator.choices(WORDS, k=8)) for _ in range(candidates)]
            record = {"id": f"q{i}", "query": " ".join(generator.choices(WORDS, k=4)), "memories": texts}
            stream.write(json.dumps(record) + "\n")
    return str(path)


def rows(folder: Path) -> list[dict]:
    return pq.read_table(folder).to_pylist()


@pytest.mark.parametrize("nodes", [2, 3])
def test_a_cluster_gives_the_same_rows_as_one_process(tmp_path, cluster, nodes):
    path = write_questions(tmp_path / "q.jsonl", 40)
    with open(path, "a") as stream:
        stream.write("not JSON\n")
    local = run_bulk(BulkJob("score", (path,), str(tmp_path / "local"), {"model": "mini"}, 7))
    connect(cluster, nodes)
    reports: list[tuple[int, ...]] = []
    job = BulkJob("score", (path,), str(tmp_path / "ray"), {"model": "mini"}, 7)
    on_ray = run_bulk(job, engine="ray", on_progress=lambda *report: reports.append(report))
    assert rows(tmp_path / "ray") == rows(tmp_path / "local")
    assert on_ray.failures == local.failures
    assert (on_ray.rows, len(on_ray.failures)) == (40, 1)
    assert [done for done, *_ in reports] == list(range(7))
    assert reports[-1] == (6, 6, 40, 1)


def test_every_task_gives_the_same_rows_as_one_process(tmp_path, cluster):
    """In one test, since a cluster takes long to start."""
    generator = random.Random(2)
    texts = [" ".join(generator.sample(WORDS, 6)) for _ in range(36)]
    memories, examples = tmp_path / "memories.jsonl", tmp_path / "examples.jsonl"
    memories.write_text("".join(json.dumps({"id": f"m{i}", "text": text}) + "\n" for i, text in enumerate(texts)))
    with examples.open("w") as stream:
        for i in range(12):
            candidates = [{"text": text, "label": float(j == 0)} for j, text in enumerate(texts[3 * i : 3 * i + 3])]
            query = " ".join(generator.sample(WORDS, 3))
            stream.write(json.dumps({"id": f"q{i}", "query": query, "candidates": candidates}) + "\n")
        stream.write(json.dumps({"query": "", "candidates": []}) + "\n")
    connect(cluster, 2)
    with serving(Endpoint()) as url:
        for task, path, options in [
            ("prepare", memories, {"model": "mini"}),
            ("mine", examples, {"mining": {"count": 2}, "corpus": [str(memories)], "seed": 3}),
            ("label", examples, {"teacher": {"url": url, "model": "judge"}}),
            ("evaluate", examples, {"model": "mini"}),
        ]:
            inputs, output = (path.as_uri(),), tmp_path / task
            local = run_bulk(BulkJob(task, inputs, str(output / "local"), options, 4), threads=1)
            on_ray = run_bulk(BulkJob(task, inputs, (output / "ray").as_uri(), options, 4), engine="ray", workers=2)
            assert rows(output / "ray") == rows(output / "local")
            assert (on_ray.rows, on_ray.failures, on_ray.summary) == (local.rows, local.failures, local.summary)
            assert (on_ray.rows, len(on_ray.failures)) == ((36, 0) if task == "prepare" else (12, 1))

    # What is wrong with the whole job is the same error as in one process.
    teacher = {"url": "http://127.0.0.1:9", "model": "judge", "key_variable": "MNEMORANK_UNKNOWN_KEY"}
    job = BulkJob("label", (str(examples),), str(tmp_path / "no-key"), {"teacher": teacher}, 4)
    with pytest.raises(InputError) as caught:
        run_bulk(job, engine="ray", workers=2)
    assert caught.value.field == "MNEMORANK_UNKNOWN_KEY"


def test_a_lost_node_loses_no_row(tmp_path, cluster):
    path = write_questions(tmp_path / "q.jsonl", 120, 12)
    run_bulk(BulkJob("score", (path,), str(tmp_path / "local"), {"model": "mini"}, 5))
    nodes = connect(cluster, 3)
    killed_at = []

    def kill_a_node(done: int, total: int, *_: int) -> None:
        # No core is free: each node has an actor.
        if done and not killed_at and not ray.available_resources().get("CPU"):
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
    command += ["--engine", "ray"]
    driver = subprocess.Popen([*command, "--workers", "2"], start_new_session=True)

    def has_checkpoints() -> bool:
        assert driver.poll() is None
        return len(list(output.glob("block-*.parquet"))) >= 3

    try:
        wait_for(has_checkpoints)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    finished = len(list(output.glob("block-*.parquet")))
    assert 3 <= finished < 30
    out = tmp_path / "stdout"
    with out.open("w") as stdout:  # a file: Ray's processes keep pipes open
        subprocess.run([*command, "--json"], stdout=stdout, check=True)
    result = json.loads(out.read_text())
    assert result["continued"] >= finished
    assert result["rows"] == 150
    run_bulk(BulkJob("score", (path,), str(tmp_path / "local"), {"model": "mini"}, 5))
    assert rows(output) == rows(tmp_path / "local")
