"""A resumed run ends with the weights of an uninterrupted one, whenever it was interrupted."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mnemorank.errors import ConflictError, InputError, MnemorankError
from mnemorank.training.progress import InterruptedTrainingError
from mnemorank.training.recipe import parse_recipe
from mnemorank.training.run import train
from tests.training.conftest import base_tables


def run_in_child(tables: dict, output: str, resume: bool) -> None:
    train(parse_recipe(tables), Path(output), resume=resume)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, tiny_bert, train_lists, dev_lists):
    """The weights that every resumed run must end with."""
    output = tmp_path_factory.mktemp("uninterrupted") / "out"
    train(parse_recipe(lengthen(base_tables(tiny_bert, train_lists, dev_lists))), output)
    return weights(output)


@pytest.fixture
def long_tables(tables):
    return lengthen(tables)


def lengthen(tables):
    """Two stages, dropout, an average and dev scores: everything that a checkpoint must restore."""
    tables["threads"] = 1
    tables["save_every"] = 3
    tables["model"]["dropout"] = 0.1
    tables["average"] = {"decay": 0.9}
    tables["lists"] = {"positives": 1, "negatives": 2}
    tables["stage"] = [{"name": "one", "epochs": 2}, {"name": "two", "epochs": 2, "learning_rate": 5e-4}]
    return tables


def weights(folder):
    return load_file(folder / "model.safetensors")


def assert_same(one, two):
    assert one.keys() == two.keys()
    assert all(torch.equal(one[key], two[key]) for key in one)


def checkpoints(output):
    return sorted(output.glob("checkpoints/*/checkpoint-*"))


@pytest.mark.slow
def test_a_run_killed_several_times_ends_with_the_same_weights(long_tables, tmp_path, uninterrupted):
    output = tmp_path / "interrupted"
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["mnemorank.training.run"])

    kills = 0
    for attempt in range(3):
        before = set(checkpoints(output))
        resume = (output / "checkpoints" / "run.json").exists()
        child = processes.Process(target=run_in_child, args=(long_tables, str(output), resume))
        child.start()
        deadline = time.monotonic() + 90
        # The first is killed at a checkpoint, the others some time after one, so that work is lost.
        while child.is_alive() and not set(checkpoints(output)) - before:
            assert time.monotonic() < deadline, "no checkpoint was written"
            time.sleep(0.005)
        time.sleep(0.15 * attempt)
        child.kill()
        child.join()
        kills += child.exitcode == -signal.SIGKILL
        if (output / "mnemorank.json").exists():
            break
    assert kills >= 2
    if not (output / "mnemorank.json").exists():
        train(parse_recipe(long_tables), output, resume=True)
    assert_same(uninterrupted, weights(output))


def interrupt_at(step):
    def on_progress(progress):
        if progress.step == step and not progress.is_evaluation:
            os.kill(os.getpid(), signal.SIGINT)

    return on_progress


def test_an_interrupt_saves_a_checkpoint(long_tables, tmp_path, uninterrupted):
    output = tmp_path / "interrupted"
    with pytest.raises(InterruptedTrainingError, match="step 5 of 12"):
        train(parse_recipe(long_tables), output, on_progress=interrupt_at(5))
    assert [path.name for path in checkpoints(output)] == ["checkpoint-3", "checkpoint-5"]
    assert json.loads((output / "checkpoints" / "clock.json").read_text())["seconds"] > 0
    (output / "checkpoints" / "clock.json").write_text('{"seconds": 7200}')

    resumed = train(parse_recipe(long_tables), output, resume=True)
    assert_same(uninterrupted, weights(output))
    assert resumed.manifest.recipe["seconds"] > 7200
    assert "Trained in 120" in (output / "README.md").read_text(encoding="utf-8")


def test_a_run_interrupted_at_early_stopping_is_not_trained_further(tables, tmp_path):
    tables["train"] |= {"epochs": 30, "learning_rate": 2e-3}
    tables["dev"] |= {"patience": 2}
    steps = train(parse_recipe(tables), tmp_path / "uninterrupted").manifest.recipe["stages"][0]["steps"]
    output = tmp_path / "interrupted"
    with pytest.raises(InterruptedTrainingError, match=f"step {steps} of"):
        train(parse_recipe(tables), output, on_progress=interrupt_at(steps))
    reports = []
    resumed = train(parse_recipe(tables), output, resume=True, on_progress=reports.append)
    assert not reports
    assert resumed.manifest.recipe["stages"][0]["steps"] == steps
    assert_same(weights(tmp_path / "uninterrupted"), weights(output))


def test_slow_runs_are_saved_by_the_clock(long_tables, tmp_path):
    """A checkpoint is written when the last is `save_minutes` old, after any number of steps."""
    long_tables["save_every"], long_tables["save_minutes"] = 1000, 0
    output, saved = tmp_path / "interrupted", []

    def on_progress(progress):
        saved.append([path.name for path in checkpoints(output)])
        interrupt_at(4)(progress)

    with pytest.raises(InterruptedTrainingError):
        train(parse_recipe(long_tables), output, on_progress=on_progress)
    assert saved[-1] == ["checkpoint-2", "checkpoint-3"]


def test_a_full_disk_leaves_the_last_checkpoint_intact(long_tables, tmp_path, uninterrupted):
    """A limit on the size of files makes writes fail as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill_disk(progress):
        if progress.step == 5:
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))

    output = tmp_path / "interrupted"
    try:
        with pytest.raises(MnemorankError, match="could not be written"):
            train(parse_recipe(long_tables), output, on_progress=fill_disk)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in checkpoints(output)] == ["checkpoint-3"]
    assert not list(output.glob("checkpoints/*/*.partial"))

    train(parse_recipe(long_tables), output, resume=True)
    assert_same(uninterrupted, weights(output))


