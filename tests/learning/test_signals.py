import pytest

from mnemorank import InputError
from mnemorank.learning.signals import KINDS, Signal, merge_signals


def make_signals(*kinds, actor="ann", rank=3):
    """:param kinds: (kind, time) or (kind, time, stars)."""
    return [
        Signal("e", kind, rank, *value, note="x" if kind == "note" else None, actor=actor, time=time)
        for kind, time, *value in kinds
    ]


@pytest.mark.parametrize(
    ("kinds", "value", "kind"),
    [
        ([("click", 1)], +1, "click"),
        ([("click", 1), ("click", 2)], +1, "click"),
        ([("thumbs_up", 1), ("thumbs_down", 2)], -1, "thumbs_down"),
        ([("thumbs_down", 2), ("thumbs_up", 1)], -1, "thumbs_down"),
        ([("thumbs_down", 1), ("thumbs_up", 2)], +1, "thumbs_up"),
        ([("thumbs_up", 1), ("thumbs_down", 1)], -1, "thumbs_down"),
        ([("click", 9), ("thumbs_down", 1)], -1, "thumbs_down"),
        ([("cited", 1), ("contradicted", 2)], -1, "contradicted"),
        ([("contradicted", 1), ("cited", 2)], -1, "contradicted"),
        ([("ignored", 9), ("used", 1)], +1, "used"),
        ([("used", 9), ("cited", 1), ("click", 3)], +1, "cited"),
        ([("ignored", 1)], -1, "ignored"),
        ([("stars", 1, 5.0)], +1, "stars"),
        ([("stars", 1, 5.0), ("stars", 2, 1.0)], -1, "stars"),
    ],
)
def test_the_signals_of_an_actor_on_a_memory_result_in_one_verdict(kinds, value, kind):
    (verdict,) = merge_signals(make_signals(*kinds))
    assert (verdict.rank, verdict.actor, verdict.value, verdict.kind) == (3, "ann", value, kind)


@pytest.mark.parametrize("kinds", [[("note", 1)], [("stars", 1, 3.0)], [("thumbs_up", 1), ("stars", 2, 3.0)], []])
def test_neutral_signals_result_in_no_verdict(kinds):
    assert merge_signals(make_signals(*kinds)) == []


def test_the_order_of_arrival_does_not_matter():
    signals = make_signals(("click", 1), ("thumbs_up", 3), ("stars", 3, 1.0), ("cited", 9), ("thumbs_down", 2))
    assert merge_signals(signals) == merge_signals(signals[::-1])


def test_actors_and_memories_are_separate():
    signals = [
        *make_signals(("click", 1)),
        *make_signals(("thumbs_down", 1), actor="bob"),
        *make_signals(("cited", 1), rank=1),
    ]
    verdicts = [(verdict.rank, verdict.actor, verdict.value) for verdict in merge_signals(signals)]
    assert verdicts == [(1, "ann", 1), (3, "ann", 1), (3, "bob", -1)]


def test_signals_on_the_whole_answer_and_late_signals_are_not_verdicts_on_a_memory():
    on_answer = make_signals(("thumbs_up", 1), ("stars", 1, 5.0), rank=None)
    late = [Signal("e", "click", 1, time=5.0, late=True)]
    assert merge_signals(on_answer + late) == []


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"kind": "like"}, "kind"),
        ({"kind": "stars"}, "value"),
        ({"kind": "stars", "value": 6.0}, "value"),
        ({"kind": "note", "note": " "}, "note"),
        ({"kind": "click", "rank": 0}, "rank"),
        ({"kind": "click", "rank": -1}, "rank"),
    ],
)
def test_invalid_signals_are_rejected(fields, field):
    with pytest.raises(InputError) as error:
        Signal("e", **fields)
    assert error.value.field == field


def test_documented_kinds_exist():
    assert set(KINDS) == {
        "click", "thumbs_up", "thumbs_down", "stars", "note", "cited", "used", "ignored", "contradicted",
    }  # fmt: skip
