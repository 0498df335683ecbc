"""A run broken off at any moment ends with the weights of an unbroken one."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mnemorank.cli import build_parser, main
from mnemorank.cli.train import resume_command
from mnemorank.errors import InputError, MnemorankError
from mnemorank.training.progress import InterruptedTrainingError
from mnemorank.training.recipe_files import parse_recipe
from mnemorank.training.run import train
from tests.training.conftest import base_tables


def run_in_child(tables: dict, output: str, resume: bool) -> None:
    train(parse_recipe(tables), Path(output), resume=resume)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory, tiny_bert, train_lists, dev_lists):
    """The weights that every broken run must end with."""
    output = tmp_path_factory.mktemp("unbroken") / "out"
    train(parse_recipe(lengthen(base_tables(tiny_bert, train_lists, dev_lists))), output)
    return weights(output)


@pytest.fixture
def long_tables(tables):
    return lengthen(tables)


def lengthen(tables):
    """Two stages, dropout, an average and dev scores: all that a checkpoint has to bring back."""
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


def test_killed_again_and_again_it_ends_as_if_it_had_never_been(long_tables, tmp_path, unbroken):
    output = tmp_path / "broken"
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["mnemorank.training.run"])

    kills = 0
    for attempt in range(3):
        before = set(checkpoints(output))
        resume = (output / "checkpoints" / "run.json").exists()
        child = processes.Process(target=run_in_child, args=(long_tables, str(output), resume))
        child.start()
        deadline = time.monotonic() + 90
        # The first is killed at a checkpoint, the next a little after one, so that work is lost.
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
    assert_same(unbroken, weights(output))


def interrupt_at(step):
    def report(progress):
        if progress.step == step and not progress.is_measurement:
            os.kill(os.getpid(), signal.SIGINT)

    return report


def test_ctrl_c_saves_and_says_how_to_go_on(long_tables, tmp_path, unbroken):
    output = tmp_path / "broken"
    with pytest.raises(InterruptedTrainingError, match=r"saved at step 5 of 12 \(stage one\)"):
        train(parse_recipe(long_tables), output, report=interrupt_at(5))
    assert [path.name for path in checkpoints(output)] == ["checkpoint-3", "checkpoint-5"]
    assert json.loads((output / "checkpoints" / "clock.json").read_text())["seconds"] > 0
    (output / "checkpoints" / "clock.json").write_text('{"seconds": 7200}')

    resumed = train(parse_recipe(long_tables), output, resume=True)
    assert_same(unbroken, weights(output))
    assert resumed.manifest.recipe["seconds"] > 7200
    assert "In 12" in (output / "README.md").read_text(encoding="utf-8")


def test_stopped_where_patience_ends_it_does_not_train_on(tables, tmp_path):
    tables["train"] |= {"epochs": 30, "learning_rate": 2e-3}
    tables["dev"] |= {"patience": 2}
    steps = train(parse_recipe(tables), tmp_path / "unbroken").manifest.recipe["stages"][0]["steps"]
    output = tmp_path / "broken"
    with pytest.raises(InterruptedTrainingError, match=f"saved at step {steps} of"):
        train(parse_recipe(tables), output, report=interrupt_at(steps))
    seen = []
    resumed = train(parse_recipe(tables), output, resume=True, report=seen.append)
    assert not seen
    assert resumed.manifest.recipe["stages"][0]["steps"] == steps
    assert_same(weights(tmp_path / "unbroken"), weights(output))


def test_a_slow_run_is_saved_by_the_clock(long_tables, tmp_path):
    """Few slow steps are as much work as many fast ones."""
    long_tables["save_every"], long_tables["save_minutes"] = 1000, 0
    output, seen = tmp_path / "broken", []

    def report(progress):
        seen.append([path.name for path in checkpoints(output)])
        interrupt_at(4)(progress)

    with pytest.raises(InterruptedTrainingError):
        train(parse_recipe(long_tables), output, report=report)
    assert seen[-1] == ["checkpoint-2", "checkpoint-3"]


def test_a_full_disk_leaves_the_last_checkpoint_whole(long_tables, tmp_path, unbroken):
    """The kernel refuses to let files grow, as it does when a disk is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill_disk(progress):
        if progress.step == 5:
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))

    output = tmp_path / "broken"
    try:
        with pytest.raises(MnemorankError, match=r"cannot be written \(.*\); what was saved before is whole"):
            train(parse_recipe(long_tables), output, report=fill_disk)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in checkpoints(output)] == ["checkpoint-3"]
    assert not list(output.glob("checkpoints/*/partial-*"))

    train(parse_recipe(long_tables), output, resume=True)
    assert_same(unbroken, weights(output))


def test_a_run_that_never_began_is_no_obstacle(long_tables, tmp_path):
    path = Path(long_tables["data"][0]["path"])
    whole = path.read_text()
    path.write_text("not json")
    with pytest.raises(InputError):
        train(parse_recipe(long_tables), tmp_path / "out")
    path.write_text(whole)
    with pytest.raises(InterruptedTrainingError):
        train(parse_recipe(long_tables), tmp_path / "out", report=interrupt_at(2))


