"""Which dev questions a recipe's sources stand for."""

from __future__ import annotations

import pytest

from mnemorank.errors import InputError
from mnemorank.evaluation.measures import Judged
from mnemorank.training.loading import parse_recipe
from mnemorank.training.measuring import measure_bm25
from mnemorank.training.reading import dev_examples
from mnemorank.training.run import train
from tests.training.conftest import write_jsonl


@pytest.fixture
def triplets(tmp_path):
    records = [
        {"query": f"q{i}", "positive": {"text": f"right {i}"}, "negative": {"text": f"wrong {i}"}} for i in range(40)
    ]
    return write_jsonl(tmp_path / "triplets.jsonl", records)


def dev_of(tables, **source):
    return dev_examples(parse_recipe({**tables, "dev": {"data": [source]}}))


def test_dev_triplets_are_of_their_split_and_ranked_among_all_memories(tables, triplets):
    source = {"path": str(triplets), "format": "triplets", "dev_share": 0.3}
    whole, dev, train = (dev_of(tables, **source, **split) for split in ({}, {"split": "dev"}, {"split": "train"}))
    assert 0 < len(dev) < len(train)
    assert sorted(e.query for e in dev + train) == sorted(e.query for e in whole)
    assert all(len(example.candidates) == 80 for example in dev)


def test_contradictions_in_dev_triplets_are_named_or_dropped(tables, triplets, tmp_path):
    texts = triplets.read_text().splitlines()
    texts.append('{"query": "q1", "positive": {"text": "wrong 1"}, "negative": {"text": "x"}}')
    path = tmp_path / "bad.jsonl"
    path.write_text("\n".join(texts), encoding="utf-8")
    with pytest.raises(InputError, match=r"bad\.jsonl: example 40: contradicts example 1"):
        dev_of(tables, path=str(path), format="triplets")
    assert len(dev_of(tables, path=str(path), format="triplets", contradictions="drop")) == 40


def test_graded_dev_pairs_are_relevant_from_a_half_as_in_the_bench(tables, tmp_path):
    rows = [{"query": "q", "text": "a", "label": 0.2}, {"query": "q", "text": "cat", "label": 0.8}]
    path = write_jsonl(tmp_path / "graded.jsonl", rows)
    for named in ({"format": "graded"}, {"format": "auto"}):
        measured = measure_bm25(dev_of(tables, path=str(path), **named))
        assert measured.values["recall@5"].tolist() == [1.0]
        assert Judged.of(dev_of(tables, path=str(path), **named)[0]).relevant.tolist() == [False, True]
    write_jsonl(path, rows[:1])
    with pytest.raises(InputError, match=r"dev\.data: no candidate is relevant"):
        dev_of(tables, path=str(path), format="graded")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"format": "lists"}, r"later\.jsonl:2: candidates: expected a list"),
        ({"format": "lists", "negatives": {"retriever": "/nowhere"}}, "retriever: expected bm25 or the folder"),
    ],
)
def test_a_fault_in_a_later_stage_is_found_before_the_base_is_measured(tables, tmp_path, train_lists, source, message):
    good = train_lists.read_text().splitlines()[0]
    (tmp_path / "later.jsonl").write_text(good + '\n{"query": "q"}\n', encoding="utf-8")
    tables["stage"] = [{"name": "one"}, {"name": "two", "data": [{"path": str(tmp_path / "later.jsonl"), **source}]}]
    said = []
    with pytest.raises(InputError, match=message):
        train(parse_recipe(tables), tmp_path / "out", say=said.append)
    assert said == ["reading the data of all stages"]
