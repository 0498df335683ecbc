"""`mnemorank train` on a tiny model."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from mnemorank.cli import build_parser, main
from mnemorank.cli.train import _TerminalDisplay, resume_command
from mnemorank.training.progress import Progress
from tests.training.conftest import base_tables, dev_lists, tiny_bert, train_lists  # noqa: F401


def test_the_resume_command_can_be_pasted_into_a_shell():
    arguments = build_parser().parse_args(["train", "my recipe.toml", "--set", "train.epochs=2"])
    command = resume_command(arguments, Path("models/x"))
    assert command == "mnemorank train 'my recipe.toml' --set train.epochs=2 --output models/x --resume"


def to_toml(tables):
    lines = [f"name = {json.dumps(tables['name'])}"]
    for key in ("model", "train"):
        lines += [f"[{key}]", *(f"{name} = {json.dumps(value)}" for name, value in tables[key].items())]
    for key in ("data", "loss", "dev.data"):
        rows = tables["dev"]["data"] if key == "dev.data" else tables[key]
        for row in rows:
            lines += [f"[[{key}]]", *(f"{name} = {json.dumps(value)}" for name, value in row.items())]
    return "\n".join(lines)


@pytest.fixture
def recipe(tmp_path, tiny_bert, train_lists, dev_lists):  # noqa: F811
    path = tmp_path / "tiny.toml"
    path.write_text(to_toml(base_tables(tiny_bert, train_lists, dev_lists)), encoding="utf-8")
    return path


def test_an_error_on_a_terminal_is_on_a_separate_line(recipe, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(["train", str(recipe), "--output", str(tmp_path / "out"), "--set", "model.base=/nowhere"]) == 2
    first, *_, last = capsys.readouterr().err.splitlines()
    assert "loading torch" in first
    assert last.startswith("error: model.base: ")
    assert "/nowhere" in last


def test_a_terminal_shows_a_bar_per_stage(capsys):
    display = _TerminalDisplay()
    for number, name in ((1, "first"), (2, "second")):
        for step in (1, 2):
            display.show_progress(Progress(name, number, 2, step, 2, 0.5, 0.75, 61.0, evaluates_next=step == 2))
    display.close()
    err = capsys.readouterr().err
    assert all(part in err for part in ("first 1/2", "second 2/2", "loss 0.5000, dev 0.7500", "1 min 01 s left"))
    assert "evaluating" in err


def test_training_prints_progress_and_results(recipe, tmp_path, capsys):
    output = tmp_path / "out"
    assert main(["train", str(recipe), "--output", str(output), "--set", "train.epochs=1"]) == 0
    out, err = capsys.readouterr()
    assert "12 dev queries" in out
    assert all(word in out for word in ("base", "trained", "gain", "map", "mrr@10"))
    assert "evaluating the base on 12 dev queries" in err
    assert "step 6/6 loss" in err
    assert "evaluating the result on 12 dev queries" in err
    assert "\r" not in err  # no bar when piped

    assert main(["train", str(recipe), "--output", str(output)]) == 2
    assert capsys.readouterr().err.startswith("error: --output: ")


def test_an_error_in_an_override_names_the_key(recipe, capsys):
    assert main(["train", str(recipe), "--set", "train.speed=9"]) == 2
    assert capsys.readouterr().err.startswith("error: tiny.toml: train.speed: ")
