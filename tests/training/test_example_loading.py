"""Which dev questions a recipe's sources stand for."""

from __future__ import annotations

import pytest

from mnemorank.errors import InputError
from mnemorank.evaluation.metrics import Judgments
from mnemorank.training.evaluation import measure_bm25
from mnemorank.training.example_loading import check_data, dev_examples, stage_examples
from mnemorank.training.recipe_files import parse_recipe
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


@pytest.mark.parametrize("named", ["triplets", "auto"])
def test_dev_triplets_are_of_their_split_and_ranked_among_all_memories(tables, triplets, named):
    source = {"path": str(triplets), "format": named, "dev_share": 0.3}
    whole, dev, train = (dev_of(tables, **source, **split) for split in ({}, {"split": "dev"}, {"split": "train"}))
    assert 0 < len(dev) < len(train)
    assert sorted(e.query for e in dev + train) == sorted(e.query for e in whole)
    assert all(len(example.candidates) == 80 for example in dev)


def test_contradictions_in_dev_triplets_are_named_or_dropped(tables, triplets, tmp_path):
    texts = triplets.read_text().splitlines()
    texts.append('{"query": "q1", "positive": {"text": "wrong 1"}, "negative": {"text": "x"}}')
    path = tmp_path / "bad.jsonl"
    path.write_text("\n".join(texts), encoding="utf-8")
    with pytest.raises(InputError, match=r"bad\.jsonl: example 40: .*example 1"):
        dev_of(tables, path=str(path), format="triplets")
    assert len(dev_of(tables, path=str(path), format="triplets", label_conflicts="drop")) == 40


def test_graded_dev_pairs_are_relevant_from_a_half_as_in_the_bench(tables, tmp_path):
    rows = [{"query": "q", "text": "a", "label": 0.2}, {"query": "q", "text": "cat", "label": 0.8}]
    path = write_jsonl(tmp_path / "graded.jsonl", rows)
    for named in ({"format": "graded"}, {"format": "auto"}):
        measured = measure_bm25(dev_of(tables, path=str(path), **named))
        assert measured.values["recall@5"].tolist() == [1.0]
        assert Judgments.of(dev_of(tables, path=str(path), **named)[0]).relevant.tolist() == [False, True]
    write_jsonl(path, rows[:1])
    with pytest.raises(InputError, match=r"dev\.data: no candidate is relevant"):
        dev_of(tables, path=str(path), format="graded")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"format": "lists"}, r"later\.jsonl:2: candidates: expected a list"),
        ({"format": "lists", "hard_negatives": {"retriever": "/nowhere"}}, "retriever: expected bm25 or the folder"),
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


def pair(query="q", right="a cat", wrong="a dog", **fields):
    labelled = [{"text": right, "label": 1, **fields}, {"text": wrong, "label": 0, **fields}]
    return {"query": query, "candidates": labelled}


def two_stages(tables, tmp_path, second, loss="softmax", lists=None, **source):
    """A stage that is as it should be, and one of the given files."""
    paths = [write_jsonl(tmp_path / f"{number}.jsonl", records) for number, records in enumerate(second)]
    data = [{"path": str(path), **(source if number else {})} for number, path in enumerate(paths)]
    stages = [{"name": "one"}, {"name": "two", "data": data, "loss": [{"name": loss}], "lists": lists or {}}]
    return parse_recipe({**tables, "stage": stages})


@pytest.mark.parametrize(
    ("second", "loss", "message"),
    [
        ([[pair()], [pair(right="a dog", wrong="x")]], "softmax", "data: .*label_conflicts"),
        ([[pair()]], "kl", "distillation needs a `teacher_score`"),
        ([[pair(teacher_score=1.0, weight=2)]], "margin-mse", "margin-mse takes no weights"),
        ([[{"query": "q", "candidates": [{"text": "a", "label": 1}]}]], "softmax", "data: no example has both"),
        ([[{"query": "q", "candidates": [{"text": "a", "label": 0}]}]], "bce", "data: every label is 0"),
    ],
)
def test_what_a_later_stage_would_stop_at_is_found_first(tables, tmp_path, second, loss, message):
    with pytest.raises(InputError, match=message):
        check_data(two_stages(tables, tmp_path, second, loss))


