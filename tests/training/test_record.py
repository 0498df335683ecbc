"""What the record and the card say about a run."""

from __future__ import annotations

import json
import subprocess

import pytest

from mnemorank.cli.train import _table
from mnemorank.manifest import Manifest
from mnemorank.training.card import write_card
from mnemorank.training.loading import parse_recipe
from mnemorank.training.record import commit
from mnemorank.training.run import train
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
    said = []
    outcome = train(parse_recipe(leaking), tmp_path / "out", say=said.append)
    assert [note["leaks"] for note in outcome.manifest.recipe["stages"]] == [2, 2]
    assert outcome.results.leaked == outcome.manifest.evaluation["dev"]["leaked"] == 3
    assert [line for line in said if "resemble" in line] == [
        f"{stage}: 2 of 12 dev questions resemble a training question" for stage in ("one", "two")
    ]
    assert "3 of the 12 dev questions share" in _table(outcome.results)
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    told = "3 of the 12 dev questions share their group or nearly their words with a training question"
    assert card.index(told) < card.index("| measure |")
