import random

import pytest

from mnemorank.learning.exploration import swap_neighbors
from mnemorank.learning.mining.propensity import (
    Impression,
    Propensities,
    estimate_examination,
    estimate_propensities,
    prior,
    read_impressions,
)
from mnemorank.learning.signals import Signal
from tests.learning.factories import make_event

EXAMINED = (1.0, 0.6, 0.35, 0.25, 0.2)


def simulate_clicks(rounds: int, is_shuffled: bool, seed: int = 1) -> list[Impression]:
    """Users examine ranks with the probabilities EXAMINED, and click what is relevant to them."""
    rng = random.Random(seed)
    relevance = {f"q{q}-m{m}": rng.choice((0.1, 0.4, 0.8)) for q in range(40) for m in range(5)}
    impressions = []
    for _ in range(rounds):
        for q in range(40):
            order = [f"q{q}-m{m}" for m in range(5)]
            if is_shuffled:
                rng.shuffle(order)
            impressions += [
                Impression(key, rank, rng.random() < EXAMINED[rank - 1] * relevance[key])
                for rank, key in enumerate(order, 1)
            ]
    return impressions


def test_true_propensities_are_found_if_ranks_vary():
    propensities = estimate_examination(simulate_clicks(150, is_shuffled=True))
    assert propensities.examined == pytest.approx(EXAMINED, abs=0.06)
    assert propensities.impressions == 150 * 40 * 5


def test_swapping_neighbors_is_enough_variation():
    rng = random.Random(3)
    relevance = {f"q{q}-m{m}": rng.random() for q in range(60) for m in range(5)}
    impressions = []
    for _ in range(300):
        for q in range(60):
            order, _ = swap_neighbors([f"q{q}-m{m}" for m in range(5)], 0.2, rng)
            impressions += [
                Impression(key, rank, rng.random() < EXAMINED[rank - 1] * relevance[key])
                for rank, key in enumerate(order, 1)
            ]
    assert estimate_examination(impressions).examined == pytest.approx(EXAMINED, abs=0.12)


def test_without_variation_the_estimate_is_the_prior():
    propensities = estimate_examination(simulate_clicks(20, is_shuffled=False))
    assert propensities.impressions == 0
    assert propensities.examined[:3] == (1.0, prior(2), prior(3))


def test_few_impressions_hardly_change_the_prior():
    few = [Impression("a", 1, True), Impression("a", 4, True)]
    assert estimate_examination(few).examination(4) == pytest.approx(prior(4), abs=0.05)


def test_propensities_never_increase_and_continue_beyond_the_last_rank():
    propensities = estimate_examination(simulate_clicks(10, is_shuffled=True))
    assert list(propensities.examined) == sorted(propensities.examined, reverse=True)
    assert propensities.examination(101) <= propensities.examined[-1]
    assert Propensities().examination(1) == 1.0
    assert Propensities().examination(10) == pytest.approx(10**-0.7)


def test_impressions_are_read_from_the_log():
    event = make_event(texts=("a", "b"))
    late = Signal(event.id, "click", 2, late=True)
    impressions = list(read_impressions([(event, [Signal(event.id, "click", 1), late]), (make_event(None), [])]))
    assert [(impression.rank, impression.clicked) for impression in impressions] == [(1, True), (2, False)]


def test_spellings_of_a_query_share_their_impressions():
    log = [(make_event(query, ("a",)), []) for query in ("Ruby work", "ruby  WORK")]
    assert len({impression.key for impression in read_impressions(log)}) == 1


def test_skips_are_observed_more_often_at_the_top():
    log = []
    for number in range(400):
        event = make_event(f"question {number}", tuple("abcde"))
        log.append((event, [Signal(event.id, "click", number % 5 + 1)]))
    propensities = estimate_propensities(log)
    # The ranks 1 to 5 are clicked equally often: four clicks of five are below rank 1, and so on.
    assert propensities.skip_observed[:4] == pytest.approx((0.8, 0.6, 0.4, 0.2), abs=0.02)
    assert propensities.skip_observation(1) == 1.0
    assert propensities.skip_observation(3) == pytest.approx(0.5, abs=0.02)
    assert Propensities().skip_observation(8) == 1.0
    assert estimate_propensities([]).skip_observation(1) == 1.0
