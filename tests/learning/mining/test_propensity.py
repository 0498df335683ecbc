import random

import pytest

from mnemorank.learning.exploration import swap_neighbours
from mnemorank.learning.mining.propensity import Impression, Propensities, estimate, impressions, looks, prior
from mnemorank.learning.signals import Signal
from tests.learning.learning_cases import make_event

LOOKED = (1.0, 0.6, 0.35, 0.25, 0.2)


def clicks(rounds: int, shuffled: bool, seed: int = 1) -> list[Impression]:
    """Simulated users who look by LOOKED and click what is relevant to them."""
    source = random.Random(seed)
    relevance = {f"q{q}-m{m}": source.choice((0.1, 0.4, 0.8)) for q in range(40) for m in range(5)}
    seen = []
    for _ in range(rounds):
        for q in range(40):
            order = [f"q{q}-m{m}" for m in range(5)]
            if shuffled:
                source.shuffle(order)
            seen += [
                Impression(key, place, source.random() < LOOKED[place] * relevance[key])
                for place, key in enumerate(order)
            ]
    return seen


def test_the_true_propensities_are_found_where_positions_vary():
    found = looks(clicks(150, shuffled=True))
    assert found.looked == pytest.approx(LOOKED, abs=0.06)
    assert found.evidence == 150 * 40 * 5


def test_swapping_neighbours_is_variation_enough():
    source = random.Random(3)
    relevance = {f"q{q}-m{m}": source.random() for q in range(60) for m in range(5)}
    seen = []
    for _ in range(300):
        for q in range(60):
            order, _ = swap_neighbours([f"q{q}-m{m}" for m in range(5)], 0.2, source)
            seen += [
                Impression(key, place, source.random() < LOOKED[place] * relevance[key])
                for place, key in enumerate(order)
            ]
    assert looks(seen).looked == pytest.approx(LOOKED, abs=0.12)


def test_without_variation_the_prior_stands():
    found = looks(clicks(20, shuffled=False))
    assert found.evidence == 0
    assert found.looked[:3] == (1.0, prior(1), prior(2))


def test_a_few_impressions_hardly_move_the_prior():
    few = [Impression("a", 0, True), Impression("a", 3, True)]
    assert looks(few).at(3) == pytest.approx(prior(3), abs=0.05)


def test_propensities_never_rise_and_go_on_past_the_last():
    found = looks(clicks(10, shuffled=True))
    assert list(found.looked) == sorted(found.looked, reverse=True)
    assert found.at(100) <= found.looked[-1]
    assert Propensities().at(0) == 1.0
    assert Propensities().at(9) == pytest.approx(10**-0.7)


def test_impressions_are_read_from_the_log():
    event = make_event(texts=("a", "b"))
    late = Signal(event.id, "click", 1, late=True)
    seen = list(impressions([(event, [Signal(event.id, "click", 0), late]), (make_event(None), [])]))
    assert [(i.position, i.clicked) for i in seen] == [(0, True), (1, False)]
    assert (
        len(
            {
                i.key
                for i in impressions([(make_event("Ruby work", ("a",)), []), (make_event("ruby  WORK", ("a",)), [])])
            }
        )
        == 1
    )


def test_to_be_passed_over_shows_more_often_at_the_top():
    log = []
    for number in range(400):
        event = make_event(f"question {number}", tuple("abcde"))
        log.append((event, [Signal(event.id, "click", number % 5)]))
    found = estimate(log)
    # Clicked at 0, 1, 2, 3, 4 equally often: below the first position in four cases of five, and so on.
    assert found.passed[:4] == pytest.approx((0.8, 0.6, 0.4, 0.2), abs=0.02)
    assert found.passed_at(0) == 1.0
    assert found.passed_at(2) == pytest.approx(0.5, abs=0.02)
    assert Propensities().passed_at(7) == 1.0
    assert estimate([]).passed_at(0) == 1.0
