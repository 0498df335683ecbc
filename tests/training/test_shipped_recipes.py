"""The recipes that come along, as they are, on tiny bases and small data in the places that they name."""

from __future__ import annotations

import gzip
import json
import runpy
import sys
import tomllib
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from mnemorank import Memory, Model
from mnemorank.export.exporter import export
from mnemorank.export.fusion import bits_in
from mnemorank.training.recipe_files import load_recipe
from mnemorank.training.run import train
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
MINI = tomllib.loads((Path(__file__).parents[2] / "src/mnemorank/assets/recipes/mini.toml").read_text(encoding="utf-8"))
for number, stage in enumerate(MINI["stage"]):
    own = [i for i, source in enumerate(stage["data"]) if source["path"].startswith("${mnemorank}")]
    BASES["mini"][1].extend([f"stage.{number}.steps=1", *(f"stage.{number}.data.{i}.max_examples=8" for i in own)])


def mini_files(variable):
    """The names of what `mini` reads below a folder."""
    sources = [source["path"] for table in (*MINI["stage"], MINI["dev"]) for source in table["data"]]
    return {path.removeprefix(f"${{{variable}}}/") for path in sources if path.startswith(f"${{{variable}}}")}


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


def pack(path, text):
    path.write_bytes(gzip.compress(text.encode()))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The files that the recipes read, in their places under `MNEMORANK_DATA`."""
    root = tmp_path_factory.mktemp("data")
    train, dev = make_lists(40, seed=1), make_lists(6, seed=2)
    for name in ("lists", "memex", "2wiki"):
        (root / name).mkdir()
    for path in {"lists/realmem.dev.jsonl.gz", *mini_files("MNEMORANK_DATA"), *mini_files("MNEMORANK_LISTS")}:
        records = dev if ".dev." in path else train
        pack(root / path, "".join(json.dumps(record) + "\n" for record in records))
    write_jsonl(root / "memex" / "train_300.jsonl", [triplet(record) for record in train])
    write_jsonl(root / "memex" / "eval_70.jsonl", [triplet(record) for record in dev])
    questions = json.dumps([hops(record) for record in train])
    pack(root / "2wiki" / "2wikimultihop.json.gz", questions)
    write_jsonl(root / "graded.jsonl", [row for record in train for row in graded(record)])
    return root


@pytest.mark.parametrize("name", BASES)
def test_a_shipped_recipe_trains_as_it_is(name, data, tmp_path, monkeypatch, tiny_bert, tiny_causal):
    monkeypatch.setenv("MNEMORANK_DATA", str(data))
    monkeypatch.setenv("MNEMORANK_LISTS", str(data))
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


SESSION = [
    {"role": "user", "content": "I moved to Porto with my two cats in the spring of last year."},
    {"role": "assistant", "content": "How nice for the two cats!"},
]


def test_the_lists_that_mini_reads_are_those_that_its_makers_write(tmp_path, tiny_onnx, tiny_bert, monkeypatch):
    """The makers on next to no data: what counts are the names of the files."""
    makers = Path(__file__).parents[2] / "research" / "mini_data"
    known = set(sys.modules)
    monkeypatch.syspath_prepend(str(makers))
    import asked
    import dates
    import paragraphs

    make = dates.make
    monkeypatch.setattr(dates, "make", lambda count, rng: make(1, rng))
    monkeypatch.setattr(asked, "read", lambda: defaultdict(list))
    monkeypatch.setattr(paragraphs, "DEV_QUESTIONS", 0)
    for name in ("lists", "2wiki", "longmemeval"):
        (tmp_path / name).mkdir()
    (dated,) = make_lists(1, seed=1)
    dated["candidates"] = [{**each, "occurred_start": "2026-01-01"} for each in dated["candidates"]]
    for name in ("realmem", "multihoprag", "squad", "medquad"):
        pack(tmp_path / "lists" / f"{name}.train.jsonl.gz", json.dumps(dated) + "\n")
    where = {"question": "where", "answer": "there", "answer_session_ids": [], "haystack_session_ids": ["s"]}
    rows = [{**where, "question_id": f"{i}_abs", "haystack_sessions": [SESSION]} for i in range(9)]
    pack(tmp_path / "longmemeval" / "longmemeval_s_train.json.gz", json.dumps(rows))
    told = "{} is a painter who was taught by {} in a small town by the sea for many years."
    context = [["Ruby Lane", [told.format("Ruby Lane", "Max Stone"), "She paints boats and nothing but boats."]]]
    context += [["Max Stone", [told.format("Max Stone", "Ruby Lane"), "He paints what she does not paint."]]]
    question = {"_id": "1", "question": "who taught Ruby", "context": context, "supporting_facts": [["Max Stone", 0]]}
    pack(tmp_path / "2wiki" / "2wikimultihop.json.gz", json.dumps([question]))
    monkeypatch.setenv("MNEMORANK_DATA", str(tmp_path))
    taught = ["--taught-by", str(tiny_bert), "--limit", "1"]
    for options in (["--limit", "1"], ["--hard-for", str(tiny_onnx)], ["--closer-for", str(tiny_onnx)], taught):
        monkeypatch.setattr(sys, "argv", ["mini_data", str(tmp_path / "made"), *options])
        runpy.run_path(str(makers / "__main__.py"), run_name="__main__")
    for name in {path.stem for path in makers.glob("[a-z]*.py")} - known:
        sys.modules.pop(name, None)

    made = {path.name for path in (tmp_path / "made").iterdir()}
    assert mini_files("MNEMORANK_LISTS") <= made
    assert "squad-taught.jsonl.gz" in made
