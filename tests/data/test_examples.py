"""What the `lists` and `graded` formats keep."""

from __future__ import annotations

import gzip
import json

import pytest

from mnemorank import InputError, Memory
from mnemorank.data.examples import (
    Candidate,
    Example,
    read_graded,
    read_lists,
    read_triplets,
    write_graded,
    write_lists,
)
from mnemorank.memory.moment import Moment


def test_weights_are_written_and_read_and_left_out_where_they_are_one(tmp_path):
    path = tmp_path / "lists.jsonl"
    given = Example(
        "1", "q", (Candidate(Memory("a"), 1.0, 2.5), Candidate(Memory("b"), 0.0), Candidate(Memory("c"), 0, 0))
    )
    write_lists([given], path)
    assert list(read_lists(path)) == [given]
    written = json.loads(path.read_text())["candidates"]
    assert [candidate.get("weight") for candidate in written] == [2.5, None, 0]


@pytest.mark.parametrize("read", [read_lists, read_triplets, read_graded])
def test_a_group_is_a_string_or_a_number(tmp_path, read):
    fields = {"text": "a", "label": 1, "candidates": [{"text": "a", "label": 1}], "positive": "a", "negative": "b"}
    path = write(tmp_path / "f.jsonl", {"query": "q", **fields, "group": 7})
    assert [each.group for each in read(path)] == ["7"]
    write(path, {"query": "q", **fields, "group": [7]})
    with pytest.raises(InputError, match=r"f\.jsonl:1: group: expected a string or a number, got \[7\]"):
        list(read(path))


@pytest.mark.parametrize("read", [read_lists, read_triplets])
def test_a_kind_is_a_string_or_nothing(tmp_path, read):
    fields = {"candidates": [{"text": "a", "label": 1}], "positive": "a", "negative": "b"}
    path = write(tmp_path / "f.jsonl", *({"query": "q", **fields, "kind": kind} for kind in ("when", None)))
    assert [each.kind for each in read(path)] == ["when", None]
    for kind in (["a"], {"a": 1}, 3):
        write(path, {"query": "q", **fields}, {"query": "q", **fields, "kind": kind})
        with pytest.raises(InputError, match=r"f\.jsonl:2: kind: expected a string or null, got "):
            list(read(path))


@pytest.mark.parametrize(("write_them", "read"), [(write_lists, read_lists), (write_graded, read_graded)])
def test_what_is_written_packed_is_read_back(tmp_path, write_them, read):
    paths = [tmp_path / "plain.jsonl", tmp_path / "packed.jsonl.gz", tmp_path / "again.jsonl.gz"]
    for path in paths:
        write_them([graded_example()], path)
    assert [list(read(path)) for path in paths] == [[graded_example()]] * 3
    plain, packed, again = (path.read_bytes() for path in paths)
    assert gzip.decompress(packed) == plain
    assert packed == again
    with pytest.raises(InputError, match=r"x\.zst: \.zst is only read"):
        write_them([graded_example()], tmp_path / "x.zst")


def test_half_a_character_is_read_as_it_was_written(tmp_path):
    given = Example("1", "who is \ud800?", (Candidate(Memory("é \udc00 \\"), 1.0),))
    write_lists([given], tmp_path / "lists.jsonl")
    assert list(read_lists(tmp_path / "lists.jsonl")) == [given]


@pytest.mark.parametrize("weight", [-1, "2", None, True, float("nan"), 1e9])
def test_a_bad_weight_is_refused(tmp_path, weight):
    path = tmp_path / "lists.jsonl"
    path.write_text(json.dumps({"query": "q", "candidates": [{"text": "a", "label": 1, "weight": weight}]}))
    with pytest.raises(InputError, match=r"lists.jsonl:1: candidate 0: weight: expected a number from 0"):
        list(read_lists(path))


