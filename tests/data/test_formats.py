"""Our dataset formats: reading, writing, detecting, and errors that name file, line and field."""

from __future__ import annotations

import gzip
import json

import pytest

from mnemorank import InputError, Memory
from mnemorank.data.examples import Candidate, Example
from mnemorank.data.formats import (
    detect_format,
    is_own_format,
    read_any_format,
    read_graded,
    read_lists,
    read_triplets,
    write_graded,
    write_lists,
)
from mnemorank.memory.moment import Moment


def test_weights_round_trip_and_a_weight_of_one_is_omitted(tmp_path):
    path = tmp_path / "lists.jsonl"
    example = Example(
        "1", "q", (Candidate(Memory("a"), 1.0, 2.5), Candidate(Memory("b"), 0.0), Candidate(Memory("c"), 0, 0))
    )
    write_lists([example], path)
    assert list(read_lists(path)) == [example]
    written = json.loads(path.read_text())["candidates"]
    assert [candidate.get("weight") for candidate in written] == [2.5, None, 0]


@pytest.mark.parametrize("read", [read_lists, read_triplets, read_graded])
def test_a_group_is_a_string_or_a_number(tmp_path, read):
    fields = {"text": "a", "label": 1, "candidates": [{"text": "a", "label": 1}], "positive": "a", "negative": "b"}
    path = write(tmp_path / "f.jsonl", {"query": "q", **fields, "group": 7})
    assert [example.group for example in read(path)] == ["7"]
    write(path, {"query": "q", **fields, "group": [7]})
    with pytest.raises(InputError, match=r"f\.jsonl:1: group: "):
        list(read(path))


@pytest.mark.parametrize("read", [read_lists, read_triplets])
def test_a_kind_is_a_string_or_null(tmp_path, read):
    fields = {"candidates": [{"text": "a", "label": 1}], "positive": "a", "negative": "b"}
    path = write(tmp_path / "f.jsonl", *({"query": "q", **fields, "kind": kind} for kind in ("when", None)))
    assert [example.kind for example in read(path)] == ["when", None]
    for kind in (["a"], {"a": 1}, 3):
        write(path, {"query": "q", **fields}, {"query": "q", **fields, "kind": kind})
        with pytest.raises(InputError, match=r"f\.jsonl:2: kind: "):
            list(read(path))


@pytest.mark.parametrize(("write_them", "read"), [(write_lists, read_lists), (write_graded, read_graded)])
def test_compressed_files_round_trip_with_reproducible_bytes(tmp_path, write_them, read):
    paths = [tmp_path / "plain.jsonl", tmp_path / "packed.jsonl.gz", tmp_path / "again.jsonl.gz"]
    for path in paths:
        write_them([graded_example()], path)
    assert [list(read(path)) for path in paths] == [[graded_example()]] * 3
    plain, packed, again = (path.read_bytes() for path in paths)
    assert gzip.decompress(packed) == plain
    assert packed == again
    with pytest.raises(InputError, match=r"x\.zst"):
        write_them([graded_example()], tmp_path / "x.zst")


def test_lone_surrogates_round_trip(tmp_path):
    example = Example("1", "who is \ud800?", (Candidate(Memory("é \udc00 \\"), 1.0),))
    write_lists([example], tmp_path / "lists.jsonl")
    assert list(read_lists(tmp_path / "lists.jsonl")) == [example]


@pytest.mark.parametrize("weight", [-1, "2", None, True, float("nan"), 1e9])
def test_an_invalid_weight_is_an_error(tmp_path, weight):
    path = tmp_path / "lists.jsonl"
    path.write_text(json.dumps({"query": "q", "candidates": [{"text": "a", "label": 1, "weight": weight}]}))
    with pytest.raises(InputError, match=r"lists\.jsonl:1") as caught:
        list(read_lists(path))
    assert caught.value.field == "candidates.0.weight"