def test_a_finished_stage_is_an_unfinished_run(long_tables, tmp_path):
    """Killed between two stages, a run has no checkpoint, yet a new recipe may not take its stage over."""
    output = tmp_path / "out"
    with pytest.raises(InterruptedTrainingError):
        train(parse_recipe(long_tables), output, report=lambda p: interrupt_at(2)(p) if p.number == 2 else None)
    for path in checkpoints(output):
        shutil.rmtree(path)
    assert (output / "checkpoints" / "1-one.safetensors").exists()
    with pytest.raises(InputError, match="holds an unfinished run; --resume goes on with it"):
        train(parse_recipe({**long_tables, "seed": 2}), output)


def test_a_new_start_does_not_take_over_the_scores_of_another_base(long_tables, tmp_path):
    output = tmp_path / "out"

    def kill(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(parse_recipe(long_tables), output, report=kill)
    before = output / "checkpoints" / "base.json"
    before.write_text('{"seconds": 1, "values": {"map": [7.0]}}')
    with pytest.raises(InterruptedTrainingError):
        train(parse_recipe({**long_tables, "seed": 2}), output, report=interrupt_at(2))
    assert json.loads(before.read_text())["values"]["map"] != [7.0]


def test_another_recipe_or_other_data_cannot_be_resumed(long_tables, tmp_path):
    output = tmp_path / "out"
    with pytest.raises(InterruptedTrainingError):
        train(parse_recipe(long_tables), output, report=interrupt_at(2))
    with pytest.raises(InputError, match="holds an unfinished run; --resume goes on with it"):
        train(parse_recipe(long_tables), output)

    other = json.loads(json.dumps(long_tables))
    other["stage"][1]["learning_rate"] = 1e-4
    with pytest.raises(InputError, match=r"--resume: recipe\.stage\[1\]\.learning_rate is not what it was"):
        train(parse_recipe(other), output, resume=True)
    path = Path(long_tables["data"][0]["path"])
    changed = tmp_path / path.name
    changed.write_text(path.read_text() + path.read_text().splitlines()[0].replace("1-0", "1-99"), encoding="utf-8")
    run = json.loads((output / "checkpoints" / "run.json").read_text())
    run["recipe"]["stage"][0]["data"][0]["path"] = run["recipe"]["stage"][1]["data"][0]["path"] = str(changed)
    (output / "checkpoints" / "run.json").write_text(json.dumps(run))
    other = {**long_tables, "data": [{**long_tables["data"][0], "path": str(changed)}]}
    with pytest.raises(InputError, match=r"--resume: data\[0\]\.sha256 is not what it was"):
        train(parse_recipe(other), output, resume=True)


def test_the_way_on_is_a_command_that_can_be_pasted():
    arguments = build_parser().parse_args(["train", "my recipe.toml", "--set", "train.epochs=2"])
    told = resume_command(arguments, Path("models/x"))
    assert told == "mnemorank train 'my recipe.toml' --set train.epochs=2 --output models/x --resume"


def toml(tables):
    lines = [f"name = {json.dumps(tables['name'])}"]
    for key in ("model", "train"):
        lines += [f"[{key}]", *(f"{name} = {json.dumps(value)}" for name, value in tables[key].items())]
    for key in ("data", "loss", "dev.data"):
        rows = tables["dev"]["data"] if key == "dev.data" else tables[key]
        for row in rows:
            lines += [f"[[{key}]]", *(f"{name} = {json.dumps(value)}" for name, value in row.items())]
    return "\n".join(lines)


def test_an_error_does_not_hang_on_to_the_bar(tables, tmp_path, capsys, monkeypatch):
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(toml(tables), encoding="utf-8")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(["train", str(recipe), "--output", str(tmp_path / "out"), "--set", "model.base=/nowhere"]) == 2
    err = capsys.readouterr().err
    assert "loading torch" in err
    assert "\r\033[Kerror: model.base: no model '/nowhere'" in err


def test_the_command_line_trains_and_prints_the_table(tables, tmp_path, capsys):
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(toml(tables), encoding="utf-8")
    output = tmp_path / "out"

    assert main(["train", str(recipe), "--output", str(output), "--set", "train.epochs=1"]) == 0
    out, err = capsys.readouterr()
    assert "12 dev questions" in out
    assert all(word in out for word in ("base", "trained", "gain", "map", "mrr@10"))
    assert "measuring the base on 12 dev questions" in err
    assert "step 6/6 loss" in err
    assert "measuring the result on 12 dev questions" in err
    assert "\r" not in err  # no bar where nobody watches

    assert main(["train", str(recipe), "--output", str(output)]) == 2
    assert "holds a finished model already" in capsys.readouterr().err
    assert main(["train", str(recipe), "--set", "train.speed=9"]) == 2
    assert capsys.readouterr().err.startswith("error: tiny.toml: train.speed: unknown key")
