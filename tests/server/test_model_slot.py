"""Model swaps by API and by registry: under load, never to a broken model, never mixed within a request."""

from __future__ import annotations

import gc
import json
import os
import shutil
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from mnemorank import Memory, Reranker
from mnemorank.artifact.manifest import Manifest, write_manifest
from mnemorank.server import model_slot
from mnemorank.server.api.admin import current_version


def make_model(source: Path, folder: Path, constant: float) -> Path:
    """Copy the tiny model with another constant: it scores the number of common words minus the constant."""
    shutil.copytree(source, folder)
    model = onnx.load(str(folder / "model.onnx"))
    for tensor in model.graph.initializer:
        if tensor.name == "one":
            tensor.CopyFrom(numpy_helper.from_array(np.array(constant, dtype=np.float32), "one"))
    onnx.save(model, str(folder / "model.onnx"))
    write_manifest(folder, Manifest(folder.name, version="1", max_length=64))
    return folder


@pytest.fixture(scope="module")
def models_dir(tiny_onnx, tmp_path_factory):
    folder = tmp_path_factory.mktemp("choice")
    make_model(tiny_onnx, folder / "two", 2.0)
    make_model(tiny_onnx, folder / "five", 5.0)
    make_model(tiny_onnx, folder / "damaged", 1.0)
    with (folder / "damaged" / "model.onnx").open("ab") as stream:
        stream.write(b"bit rot")
    make_model(tiny_onnx, folder / "not-a-number", float("nan"))
    (folder / "empty").mkdir()
    (folder / "file").write_text("not a folder")
    return folder


@pytest.fixture(scope="module")
def choice(start, models_dir):
    return start(models_dir=models_dir, model=str(models_dir / "two"))


def raw(client, count=1):
    answer = client.post("/rerank", json={"query": "ruby", "texts": ["ruby"] * count, "raw_scores": True})
    assert answer.status_code == 200, answer.text
    return {entry["score"] for entry in answer.json()}


def test_swap_by_api(choice):
    choice.client.post("/v1/models/swap", json={"model": "two"})
    assert raw(choice.client) == {-1.0}
    answer = choice.client.post("/v1/models/swap", json={"model": "five"})
    assert answer.status_code == 200
    assert answer.json()["model"].startswith("five@1+")
    assert answer.json()["previous"].startswith("two@1+")
    assert raw(choice.client) == {-4.0}
    assert choice.client.get("/v1/models").json()["data"][0]["id"] == "five"
    assert "mnemorank_model_info{fingerprint=" in choice.client.get("/metrics").text
    assert 'name="two"' not in choice.client.get("/metrics").text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("damaged", "does not match the hash"),
        ("not-a-number", "not numbers"),
        ("empty", "is not a model folder"),
    ],
)
def test_a_broken_model_is_refused_and_the_old_one_stays(choice, name, words):
    choice.client.post("/v1/models/swap", json={"model": "five"})
    answer = choice.client.post("/v1/models/swap", json={"model": name})
    assert answer.status_code == 409
    assert answer.json()["error"]["code"] == "model_refused"
    assert words in answer.json()["error"]["message"]
    assert raw(choice.client) == {-4.0}


@pytest.mark.parametrize(
    "name", ["../two", "/etc", "two/../five", "file", "hf:org/name", "", "two\x00", ".", "..", "nothing", "two/"]
)
def test_paths_in_requests_do_not_reach_the_file_system(choice, models_dir, name):
    answer = choice.client.post("/v1/models/swap", json={"model": name})
    assert answer.status_code in (404, 422)
    in_dialect = choice.client.post("/v2/rerank", json={"model": name, "query": "ruby", "documents": ["ruby"]})
    assert in_dialect.status_code == 200, "dialects ignore the name"
    assert str(models_dir) not in answer.text


def test_swaps_under_load_fail_no_request_and_mix_no_models(choice):
    stop = threading.Event()
    seen: set[float] = set()

    def ask() -> int:
        count = 0
        while not stop.is_set():
            scores = raw(choice.client, 40)
            assert len(scores) == 1, "a request was scored by two models"
            seen.update(scores)
            count += 1
        return count

    with ThreadPoolExecutor(6) as pool:
        asking = [pool.submit(ask) for _ in range(6)]
        for number in range(20):
            answer = choice.client.post("/v1/models/swap", json={"model": ("two", "five")[number % 2]})
            assert answer.status_code == 200
        stop.set()
        assert sum(future.result(30) for future in asking) > 20
    assert seen == {-1.0, -4.0}


