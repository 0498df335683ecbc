"""The bundled recipes, with tiny bases and small data in place of the real ones."""

from __future__ import annotations

import gzip
import json
import tomllib

import numpy as np
import pytest

from mnemorank import Memory, Model
from mnemorank.export.exporter import export
from mnemorank.training.recipe import bundled_recipes, load_recipe
from mnemorank.training.run import train
from tests.export.conftest import count_weights
from tests.training.conftest import make_lists, write_jsonl

SMALL = ["model.max_length=128", "train.epochs=1", "train.steps=2", "dev.limit=3"]
BASES = {
    "hindsight": ("bert", SMALL),
    "feedback": ("bert", SMALL),
    "multihop": ("bert", ["model.max_length=128", "stage.0.steps=2", "stage.1.steps=2", "dev.limit=3"]),
    "lychee": ("qwen3", [*SMALL, "model.max_length=384"]),
    "yes-no": ("qwen3", [*SMALL, "model.max_length=384"]),
    "mini": ("bert", ["model.max_length=128", "dev.limit=3", "dev.every=1000"]),
}
MINI = tomllib.loads(bundled_recipes()["mini"].read_text(encoding="utf-8"))
for number, stage in enumerate(MINI["stage"]):
    bundled = [i for i, source in enumerate(stage["data"]) if source["path"].startswith("${mnemorank}")]
    BASES["mini"][1].extend([f"stage.{number}.steps=1", *(f"stage.{number}.data.{i}.max_examples=8" for i in bundled)])


def mini_files(variable):
    """Return the paths of the files that `mini` reads, relative to the folder in an environment variable."""
    sources = [source["path"] for table in (*MINI["stage"], MINI["dev"]) for source in table["data"]]
    return {path.removeprefix(f"${{{variable}}}/") for path in sources if path.startswith(f"${{{variable}}}")}


def triplet(record):
    positive = next(c["text"] for c in record["candidates"] if c["label"])
    negative = next(c["text"] for c in record["candidates"] if not c["label"])
    return {"query": record["query"], "positive": {"text": positive}, "negative": {"text": negative}}


def multi_hop(record):
    context = [[f"title {i}", [candidate["text"]]] for i, candidate in enumerate(record["candidates"])]
    facts = [[f"title {i}", 0] for i, candidate in enumerate(record["candidates"]) if candidate["label"]]
    question = {"_id": record["id"], "question": record["query"], "type": "compositional", "answer": "now"}
    return {**question, "context": context, "supporting_facts": facts}


def graded(record):
    rows = [{"query": record["query"], "text": c["text"], "label": 0.8 * c["label"]} for c in record["candidates"]]
    return {row["text"]: row for row in sorted(rows, key=lambda row: row["label"])}.values()


def write_gzip(path, text):
    path.write_bytes(gzip.compress(text.encode()))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The files that the recipes read, in a folder for `MNEMORANK_DATA`."""
    root = tmp_path_factory.mktemp("data")
    train, dev = make_lists(40, seed=1), make_lists(6, seed=2)
    for name in ("lists", "memex", "2wiki"):
        (root / name).mkdir()
    for path in {"lists/realmem.dev.jsonl.gz", *mini_files("MNEMORANK_DATA"), *mini_files("MNEMORANK_LISTS")}:
        records = dev if ".dev." in path else train
        write_gzip(root / path, "".join(json.dumps(record) + "\n" for record in records))
    write_jsonl(root / "memex" / "train_300.jsonl", [triplet(record) for record in train])
    write_jsonl(root / "memex" / "eval_70.jsonl", [triplet(record) for record in dev])
    questions = json.dumps([multi_hop(record) for record in train])
    write_gzip(root / "2wiki" / "2wikimultihop.json.gz", questions)
    write_jsonl(root / "graded.jsonl", [row for record in train for row in graded(record)])
    return root


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name == "mini" else name for name in BASES]
)
def test_a_bundled_recipe_can_be_trained(name, data, tmp_path, monkeypatch, tiny_bert, tiny_causal):
    monkeypatch.setenv("MNEMORANK_DATA", str(data))
    monkeypatch.setenv("MNEMORANK_LISTS", str(data))
    kind, overrides = BASES[name]
    base = tiny_bert if kind == "bert" else tiny_causal
    result = train(load_recipe(name, [*overrides, f"model.base={base}"]), tmp_path / name)

    assert result.manifest.name == name
    assert result.results.queries == 3
    memories = [Memory("she works at the cat now"), Memory("she works at the dog before that")]
    model = Model.load(tmp_path / name, probe=False)
    assert np.isfinite(model.score("what about the cat", memories).raw).all()
    model.close()
    if name == "hindsight":
        exported = export(tmp_path / name, tmp_path / "int4", "int4")
        assert exported.manifest.quantization == "int4-weights"
        assert count_weights(tmp_path / "int4" / "model.onnx")[4] > 8000
