"""Dev examples, and errors in the data that are found before training starts."""

from __future__ import annotations

import pytest

from mnemorank.errors import InputError
from mnemorank.evaluation.metrics import Judgments
from mnemorank.training.dataset import dev_examples, stage_examples
from mnemorank.training.evaluation import evaluate_bm25
from mnemorank.training.recipe import parse_recipe
from mnemorank.training.run import train
from mnemorank.training.stages import check_data
from tests.training.conftest import write_jsonl


@pytest.fixture
def triplets(tmp_path):
    records = [
        {"query": f"q{i}", "positive": {"text": f"right {i}"}, "negative": {"text": f"wrong {i}"}} for i in range(40)
    ]
    return write_jsonl(tmp_path / "triplets.jsonl", records)


def load_dev(tables, **source):
    return dev_examples(parse_recipe({**tables, "dev": {"data": [source]}}))


@pytest.mark.parametrize("format_name", ["triplets", "auto"])
def test_dev_triplets_are_split_and_ranked_against_all_memories(tables, triplets, format_name):
    source = {"path": str(triplets), "format": format_name, "dev_share": 0.3}
    every, dev, train = (load_dev(tables, **source, **split) for split in ({}, {"split": "dev"}, {"split": "train"}))
    assert 0 < len(dev) < len(train)
    assert sorted(e.query for e in dev + train) == sorted(e.query for e in every)
    assert all(len(example.candidates) == 80 for example in dev)


def test_conflicting_labels_in_dev_triplets_are_an_error_or_dropped(tables, triplets, tmp_path):
    lines = triplets.read_text().splitlines()
    lines.append('{"query": "q1", "positive": {"text": "wrong 1"}, "negative": {"text": "x"}}')
    path = tmp_path / "bad.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(InputError, match=r"bad\.jsonl.*40"):
        load_dev(tables, path=str(path), format="triplets")
    assert len(load_dev(tables, path=str(path), format="triplets", label_conflicts="drop")) == 40


def test_graded_dev_pairs_are_relevant_from_a_label_of_one_half(tables, tmp_path):
    rows = [{"query": "q", "text": "a", "label": 0.2}, {"query": "q", "text": "cat", "label": 0.8}]
    path = write_jsonl(tmp_path / "graded.jsonl", rows)
    for format_name in ("graded", "auto"):
        dev = load_dev(tables, path=str(path), format=format_name)
        assert evaluate_bm25(dev).values["recall@5"].tolist() == [1.0]
        assert Judgments.of(dev[0]).relevant.tolist() == [False, True]
    write_jsonl(path, rows[:1])
    with pytest.raises(InputError) as caught:
        load_dev(tables, path=str(path), format="graded")
    assert caught.value.field == "dev.data"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"format": "lists"}, r"later\.jsonl:2: candidates"),
        ({"format": "lists", "hard_negatives": {"retriever": "/nowhere"}}, "/nowhere"),
    ],
)
def test_an_error_in_a_later_stage_is_found_before_the_base_is_evaluated(
    tables, tmp_path, train_lists, source, message
):
    good = train_lists.read_text().splitlines()[0]
    (tmp_path / "later.jsonl").write_text(good + '\n{"query": "q"}\n', encoding="utf-8")
    tables["stage"] = [{"name": "one"}, {"name": "two", "data": [{"path": str(tmp_path / "later.jsonl"), **source}]}]
    messages = []
    with pytest.raises(InputError, match=message):
        train(parse_recipe(tables), tmp_path / "out", on_message=messages.append)
    assert messages == ["reading the data of all stages"]


def pair(query="q", positive="a cat", negative="a dog", **fields):
    candidates = [{"text": positive, "label": 1, **fields}, {"text": negative, "label": 0, **fields}]
    return {"query": query, "candidates": candidates}


def two_stages(tables, tmp_path, second, loss="softmax", lists=None, **source):
    """A valid stage, and one with the given files."""
    paths = [write_jsonl(tmp_path / f"{number}.jsonl", records) for number, records in enumerate(second)]
    data = [{"path": str(path), **(source if number else {})} for number, path in enumerate(paths)]
    stages = [{"name": "one"}, {"name": "two", "data": data, "loss": [{"name": loss}], "lists": lists or {}}]
    return parse_recipe({**tables, "stage": stages})


