"""The recipes that come along, as they are, on tiny bases and small data in the places that they name."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest

from mnemorank import Memory, Model
from mnemorank.export import export
from mnemorank.export.blocks import bits_in
from mnemorank.training.loading import load_recipe
from mnemorank.training.run import train
from tests.training.conftest import make_lists, write_jsonl

SMALL = ["model.max_length=128", "train.epochs=1", "train.steps=2", "dev.limit=3"]
BASES = {
    "hindsight": ("bert", SMALL),
    "feedback": ("bert", SMALL),
    "multihop": ("bert", ["model.max_length=128", "stage.0.steps=2", "stage.1.steps=2", "dev.limit=3"]),
    "lychee": ("qwen3", [*SMALL, "model.max_length=384"]),
    "yes-no": ("qwen3", [*SMALL, "model.max_length=384"]),
}


def triplet(record):
    right = next(c["text"] for c in record["candidates"] if c["label"])
    wrong = next(c["text"] for c in record["candidates"] if not c["label"])
    return {"query": record["query"], "positive": {"text": right}, "negative": {"text": wrong}}


def hops(record):
    context = [[f"title {i}", [candidate["text"]]] for i, candidate in enumerate(record["candidates"])]
    right = [[f"title {i}", 0] for i, candidate in enumerate(record["candidates"]) if candidate["label"]]
    question = {"_id": record["id"], "question": record["query"], "type": "compositional", "answer": "now"}
    return {**question, "context": context, "supporting_facts": right}


def graded(record):
    rows = [{"query": record["query"], "text": c["text"], "label": 0.8 * c["label"]} for c in record["candidates"]]
    return {row["text"]: row for row in sorted(rows, key=lambda row: row["label"])}.values()


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The files that the recipes read, in their places under `MNEMORANK_DATA`."""
    root = tmp_path_factory.mktemp("data")
    train, dev = make_lists(40, seed=1), make_lists(6, seed=2)
    for name in ("lists", "memex", "2wiki"):
        (root / name).mkdir()
    for name, records in (
        ("code_feedback.train", train),
        ("squad.train", train),
        ("realmem.train", train),
        ("realmem.dev", dev),
    ):
        text = "".join(json.dumps(record) + "\n" for record in records)
        (root / "lists" / f"{name}.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    write_jsonl(root / "memex" / "train_300.jsonl", [triplet(record) for record in train])
    write_jsonl(root / "memex" / "eval_70.jsonl", [triplet(record) for record in dev])
    questions = json.dumps([hops(record) for record in train])
    (root / "2wiki" / "2wikimultihop.json.gz").write_bytes(gzip.compress(questions.encode()))
    write_jsonl(root / "graded.jsonl", [row for record in train for row in graded(record)])
    return root


@pytest.mark.parametrize("name", BASES)
def test_a_shipped_recipe_trains_as_it_is(name, data, tmp_path, monkeypatch, tiny_bert, tiny_causal):
    monkeypatch.setenv("MNEMORANK_DATA", str(data))
    kind, changes = BASES[name]
    base = tiny_bert if kind == "bert" else tiny_causal
    outcome = train(load_recipe(name, [*changes, f"model.base={base}"]), tmp_path / name)

    assert outcome.manifest.name == name
    assert outcome.results.queries == 3
    memories = [Memory("she works at the cat now"), Memory("she works at the dog before that")]
    model = Model.load(tmp_path / name, probe=False)
    assert np.isfinite(model.score("what about the cat", memories).raw).all()
    model.close()
    if name == "hindsight":
        exported = export(tmp_path / name, tmp_path / "int4", "int4")
        assert exported.manifest.quantization == "int4-weights"
        assert bits_in(tmp_path / "int4" / "model.onnx")[4] > 8000