def write(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_graded_pairs_of_two_personas_or_times_are_not_one_list(tmp_path):
    asked = {"query": "where do I live?"}
    path = write(
        tmp_path / "graded.jsonl",
        {**asked, "group": "ann", "text": "Oslo", "label": 1},
        {**asked, "group": "bob", "text": "Rome", "label": 0.8},
        {**asked, "group": "ann", "text": "a cat", "label": 0, "weight": 2.5},
        {**asked, "group": "bob", "text": "Rome", "label": 0, "query_time": "2020-01-01"},
        {**asked, "text": "Bern", "label": 1},
    )
    found = list(read_graded(path))
    assert [(e.group, [m.text for m in e.memories]) for e in found] == [
        ("ann", ["Oslo", "a cat"]),
        ("bob", ["Rome"]),
        ("bob", ["Rome"]),
        ("where do i live", ["Bern"]),
    ]
    assert found[2].query_time == Moment.parse("2020-01-01")
    assert found[0].candidates[1] == Candidate(Memory("a cat"), 0.0, 2.5)
    with pytest.raises(InputError, match=r"graded\.jsonl:1: weight: expected a number from 0"):
        list(read_graded(write(path, {**asked, "text": "a", "label": 1, "weight": "much"})))


def graded_example(**fields):
    dated = Memory("Oslo", occurred_start=Moment.parse("2020-01"), metadata={"from": "chat"})
    candidates = (Candidate(dated, 0.8, 2.0), Candidate(Memory("a cat"), 0.2))
    return Example("0", "where?", candidates, group="ann", source="graded", relevant_from=0.5, **fields)


def test_graded_examples_are_read_as_they_were_written(tmp_path):
    given = [graded_example(query_time=Moment.parse("2024-05-01"))]
    write_graded(given, tmp_path / "graded.jsonl")
    assert list(read_graded(tmp_path / "graded.jsonl")) == given


def test_lists_keep_from_which_label_on_a_memory_is_relevant(tmp_path):
    write_lists([graded_example()], tmp_path / "lists.jsonl")
    assert list(read_lists(tmp_path / "lists.jsonl")) == [graded_example()]
    record = json.loads((tmp_path / "lists.jsonl").read_text())
    with pytest.raises(InputError, match=r"lists\.jsonl:1: relevant_from: expected a number from 0 to 1"):
        list(read_lists(write(tmp_path / "lists.jsonl", {**record, "relevant_from": 2})))


def test_lists_keep_what_is_missing_and_which_candidates_are_set_against_each_other(tmp_path):
    path = tmp_path / "lists.jsonl"
    given = graded_example(missing=(1.0, 0.5), pairs=((0, 1),))
    write_lists([given, graded_example()], path)
    assert list(read_lists(path)) == [given, graded_example()]
    assert not {"missing", "pairs"} & set(json.loads(path.read_text().splitlines()[1]))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"missing": 1}, "missing: expected a list, got 1"),
        ({"missing": [1, 2]}, "missing 1: label: expected a number from 0 to 1, got 2"),
        ({"pairs": {"0": 1}}, "pairs: expected a list, got "),
        ({"pairs": [[0, 1], [0, 2]]}, r"pairs: 1: expected two positions from 0 to 1, got \[0, 2\]"),
        ({"pairs": [[0]]}, r"pairs: 0: expected two positions from 0 to 1, got \[0\]"),
        ({"pairs": [[True, 0]]}, "pairs: 0: expected two positions"),
        ({"pairs": ["01"]}, "pairs: 0: expected two positions"),
    ],
)
def test_what_is_missing_and_set_against_each_other_is_checked(tmp_path, fields, message):
    candidates = [{"text": "a", "label": 1}, {"text": "b", "label": 0}]
    path = write(tmp_path / "lists.jsonl", {"query": "q", "candidates": candidates, **fields})
    with pytest.raises(InputError, match=rf"lists\.jsonl:1: {message}"):
        list(read_lists(path))