def write(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_graded_pairs_are_grouped_by_query_group_and_time(tmp_path):
    query = {"query": "where do I live?"}
    path = write(
        tmp_path / "graded.jsonl",
        {**query, "group": "ann", "text": "Oslo", "label": 1},
        {**query, "group": "bob", "text": "Rome", "label": 0.8},
        {**query, "group": "ann", "text": "a cat", "label": 0, "weight": 2.5},
        {**query, "group": "bob", "text": "Rome", "label": 0, "query_time": "2020-01-01"},
        {**query, "text": "Bern", "label": 1},
    )
    examples = list(read_graded(path))
    assert [(e.group, [m.text for m in e.memories]) for e in examples] == [
        ("ann", ["Oslo", "a cat"]),
        ("bob", ["Rome"]),
        ("bob", ["Rome"]),
        ("where do i live", ["Bern"]),
    ]
    assert examples[2].query_time == Moment.parse("2020-01-01")
    assert examples[0].candidates[1] == Candidate(Memory("a cat"), 0.0, 2.5)
    with pytest.raises(InputError, match=r"graded\.jsonl:1: weight: "):
        list(read_graded(write(path, {**query, "text": "a", "label": 1, "weight": "much"})))


def graded_example(**fields):
    dated = Memory("Oslo", occurred_start=Moment.parse("2020-01"), metadata={"from": "chat"})
    candidates = (Candidate(dated, 0.8, 2.0), Candidate(Memory("a cat"), 0.2))
    return Example("0", "where?", candidates, group="ann", source="graded", relevant_from=0.5, **fields)


def test_graded_examples_round_trip(tmp_path):
    examples = [graded_example(query_time=Moment.parse("2024-05-01"))]
    write_graded(examples, tmp_path / "graded.jsonl")
    assert list(read_graded(tmp_path / "graded.jsonl")) == examples


def test_lists_keep_the_relevance_threshold(tmp_path):
    write_lists([graded_example()], tmp_path / "lists.jsonl")
    assert list(read_lists(tmp_path / "lists.jsonl")) == [graded_example()]
    record = json.loads((tmp_path / "lists.jsonl").read_text())
    with pytest.raises(InputError, match=r"lists\.jsonl:1: relevant_from: "):
        list(read_lists(write(tmp_path / "lists.jsonl", {**record, "relevant_from": 2})))


def test_lists_keep_missing_labels_and_pairs(tmp_path):
    path = tmp_path / "lists.jsonl"
    with_pairs = graded_example(missing=(1.0, 0.5), pairs=((0, 1),))
    write_lists([with_pairs, graded_example()], path)
    assert list(read_lists(path)) == [with_pairs, graded_example()]
    assert not {"missing", "pairs"} & set(json.loads(path.read_text().splitlines()[1]))


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"missing": 1}, "missing"),
        ({"missing": [1, 2]}, "missing.1"),
        ({"pairs": {"0": 1}}, "pairs"),
        ({"pairs": [[0, 1], [0, 2]]}, "pairs.1"),
        ({"pairs": [[0]]}, "pairs.0"),
        ({"pairs": [[True, 0]]}, "pairs.0"),
        ({"pairs": ["01"]}, "pairs.0"),
    ],
)
def test_invalid_missing_labels_and_pairs_are_errors(tmp_path, fields, field):
    candidates = [{"text": "a", "label": 1}, {"text": "b", "label": 0}]
    path = write(tmp_path / "lists.jsonl", {"query": "q", "candidates": candidates, **fields})
    with pytest.raises(InputError, match=r"lists\.jsonl:1") as caught:
        list(read_lists(path))
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("record", "name"),
    [
        ({"query": "q", "candidates": [{"text": "a", "label": 1}]}, "lists"),
        ({"query": "q", "positive": "a", "negative": "b"}, "triplets"),
        ({"query": "q", "text": "a", "label": 1}, "graded"),
    ],
)
def test_the_first_record_reveals_the_format(tmp_path, record, name):
    path = write(tmp_path / "data.jsonl", record)
    assert detect_format(path) == name
    assert is_own_format(path)
    (example,) = read_any_format(path)
    assert example.memories[0].text == "a"


def test_a_file_in_no_known_format_is_an_error(tmp_path):
    path = write(tmp_path / "data.jsonl", {"question": "q"})
    assert not is_own_format(path)
    assert not is_own_format(tmp_path)
    with pytest.raises(InputError, match=r"data\.jsonl:1"):
        detect_format(path)
    with pytest.raises(InputError) as caught:
        detect_format(write(path))
    assert caught.value.code == "empty"
