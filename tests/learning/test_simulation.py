"""The loop end to end: a real server, real training in a separate process, and users with a hidden preference."""

import random
import time
from pathlib import Path

import pytest

from mnemorank.learning.loop import Loop
from mnemorank.learning.measurement import measure_models
from mnemorank.learning.versions import VersionStore
from tests.learning import simulation
from tests.learning.server import serving, wait_until, write_settings

SETTINGS = """
explore = 0.1
explore_seed = 1
[privacy]
texts = true
[mining]
max_queries_per_user = 30
[training]
replay = "{replay}"
replay_weight = 2.0
threads = 1
nice = 0
overrides = [
  "train.epochs=6", "train.learning_rate=0.001", "train.batch_size=8", "train.head_factor=1.0", "dev.patience=9",
]
[guards]
general = "{general}"
dated = "{dated}"
[gate]
max_latency_ratio = 5.0
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    return simulation.write_sets(tmp_path_factory.mktemp("sets"))


@pytest.fixture(scope="module")
def model(simulation_base: Path, tmp_path_factory) -> Path:
    """An exported INT8 model without torch weights, as users have it."""
    from mnemorank.export.exporter import export

    folder = tmp_path_factory.mktemp("served") / "tiny"
    export(simulation_base, folder, quantize="int8")
    return folder


def simulate_sessions(client, users, rng: random.Random, count: int) -> None:
    """In each session a user asks, reads from the top, and clicks, all over HTTP."""
    for query in simulation.sample_queries(rng, count):
        user = rng.choice(users)
        texts = [memory.text for memory in simulation.make_pool(rng, query)]
        body = {"query": query, "memories": texts, "user": user.name, "options": {"first_stage": "none"}}
        response = client.post("/v1/memories/rerank", json=body).json()
        ranks = user.clicked_ranks([result["text"] for result in response["results"]])
        if ranks:
            signals = [{"kind": "click", "rank": rank} for rank in ranks]
            stored = client.post("/v1/feedback", json={"event_id": response["event_id"], "signals": signals})
            assert stored.status_code == 200, stored.text


def run_loop(client) -> dict:
    """Run the loop once; return the finished run."""
    started = client.post("/v1/learning/run")
    assert started.status_code == 202, started.text
    run_id = started.json()["id"]
    second = client.post("/v1/learning/train", json={})
    assert (second.status_code, second.json()["error"]["code"]) == (409, "run_in_progress")
    end = time.monotonic() + 280
    while (run := client.get(f"/v1/learning/runs/{run_id}").json())["state"] in ("waiting", "running"):
        assert time.monotonic() < end, run
        time.sleep(0.2)
    assert run["state"] == "done", (run, client.get(f"/v1/learning/runs/{run_id}/log").json())
    return run


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_rounds_of_feedback_result_in_a_better_model(tmp_path, files, model):
    root = write_settings(tmp_path / "loop", SETTINGS.format(**files))
    rng = random.Random(11)
    users = [simulation.User(f"user{i}", random.Random(i)) for i in range(25)]
    with serving(model=str(model), learning=root) as client:
        simulate_sessions(client, users, rng, 220)
        first = run_loop(client)
        assert first["promoted"], first["decision"]
        wait_until(lambda: f"versions/{first['version']}" in client.app.state.slot.current.source)
        simulate_sessions(client, users, rng, 120)
        second = run_loop(client)
        history = client.get("/v1/learning/history").json()["entries"]
        assert client.get(f"/v1/learning/runs/{first['id']}/log").json()["lines"]
    versions = VersionStore(root / "versions")
    assert versions.get("0001").torch_path is None, "training started from weights restored from the ONNX file"
    assert versions.current().name == (second if second["promoted"] else first)["version"]
    sets = {"preference": simulation.preference_examples(77, 80), "general": simulation.general_examples(78, 60)}
    before, after = measure_models([versions.get("0001").path, versions.current().path], sets)
    assert before.sets["preference"].mean("map") < 0.75
    assert after.sets["preference"].mean("map") > before.sets["preference"].mean("map") + 0.15
    assert after.sets["general"].mean("map") >= before.sets["general"].mean("map") - 0.02
    assert [entry["action"] for entry in history[:5]] == ["add", "promote", "add", "evaluate", "promote"]
    assert not list((root / "runs").glob("*/feedback.jsonl")), "no file of a run keeps feedback"
    with Loop(root) as loop:
        status = loop.status()
        assert loop.propensities().impressions > 0, "exploration shows memories at several ranks"
        assert loop.delete("user", "user3", "default").models.keys() >= {first["version"]}
    assert status["untrained_examples"] == 0