@pytest.mark.parametrize(
    ("second", "loss", "field", "code"),
    [
        ([[pair()], [pair(positive="a dog", negative="x")]], "softmax", "data", "label_conflict"),
        ([[pair()]], "kl", "loss", "invalid"),
        ([[pair(teacher_score=1.0, weight=2)]], "margin-mse", "loss", "invalid"),
        ([[{"query": "q", "candidates": [{"text": "a", "label": 1}]}]], "softmax", "data", "invalid"),
        ([[{"query": "q", "candidates": [{"text": "a", "label": 0}]}]], "bce", "data", "invalid"),
    ],
)
def test_data_that_a_later_stage_cannot_use_is_found_first(tables, tmp_path, second, loss, field, code):
    with pytest.raises(InputError) as caught:
        check_data(two_stages(tables, tmp_path, second, loss))
    assert (caught.value.field, caught.value.code) == (field, code)


GRADED = {"query": "q", "candidates": [{"text": "a", "label": 0.9}, {"text": "b", "label": 0.3}]}


@pytest.mark.parametrize(
    ("record", "loss", "lists", "is_error"),
    [
        (pair(), "softmax", {"negatives": 0}, True),
        (pair(), "softmax", {"negatives": 1}, False),
        (pair(), "bce", {"negatives": 0}, False),
        (GRADED, "listnet", {"positives": 1}, True),
        (GRADED, "listnet", {"positives": 2, "negatives": 0}, False),
    ],
)
def test_sampling_that_never_yields_two_labels_is_an_error(tables, tmp_path, record, loss, lists, is_error):
    recipe = two_stages(tables, tmp_path, [[record]], loss, lists)
    if is_error:
        with pytest.raises(InputError) as caught:
            check_data(recipe)
        assert caught.value.field == "lists"
    else:
        check_data(recipe)


def test_a_missing_mask_token_is_found_before_the_base_is_evaluated(tables, tmp_path):
    recipe = parse_recipe({**tables, "stage": [{}, {"data": [{**tables["data"][0], "mask_rate": 0.3}]}]})
    messages = []
    with pytest.raises(InputError) as caught:
        train(recipe, tmp_path / "out", on_message=messages.append)
    assert caught.value.field == "mask_rate"
    assert messages == ["reading the data of all stages"]


def unanswerable(query):
    return {"query": query, "candidates": [{"text": "a", "label": 0}, {"text": "b", "label": 0}]}


def test_dev_queries_without_any_relevant_candidate_are_an_error(tables, tmp_path):
    path = write_jsonl(tmp_path / "dev.jsonl", [pair(), *(unanswerable(f"q{n}") for n in range(40))])
    with pytest.raises(InputError) as caught:
        dev_examples(parse_recipe({**tables, "dev": {"data": [{"path": str(path)}], "limit": 1}}))
    assert caught.value.field == "dev.limit"
    write_jsonl(path, [pair("cat " * 60), unanswerable("q")])
    with pytest.raises(InputError) as caught:
        train(parse_recipe({**tables, "dev": {"data": [{"path": str(path)}]}}), tmp_path / "out")
    assert caught.value.field == "model.max_length"


def test_negatives_that_will_be_mined_need_not_be_in_the_file(tables, tmp_path):
    only_positives = [{"query": f"q{n}", "candidates": [{"text": f"text {n}", "label": 1}]} for n in range(4)]
    check_data(two_stages(tables, tmp_path, [[pair()], only_positives], hard_negatives={"count": 1}))


def test_label_conflicts_can_be_dropped(tables, tmp_path):
    later = [{**pair(positive="a fox", negative="a cat"), "query_time": "2020"}, {**pair("r"), "query_time": "2021"}]
    recipe = two_stages(tables, tmp_path, [[pair()], later], label_conflicts="drop")
    check_data(recipe)
    examples = stage_examples(recipe.stage[1], recipe)
    assert [[memory.text for memory in e.memories] for e in examples] == [
        ["a cat", "a dog"],
        ["a fox"],
        ["a cat", "a dog"],
    ]
    inside = [pair(), {**pair(positive="a fox", negative="a cat"), "query_time": "2020"}]
    check_data(two_stages(tables, tmp_path, [[pair("other")], inside], label_conflicts="drop"))
    with pytest.raises(InputError, match="label_conflicts") as caught:
        check_data(two_stages(tables, tmp_path, [[pair("other")], inside]))
    assert caught.value.code == "label_conflict"
