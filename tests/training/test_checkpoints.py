"""The run folder, the record of a run, and the model card."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from mnemorank.artifact.manifest import Manifest
from mnemorank.cli.train import results_table
from mnemorank.errors import ConflictError
from mnemorank.training.checkpoints import open_run, source_commit
from mnemorank.training.model_card import write_card
from mnemorank.training.recipe import parse_recipe
from mnemorank.training.run import train
from mnemorank.training.stages import decline_message
from tests.training.conftest import write_jsonl


def git(folder, *arguments):
    options = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    return subprocess.run(["git", "-C", folder, *options, *arguments], check=True, capture_output=True, text=True)


def test_the_commit_of_a_repository_around_the_environment_is_ignored(tmp_path):
    source = tmp_path / "venv" / "record.py"
    source.parent.mkdir()
    source.write_text("")
    (tmp_path / "other.txt").write_text("")
    git(tmp_path, "init")
    git(tmp_path, "add", "other.txt")
    git(tmp_path, "commit", "-m", "x")
    assert source_commit(source) is None
    git(tmp_path, "add", "venv/record.py")
    git(tmp_path, "commit", "-m", "y")
    assert source_commit(source) == git(tmp_path, "rev-parse", "HEAD").stdout.strip()


def test_the_card_of_an_adapter_names_its_base_as_on_the_hub(tables):
    recipe = parse_recipe(tables)
    manifest = Manifest("tiny", family="lora", base="hf:Qwen/Qwen3-Reranker-0.6B")
    stage_record = {"sources": {}, "lists": 1, "windowed": 0}
    card = write_card(recipe, manifest, {"data": [], "versions": {}, "commit": None}, [stage_record], None, 1.0)
    assert 'AutoModelForSequenceClassification.from_pretrained("Qwen/Qwen3-Reranker-0.6B", num_labels=1)' in card


@pytest.fixture
def leaking(tables, tmp_path, train_lists, dev_lists):
    """Two stages that each contain two dev queries, one of which is in both."""
    records = [json.loads(line) for line in train_lists.read_text().splitlines()]
    dev = [json.loads(line) for line in dev_lists.read_text().splitlines()]
    paths = []
    for name, shared in (("one", dev[:2]), ("two", dev[1:3])):
        paths.append(write_jsonl(tmp_path / f"{name}.jsonl", records[:8] + shared))
    tables["stage"] = [{"name": path.stem, "steps": 1, "data": [{"path": str(path)}]} for path in paths]
    return tables


@pytest.mark.slow
def test_dev_queries_in_the_training_data_are_counted_once_and_reported(leaking, tmp_path):
    leaking["loss"] = [{"name": "softmax"}]
    equal = {"query": "who", "candidates": [{"text": "she", "label": 1}, {"text": "he", "label": 1}]}
    with (tmp_path / "one.jsonl").open("a") as stream:
        stream.write(json.dumps(equal) + "\n")
    messages = []
    result = train(parse_recipe(leaking), tmp_path / "out", on_message=messages.append)
    assert [record["leaks"] for record in result.manifest.recipe["stages"]] == [2, 2]
    assert result.results.leaked == result.manifest.evaluation["dev"]["leaked"] == 3
    reported = [line.split(":")[0] for line in messages if "2 of 12 dev queries" in line]
    assert reported == ["one", "two"]
    assert [line.split(":")[0] for line in messages if "1 of 11 lists" in line] == ["one"]
    warning = result.results.leak_warning
    assert "3 of the 12 dev queries" in warning
    assert warning in results_table(result.results)
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "| one | 10 | 1 | one.jsonl 10 |" in card
    assert "| two | 10 | 0 | two.jsonl 10 |" in card
    assert card.index(warning) < card.index("| metric |")


def test_a_stage_with_a_lower_dev_score_than_the_one_before_is_reported():
    records = [{"name": "one", "dev": [(1, 0.5), (2, 0.8)]}, {"name": "two", "dev": [(1, 0.7), (2, 0.6)]}]
    assert decline_message(records[:1], "map") is None
    assert decline_message(records[::-1], "map") is None
    message = decline_message(records, "map")
    assert all(part in message for part in ("two", "map", "0.700", "0.800"))


@pytest.fixture
def interrupted(tables, tmp_path, tiny_bert):
    """A run that was interrupted after its first checkpoint."""
    shutil.copytree(tiny_bert, tmp_path / "base")
    tables["model"]["base"] = str(tmp_path / "base")
    recipe = parse_recipe(tables)
    run = open_run(recipe, tmp_path / "out", resume=False)
    (run.path / "1-train" / "checkpoint-1").mkdir(parents=True)
    return recipe, run


def test_a_resumed_run_keeps_its_record_and_elapsed_time(interrupted, tmp_path, monkeypatch):
    recipe, run = interrupted
    run.clock._started -= 3600
    run.clock.save()
    monkeypatch.setattr("mnemorank.training.checkpoints.source_commit", lambda: "another")
    resumed = open_run(recipe, tmp_path / "out", resume=True)
    assert resumed.record == {**run.record, "resumed_with": {"commit": "another"}}
    assert 3600 <= resumed.clock.seconds < 3700


def test_a_run_whose_base_changed_cannot_be_resumed(interrupted, tmp_path):
    recipe, run = interrupted
    assert list(run.record["base"]) == ["model.safetensors"]
    weights = tmp_path / "base" / "model.safetensors"
    weights.write_bytes(weights.read_bytes() + b" ")
    with pytest.raises(ConflictError, match=r"base\.model\.safetensors") as caught:
        open_run(recipe, tmp_path / "out", resume=True)
    assert caught.value.field == "--resume"
    saved = json.loads((run.path / "run.json").read_text())
    earlier = {key: saved[key] for key in ("recipe", "data")}  # what earlier versions saved
    (run.path / "run.json").write_text(json.dumps(earlier))
    assert open_run(recipe, tmp_path / "out", resume=True).record["base"]