GRADED = {"query": "q", "candidates": [{"text": "a", "label": 0.9}, {"text": "b", "label": 0.3}]}


@pytest.mark.parametrize(
    ("record", "loss", "lists", "stops"),
    [
        (pair(), "softmax", {"negatives": 0}, True),
        (pair(), "softmax", {"negatives": 1}, False),
        (pair(), "bce", {"negatives": 0}, False),
        (GRADED, "listnet", {"positives": 1}, True),
        (GRADED, "listnet", {"positives": 2, "negatives": 0}, False),
    ],
)
def test_draws_of_one_label_are_found_before_training(tables, tmp_path, record, loss, lists, stops):
    recipe = two_stages(tables, tmp_path, [[record]], loss, lists)
    if stops:
        with pytest.raises(InputError, match="all that is drawn of a list has the same label"):
            check_data(recipe)
    else:
        check_data(recipe)


def test_no_mask_to_hide_tokens_in_a_later_stage_is_found_before_the_base_is_measured(tables, tmp_path):
    recipe = parse_recipe({**tables, "stage": [{}, {"data": [{**tables["data"][0], "mask_rate": 0.3}]}]})
    said = []
    with pytest.raises(InputError, match="mask_rate: the tokenizer has no mask"):
        train(recipe, tmp_path / "out", say=said.append)
    assert said == ["reading the data of all stages"]


def unanswered(query):
    return {"query": query, "candidates": [{"text": "a", "label": 0}, {"text": "b", "label": 0}]}


def test_dev_questions_of_which_none_has_an_answer_are_found_before_training(tables, tmp_path):
    path = write_jsonl(tmp_path / "dev.jsonl", [pair(), *(unanswered(f"q{n}") for n in range(40))])
    with pytest.raises(InputError, match=r"relevant to the 1 questions drawn: dev\.limit"):
        dev_examples(parse_recipe({**tables, "dev": {"data": [{"path": str(path)}], "limit": 1}}))
    write_jsonl(path, [pair("cat " * 60), unanswered("q")])
    with pytest.raises(
        InputError, match=r"relevant to the 1 questions that leave room for a memory: model\.max_length"
    ):
        train(parse_recipe({**tables, "dev": {"data": [{"path": str(path)}]}}), tmp_path / "out")


def test_what_is_mined_is_not_asked_for_beforehand(tables, tmp_path):
    only_right = [{"query": f"q{n}", "candidates": [{"text": f"text {n}", "label": 1}]} for n in range(4)]
    check_data(two_stages(tables, tmp_path, [[pair()], only_right], hard_negatives={"count": 1}))


def test_drop_cures_what_the_stage_would_stop_at(tables, tmp_path):
    later = [{**pair(right="a fox", wrong="a cat"), "query_time": "2020"}, {**pair("r"), "query_time": "2021"}]
    recipe = two_stages(tables, tmp_path, [[pair()], later], label_conflicts="drop")
    check_data(recipe)
    found = stage_examples(recipe.stage[1], recipe)
    assert [[memory.text for memory in e.memories] for e in found] == [
        ["a cat", "a dog"],
        ["a fox"],
        ["a cat", "a dog"],
    ]
    inside = [pair(), {**pair(right="a fox", wrong="a cat"), "query_time": "2020"}]
    check_data(two_stages(tables, tmp_path, [[pair("other")], inside], label_conflicts="drop"))
    with pytest.raises(InputError, match="label_conflicts"):
        check_data(two_stages(tables, tmp_path, [[pair("other")], inside]))