def test_an_old_model_is_closed_when_its_last_request_is_done(choice):
    slot = choice.app.state.slot
    old = slot.acquire()
    slot.swap(old.source)
    assert np.isfinite(old.model.score("ruby", [Memory("ruby")]).raw).all()
    assert old.is_retired
    slot.release(old)
    end = time.monotonic() + 10
    while any(thread.is_alive() for thread in old.scorer._threads):
        assert time.monotonic() < end
        time.sleep(0.01)


def point_at(registry: Path, version: Path) -> None:
    """Change `current` like a registry: create a new link and rename it over the old one."""
    link = registry / ".next"
    os.symlink(version, link)
    os.replace(link, registry / "current")


@pytest.mark.slow
def test_the_current_version_of_the_registry_is_followed(start, models_dir, tmp_path):
    running = start(registry=tmp_path, model=str(models_dir / "two"))
    assert raw(running.client) == {-1.0}, "nothing promoted yet: the configured model"
    point_at(tmp_path, models_dir / "five")
    end = time.monotonic() + 15
    while raw(running.client) != {-4.0}:
        assert time.monotonic() < end, "the promotion was not followed"
        time.sleep(0.05)
    point_at(tmp_path, models_dir / "damaged")
    while 'mnemorank_swaps_total{outcome="refused"} 1.0' not in running.client.get("/metrics").text:
        assert time.monotonic() < end, "the bad version was not tried"
        time.sleep(0.05)
    assert raw(running.client) == {-4.0}


def test_a_registry_pointer_may_be_a_link_or_a_file(tmp_path):
    assert current_version(tmp_path) is None
    (tmp_path / "versions" / "v1").mkdir(parents=True)
    (tmp_path / "current").write_text("v1\n")
    assert current_version(tmp_path) == (tmp_path / "versions" / "v1").resolve()
    (tmp_path / "current").unlink()
    (tmp_path / "current").symlink_to("versions/v1")
    assert current_version(tmp_path) == (tmp_path / "versions" / "v1").resolve()
    (tmp_path / "versions" / "v1").rmdir()
    assert current_version(tmp_path) is None


def test_models_are_listed(choice):
    listed = choice.client.get("/v1/models").json()
    assert {"two", "five", "damaged", "empty"} <= set(listed["available"])
    assert "file" not in listed["available"]
    assert json.dumps(listed).count(str(choice.app.state.settings.models_dir)) == 0


def test_a_model_that_hangs_while_it_is_checked_does_not_block_other_swaps(start, models_dir, monkeypatch):
    running = start(models_dir=models_dir, model=str(models_dir / "two"), swap_timeout=0.3)
    slot, released, closed = running.app.state.slot, threading.Event(), []
    check = model_slot.probe

    def hang(model):
        if model.manifest.name == "five" and not released.is_set():
            released.wait(20)
        check(model)

    monkeypatch.setattr(model_slot, "probe", hang)
    close = Reranker.close
    monkeypatch.setattr(Reranker, "close", lambda self: (closed.append(self.model.manifest.name), close(self)))
    try:
        hanging = running.client.post("/v1/models/swap", json={"model": "five"})
        assert (hanging.status_code, hanging.json()["error"]["code"]) == (409, "model_refused")
        assert "swap_timeout = 0.3" in hanging.text
        slot._swap_timeout = 20  # a busy machine may need longer for a model that does not hang
        assert running.client.post("/v1/models/swap", json={"model": "two"}).status_code == 200
        slot._swap_timeout = 0.3
        assert running.client.post("/v1/models/swap", json={"model": "five"}).status_code == 409
        slot._swap_timeout = 20
        refused = running.client.post("/v1/models/swap", json={"model": "two"})
        assert (refused.status_code, "still being loaded" in refused.text) == (409, True)
    finally:
        released.set()
    end = time.monotonic() + 20
    while closed.count("five") < 2:
        assert time.monotonic() < end, "models that came too late are closed"
        time.sleep(0.02)
    while any(loading.is_alive() for loading in slot._abandoned):
        time.sleep(0.02)
    assert running.client.post("/v1/models/swap", json={"model": "five"}).status_code == 200


def test_a_model_that_was_swapped_out_leaves_no_memory_behind(start, models_dir):
    """Not even until the next garbage collection, which may be far away."""
    running = start(models_dir=models_dir, model=str(models_dir / "two"))
    served = running.app.state.slot.current
    parts = [weakref.ref(part) for part in (served.scorer, served.scorer.scorer, served.scorer.scorer._writer)]
    del served
    gc.disable()
    try:
        assert running.client.post("/v1/models/swap", json={"model": "five"}).status_code == 200
        end = time.monotonic() + 10
        while any(part() is not None for part in parts):
            assert time.monotonic() < end, [part() for part in parts]
            time.sleep(0.02)
    finally:
        gc.enable()
