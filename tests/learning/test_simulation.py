"""The loop end to end: a real server, real training in a process of its own, users whose wish is hidden from us."""

import random
import time
from pathlib import Path

import pytest

from mnemorank.learning.loop import Loop
from mnemorank.learning.measurement import measure_models
from mnemorank.learning.versions import Registry
from tests.learning import simulated as world
from tests.learning.learning_server import learning_folder, serving

SETTINGS = """
explore = 0.1
explore_seed = 1
[privacy]
texts = true
[mining]
per_user = 30
[training]
replay = "{replay}"
replay_weight = 2.0
threads = 1
nice = 0
changes = [
  "train.epochs=6", "train.learning_rate=0.001", "train.batch_size=8", "train.head_factor=1.0", "dev.patience=9",
]
[guards]
general = "{general}"
dated = "{dated}"
[gate]
latency = 5.0
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    return world.write_sets(tmp_path_factory.mktemp("sets"))


@pytest.fixture(scope="module")
def model(tiny_world_base: Path, tmp_path_factory) -> Path:
    """What a user has: the exported model alone, INT8, without torch weights."""
    from mnemorank.export.exporter import export

    folder = tmp_path_factory.mktemp("served") / "tiny"
    export(tiny_world_base, folder, quantize="int8")
    return folder


def use(client, users, source: random.Random, sessions: int) -> None:
    """Each session: a user asks, reads from the top, clicks; all over HTTP."""
    for query in world.queries(source, sessions):
        user = source.choice(users)
        texts = [memory.text for memory in world.pool(source, query)]
        body = {"query": query, "memories": texts, "user": user.name, "options": {"first_stage": "none"}}
        answer = client.post("/v1/memories/rerank", json=body).json()
        clicked = user.clicks([result["text"] for result in answer["results"]])
        if clicked:
            signals = [{"kind": "click", "rank": rank} for rank in clicked]
            stored = client.post("/v1/feedback", json={"event_id": answer["event_id"], "signals": signals})
            assert stored.status_code == 200, stored.text


def learn(client) -> dict:
    """One turn of the loop; returns the finished run."""
    begun = client.post("/v1/learning/run")
    assert begun.status_code == 202, begun.text
    run_id = begun.json()["id"]
    refused = client.post("/v1/learning/train", json={})
    assert refused.status_code == 409, "two trainings at once"
    end = time.monotonic() + 280
    while (run := client.get(f"/v1/learning/runs/{run_id}").json())["state"] in ("waiting", "running"):
        assert time.monotonic() < end, run
        time.sleep(0.2)
    assert run["state"] == "done", (run, client.get(f"/v1/learning/runs/{run_id}/log").json())
    return run


@pytest.mark.timeout(600)
def test_two_rounds_of_feedback_make_a_better_model(tmp_path, files, model):
    root = learning_folder(tmp_path / "loop", SETTINGS.format(**files))
    source = random.Random(11)
    users = [world.User(f"user{i}", random.Random(i)) for i in range(25)]
    with serving(model=str(model), learning=root) as client:
        use(client, users, source, 220)
        first = learn(client)
        assert first["promoted"], first["decision"]
        until_served(client, first["version"])
        use(client, users, source, 120)
        second = learn(client)
        history = client.get("/v1/learning/history").json()["entries"]
        log = client.get(f"/v1/learning/runs/{first['id']}/log").json()["lines"]
    assert any("restored torch weights" in line for line in log)
    registry = Registry(root / "registry")
    assert registry.current().name == (second if second["promoted"] else first)["version"]
    sets = {"wishes": world.preference_examples(77, 80), "general": world.general_examples(78, 60)}
    before, after = measure_models([registry.version("0001").path, registry.current().path], sets)
    assert before.sets["wishes"].mean("map") < 0.75
    assert after.sets["wishes"].mean("map") > before.sets["wishes"].mean("map") + 0.15
    assert after.sets["general"].mean("map") >= before.sets["general"].mean("map") - 0.02
    assert [entry["action"] for entry in history[:5]] == ["add", "promote", "add", "evaluate", "promote"]
    assert not list((root / "runs").glob("*/feedback.jsonl")), "the feedback stays in no file of a run"
    with Loop(root) as loop:
        status = loop.status()
        assert loop.propensities().evidence > 0, "exploration tells positions apart"
        assert loop.forget("user", "user3", "default").models.keys() >= {first["version"]}
    assert status["untrained_examples"] == 0


def until_served(client, version: str) -> None:
    end = time.monotonic() + 30
    while f"versions/{version}" not in client.app.state.slot.current.source:
        assert time.monotonic() < end, "the promoted version is not served"
        time.sleep(0.05)