def test_a_run_that_failed_before_training_can_be_started_again(long_tables, tmp_path):
    path = Path(long_tables["data"][0]["path"])
    content = path.read_text()
    path.write_text("not json")
    with pytest.raises(InputError):
        train(parse_recipe(long_tables), tmp_path / "out")
    path.write_text(content)
    with pytest.raises(InterruptedTrainingError):
        train(parse_recipe(long_tables), tmp_path / "out", on_progress=interrupt_at(2))


def test_a_run_killed_between_stages_is_not_overwritten(long_tables, tmp_path):
    """Such a run has no checkpoint, but a finished stage that a new recipe must not use."""
    output = tmp_path / "out"
    with pytest.raises(InterruptedTrainingError):
        train(
            parse_recipe(long_tables), output, on_progress=lambda p: interrupt_at(2)(p) if p.stage_number == 2 else None
        )
    for path in checkpoints(output):
        shutil.rmtree(path)
    assert (output / "checkpoints" / "1-one.safetensors").exists()
    with pytest.raises(ConflictError, match="--resume") as caught:
        train(parse_recipe({**long_tables, "seed": 2}), output)
    assert caught.value.field == "--output"


def test_a_new_run_does_not_reuse_the_evaluation_of_another_base(long_tables, tmp_path):
    output = tmp_path / "out"

    def kill(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(parse_recipe(long_tables), output, on_progress=kill)
    before = output / "checkpoints" / "base.json"
    before.write_text('{"seconds": 1, "values": {"map": [7.0]}}')
    with pytest.raises(InterruptedTrainingError):
        train(parse_recipe({**long_tables, "seed": 2}), output, on_progress=interrupt_at(2))
    assert json.loads(before.read_text())["values"]["map"] != [7.0]


def test_a_run_cannot_be_resumed_with_another_recipe_or_other_data(long_tables, tmp_path):
    output = tmp_path / "out"
    with pytest.raises(InterruptedTrainingError):
        train(parse_recipe(long_tables), output, on_progress=interrupt_at(2))
    with pytest.raises(ConflictError, match="--resume") as caught:
        train(parse_recipe(long_tables), output)
    assert caught.value.field == "--output"

    other = json.loads(json.dumps(long_tables))
    other["stage"][1]["learning_rate"] = 1e-4
    with pytest.raises(ConflictError, match=r"recipe\.stage\.1\.learning_rate") as caught:
        train(parse_recipe(other), output, resume=True)
    assert caught.value.field == "--resume"
    path = Path(long_tables["data"][0]["path"])
    changed = tmp_path / path.name
    changed.write_text(path.read_text() + path.read_text().splitlines()[0].replace("1-0", "1-99"), encoding="utf-8")
    run = json.loads((output / "checkpoints" / "run.json").read_text())
    run["recipe"]["stage"][0]["data"][0]["path"] = run["recipe"]["stage"][1]["data"][0]["path"] = str(changed)
    (output / "checkpoints" / "run.json").write_text(json.dumps(run))
    other = {**long_tables, "data": [{**long_tables["data"][0], "path": str(changed)}]}
    with pytest.raises(ConflictError, match=r"data\.0\.sha256"):
        train(parse_recipe(other), output, resume=True)
