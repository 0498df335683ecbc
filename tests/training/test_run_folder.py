"""What the record and the card say about a run."""

from __future__ import annotations

import json
import shutil
import subprocess
from types import SimpleNamespace

import pytest

from mnemorank import InputError
from mnemorank.artifact.manifest import Manifest
from mnemorank.cli.train import _table
from mnemorank.training.model_card import write_card
from mnemorank.training.recipe_files import parse_recipe
from mnemorank.training.run import train
from mnemorank.training.run_folder import commit, open_run
from mnemorank.training.stages import _tell_a_fall
from tests.training.conftest import write_jsonl


def git(folder, *arguments):
    options = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    return subprocess.run(["git", "-C", folder, *options, *arguments], check=True, capture_output=True, text=True)


def test_the_commit_of_a_repository_around_the_environment_is_not_ours(tmp_path):
    source = tmp_path / "venv" / "record.py"
    source.parent.mkdir()
    source.write_text("")
    (tmp_path / "own.txt").write_text("")
    git(tmp_path, "init")
    git(tmp_path, "add", "own.txt")
    git(tmp_path, "commit", "-m", "x")
    assert commit(source) is None
    git(tmp_path, "add", "venv/record.py")
    git(tmp_path, "commit", "-m", "y")
    assert commit(source) == git(tmp_path, "rev-parse", "HEAD").stdout.strip()


def test_the_card_of_an_adapter_names_its_base_as_the_hub_does(tables):
    recipe = parse_recipe(tables)
    manifest = Manifest("tiny", family="lora", base="hf:Qwen/Qwen3-Reranker-0.6B")
    note = {"sources": {}, "lists": 1, "windowed": 0}
    card = write_card(recipe, manifest, {"data": [], "versions": {}, "commit": None}, [note], None, 1.0)
    assert 'AutoModelForSequenceClassification.from_pretrained("Qwen/Qwen3-Reranker-0.6B", num_labels=1)' in card


@pytest.fixture
def leaking(tables, tmp_path, train_lists, dev_lists):
    """Stages that share two dev questions each, by group and by words, one of them with both."""
    records = [json.loads(line) for line in train_lists.read_text().splitlines()]
    dev = [json.loads(line) for line in dev_lists.read_text().splitlines()]
    paths = []
    for name, shared in (("one", dev[:2]), ("two", dev[1:3])):
        paths.append(write_jsonl(tmp_path / f"{name}.jsonl", records[:8] + shared))
    tables["stage"] = [{"name": path.stem, "steps": 1, "data": [{"path": str(path)}]} for path in paths]
    return tables


def test_dev_questions_that_training_has_seen_are_counted_once_and_told(leaking, tmp_path):
    leaking["loss"] = [{"name": "softmax"}]
    equal = {"query": "who", "candidates": [{"text": "she", "label": 1}, {"text": "he", "label": 1}]}
    with (tmp_path / "one.jsonl").open("a") as stream:
        stream.write(json.dumps(equal) + "\n")
    said = []
    outcome = train(parse_recipe(leaking), tmp_path / "out", say=said.append)
    assert [note["leaks"] for note in outcome.manifest.recipe["stages"]] == [2, 2]
    assert outcome.results.leaked == outcome.manifest.evaluation["dev"]["leaked"] == 3
    assert [line for line in said if "resemble" in line] == [
        f"{stage}: 2 of 12 dev questions resemble a training question" for stage in ("one", "two")
    ]
    assert [line for line in said if "left out" in line] == ["one: left out 1 of 11 lists: nothing differs in label"]
    assert "3 of the 12 dev questions share" in _table(outcome.results)
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    told = "3 of the 12 dev questions share their group or nearly their words with a training question"
    assert "| one | 10 | 1 | one.jsonl 10 |" in card
    assert "| two | 10 | 0 | two.jsonl 10 |" in card
    assert card.index(told) < card.index("| measure |")


def test_a_stage_that_is_worse_than_the_one_before_is_told():
    said = []
    notes = [{"name": "one", "dev": [(1, 0.5), (2, 0.8)]}, {"name": "two", "dev": [(1, 0.7), (2, 0.6)]}]
    recipe = SimpleNamespace(dev=SimpleNamespace(measure="map"))
    course = SimpleNamespace(dev=["q"], notes=notes[:1], say=said.append, recipe=recipe)
    _tell_a_fall(course)
    assert said == []
    course.notes = notes
    _tell_a_fall(course)
    assert said == ["two: dev map 0.700 at best, below the 0.800 it began with"]


@pytest.fixture
def begun(tables, tmp_path, tiny_bert):
    """A run that was broken off after its first checkpoint."""
    shutil.copytree(tiny_bert, tmp_path / "base")
    tables["model"]["base"] = str(tmp_path / "base")
    recipe = parse_recipe(tables)
    run = open_run(recipe, tmp_path / "out", resume=False)
    (run.folder / "1-train" / "checkpoint-1").mkdir(parents=True)
    return recipe, run


def test_a_resumed_run_keeps_the_record_and_the_time_of_its_beginning(begun, tmp_path, monkeypatch):
    recipe, run = begun
    run.clock._started -= 3600
    run.clock.keep()
    monkeypatch.setattr("mnemorank.training.run_folder.commit", lambda: "another")
    again = open_run(recipe, tmp_path / "out", resume=True)
    assert again.record == {**run.record, "resumed_with": {"commit": "another"}}
    assert 3600 <= again.clock.seconds < 3700


def test_another_base_under_the_same_name_cannot_be_resumed(begun, tmp_path):
    recipe, run = begun
    assert list(run.record["base"]) == ["model.safetensors"]
    weights = tmp_path / "base" / "model.safetensors"
    weights.write_bytes(weights.read_bytes() + b" ")
    with pytest.raises(InputError, match=r"--resume: base\.model\.safetensors is not what it was"):
        open_run(recipe, tmp_path / "out", resume=True)
    noted = json.loads((run.folder / "run.json").read_text())
    earlier = {key: noted[key] for key in ("recipe", "data")}  # all that earlier versions noted
    (run.folder / "run.json").write_text(json.dumps(earlier))
    assert open_run(recipe, tmp_path / "out", resume=True).record["base"]
