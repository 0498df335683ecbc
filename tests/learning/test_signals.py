import pytest

from mnemorank import InputError
from mnemorank.learning.signals import KINDS, WHOLE_EVENT, Signal, merge


def signals(*given, actor="ann", position=2):
    """:param given: (kind, time) or (kind, time, value)."""
    return [
        Signal("e", kind, position, *value, note="x" if kind == "note" else None, actor=actor, time=time)
        for kind, time, *value in given
    ]


@pytest.mark.parametrize(
    ("given", "value", "kind"),
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
def test_signals_of_one_actor_on_one_memory_make_one_verdict(given, value, kind):
    (verdict,) = merge(signals(*given))
    assert (verdict.position, verdict.actor, verdict.value, verdict.kind) == (2, "ann", value, kind)


@pytest.mark.parametrize("given", [[("note", 1)], [("stars", 1, 3.0)], [("thumbs_up", 1), ("stars", 2, 3.0)], []])
def test_no_verdict(given):
    assert merge(signals(*given)) == []


def test_the_order_of_arrival_does_not_matter():
    given = signals(("click", 1), ("thumbs_up", 3), ("stars", 3, 1.0), ("cited", 9), ("thumbs_down", 2))
    assert merge(given) == merge(given[::-1])


def test_actors_and_memories_stay_apart():
    given = signals(("click", 1)) + signals(("thumbs_down", 1), actor="bob") + signals(("cited", 1), position=0)
    assert [(v.position, v.actor, v.value) for v in merge(given)] == [(0, "ann", 1), (2, "ann", 1), (2, "bob", -1)]


def test_a_liked_answer_and_late_signals_are_no_verdict_on_a_memory():
    whole = signals(("thumbs_up", 1), ("stars", 1, 5.0), position=WHOLE_EVENT)
    late = [Signal("e", "click", 0, time=5.0, late=True)]
    assert merge(whole + late) == []


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "like"}, "kind: unknown signal 'like'"),
        ({"kind": "stars"}, "1 to 5 stars, got None"),
        ({"kind": "stars", "value": 6.0}, "1 to 5 stars, got 6"),
        ({"kind": "note", "note": " "}, "note: is empty"),
        ({"kind": "click", "position": -2}, "position"),
    ],
)
def test_bad_signals_are_refused(fields, message):
    with pytest.raises(InputError, match=message):
        Signal("e", **fields)


def test_every_kind_the_documentation_names_exists():
    assert set(KINDS) == {
        "click", "thumbs_up", "thumbs_down", "stars", "note", "cited", "used", "ignored", "contradicted",
    }  # fmt: skip
