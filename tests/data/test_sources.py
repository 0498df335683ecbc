from __future__ import annotations

import json
from collections import Counter

import pytest

from mnemorank.data.sources import Source, load_sources, read_examples
from mnemorank.errors import InputError


def write(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.fixture
def lists(tmp_path):
    records = [
        {
            "query": f"q{i}",
            "group": f"g{i // 2}",
            "candidates": [{"text": f"right {i}", "label": 1}, {"text": "x", "label": 0}],
        }
        for i in range(40)
    ]
    return write(tmp_path / "lists.jsonl", records)


@pytest.fixture
def triplets(tmp_path):
    records = [{"query": f"t{i}", "positive": {"text": "yes"}, "negative": {"text": "no"}} for i in range(10)]
    return write(tmp_path / "triplets.jsonl", records)


def test_formats_are_detected_and_examples_name_their_source(lists, triplets, tmp_path):
    graded = write(
        tmp_path / "graded.jsonl", [{"query": "q", "text": "a", "label": 0.4}, {"query": "q", "text": "b", "label": 1}]
    )
    mixed = load_sources([{"path": lists}, {"path": triplets, "name": "memex"}, {"path": str(graded)}], seed=1)
    assert Counter(example.source for example in mixed) == {"lists.jsonl": 40, "memex": 10, "graded.jsonl": 1}
    assert mixed[-1].labels == [0.4, 1.0]


def test_sampling_and_weights_are_reproducible(lists):
    def ids(seed, **options):
        return [example.query for example in load_sources([{"path": lists, **options}], seed)]

    assert len(ids(1, max_examples=7)) == 7
    assert ids(1, max_examples=7) == ids(1, max_examples=7)
    assert ids(1, max_examples=7) != ids(2, max_examples=7)
    assert Counter(ids(1, weight=2)) == {f"q{i}": 2 for i in range(40)}
    assert len(ids(1, weight=0.5)) == len(set(ids(1, weight=0.5))) == 20
    halves = Counter(ids(1, weight=1.25))
    assert sorted(halves.values()) == [1] * 30 + [2] * 10
    assert len(ids(1, max_examples=10, weight=3)) == 30


def test_splits_of_a_source_share_no_group(lists):
    train, dev = (load_sources([Source(lists, split=part, dev_share=0.3)], 1) for part in ("train", "dev"))
    assert len(train) + len(dev) == 40
    assert {e.group for e in train}.isdisjoint({e.group for e in dev})
    with pytest.raises(InputError, match="split"):
        load_sources([Source(lists, split="dev", dev_share=1e-9)], 1)


@pytest.mark.parametrize("format", ["lists", "triplets", "graded"])
def test_spellings_of_a_query_without_a_group_stay_on_one_side(tmp_path, format):
    def fields(text):
        if format == "triplets":
            return {"positive": text, "negative": "wrong"}
        return {"text": text, "label": 1} if format == "graded" else {"candidates": [{"text": text, "label": 1}]}

    rows = [
        {"query": query, **fields(f"right {i}")}
        for i in range(40)
        for query in (f"Where is number {i}?", f"where is  number {i}")
    ]
    path = write(tmp_path / "rows.jsonl", rows)
    train, dev = (load_sources([Source(path, split=part, dev_share=0.3)], 1) for part in ("train", "dev"))
    assert {e.memories[0].text for e in train}.isdisjoint({e.memories[0].text for e in dev})


def test_sampling_does_not_turn_relevant_memories_into_negatives(tmp_path):
    rows = [
        {"query": "q", "candidates": [{"text": "first answer here", "label": 1}]},
        {"query": "q", "candidates": [{"text": "second thing there", "label": 1}]},
        {"query": "p", "candidates": [{"text": "second thing there", "label": 0}, {"text": "else", "label": 1}]},
    ]
    path = write(tmp_path / "lists.jsonl", rows)
    for seed in range(12):
        for example in load_sources([{"path": path, "max_examples": 2, "hard_negatives": {"count": 4}}], seed):
            wrong = {candidate.memory.text for candidate in example.candidates if candidate.label == 0}
            assert example.query == "p" or wrong <= {"else"}


def test_hard_negatives_are_mined_on_request(lists):
    mixed = load_sources([{"path": lists, "hard_negatives": {"count": 3}}], seed=1)
    assert all(len(example.candidates) == 5 for example in mixed)
    with pytest.raises(InputError) as caught:
        load_sources([{"path": lists, "hard_negatives": {"howmany": 3}}], seed=1)
    assert caught.value.field == "hard_negatives.howmany"
    with pytest.raises(InputError) as caught:
        load_sources([{"path": lists, "hard_negatives": {"count": 0}}], seed=1)
    assert caught.value.field == "hard_negatives.count"


@pytest.mark.parametrize(
    ("record", "field"),
    [
        ({"query": "", "candidates": [{"text": "a", "label": 1}]}, "query"),
        ({"query": "q", "candidates": []}, "candidates"),
        ({"query": "q", "candidates": [{"text": "a", "label": 2}]}, "candidates.0.label"),
        ({"query": "q", "candidates": [{"text": "a", "label": "yes"}]}, "candidates.0.label"),
        ({"query": "q", "candidates": ["a"]}, "candidates.0"),
        (
            {"query": "q", "candidates": [{"text": "a", "label": 1, "occurred_start": "soon"}]},
            "candidates.0.occurred_start",
        ),
    ],
)
def test_errors_name_file_line_and_field(tmp_path, record, field):
    good = {"query": "q0", "candidates": [{"text": "a", "label": 1}]}
    path = write(tmp_path / "bad.jsonl", [good, record])
    with pytest.raises(InputError) as caught:
        list(read_examples(path))
    assert (caught.value.field, caught.value.location) == (field, f"{path}:2")


def test_label_conflicts_are_errors(tmp_path):
    rows = [
        {"query": "q", "text": "a", "label": 1},
        {"query": "p", "text": "a", "label": 0},
        {"query": "q", "text": "a", "label": 0},
    ]
    with pytest.raises(InputError, match=r"graded\.jsonl: example 0: ") as caught:
        list(read_examples(write(tmp_path / "graded.jsonl", rows)))
    assert caught.value.code == "label_conflict"
    triplets = [
        {"query": "q", "positive": {"text": "a"}, "negative": {"text": "b"}},
        {"query": "q", "positive": {"text": "b"}, "negative": {"text": "c"}},
    ]
    with pytest.raises(InputError, match=r"triplets\.jsonl: example 1: .*example 0") as caught:
        list(read_examples(write(tmp_path / "triplets.jsonl", triplets)))
    assert caught.value.code == "label_conflict"
    dated = [
        {
            "query": "q",
            "positive": {"text": "a", "occurred_start": "2024"},
            "negative": {"text": "a", "occurred_start": "2020"},
        }
    ]
    assert len(list(read_examples(write(tmp_path / "dated.jsonl", dated)))) == 1


@pytest.mark.parametrize("labels", [(0.5, 1, 0), (0.5, 0, 1), (0, 0.5, 1), (1, 0.5, 0)])
def test_a_grade_in_between_does_not_hide_a_label_conflict(tmp_path, labels):
    rows = [{"query": "q", "candidates": [{"text": "a", "label": label}]} for label in labels]
    with pytest.raises(InputError, match=r"example 2: .*example [01]"):
        list(read_examples(write(tmp_path / "lists.jsonl", rows)))
    assert len(list(read_examples(write(tmp_path / "lists.jsonl", rows[:1] * 3)))) == 3


def test_label_conflicts_can_be_dropped(tmp_path):
    rows = [
        {"query": "q", "candidates": [{"text": "a", "label": 1}, {"text": "b", "label": 0}]},
        {"query": "q", "candidates": [{"text": "b", "label": 1}, {"text": "a", "label": 0}, {"text": "c", "label": 0}]},
        {"query": "p", "candidates": [{"text": "c", "label": 1}, {"text": "a", "label": 0}]},
    ]
    path = write(tmp_path / "lists.jsonl", rows)
    examples = load_sources([{"path": path, "label_conflicts": "drop"}], 1)
    assert [[memory.text for memory in example.memories] for example in examples] == [["a"], ["b", "c"], ["c", "a"]]
    with pytest.raises(InputError) as caught:
        load_sources([{"path": path, "label_conflicts": "maybe"}], 1)
    assert caught.value.field == "label_conflicts"


def test_empty_files_and_unknown_formats_are_errors(tmp_path):
    empty = write(tmp_path / "empty.jsonl", [])
    with pytest.raises(InputError, match=r"empty\.jsonl"):
        load_sources([{"path": empty}], 1)
    strange = write(tmp_path / "strange.jsonl", [{"question": "q"}])
    with pytest.raises(InputError, match=r"strange\.jsonl:1"):
        load_sources([{"path": strange}], 1)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("format", "nosuch"),
        ("wieght", 2),
        ("weight", 0),
        ("weight", float("nan")),
        ("weight", True),
        ("max_examples", 0),
        ("max_examples", 1.5),
        ("split", "test"),
        ("dev_share", 2),
        ("label_conflicts", "maybe"),
        ("mask_rate", 1),
    ],
)
def test_an_invalid_source_is_rejected_by_field(tmp_path, key, value):
    with pytest.raises(InputError) as caught:
        Source.from_dict({"path": tmp_path / "any.jsonl", key: value})
    assert caught.value.field == key


def test_a_source_needs_a_path():
    with pytest.raises(InputError) as caught:
        Source.from_dict({"format": "lists"})
    assert caught.value.field == "path"
