from __future__ import annotations

import random

import numpy as np
import pytest

from mnemorank.artifact.hop_features import feature_prefix
from mnemorank.artifact.manifest import Manifest
from mnemorank.artifact.templates import templates
from mnemorank.errors import InputError
from mnemorank.scorers.encoding import InputWriter
from mnemorank.training.augmentation import NoisyFeatures
from mnemorank.training.dataset import ReadyList
from mnemorank.training.recipe import FeatureNoise, Lists
from mnemorank.training.sampling import Batches, Draws, choose
from tests.conftest import build_tokenizer

LENGTHS = random.Random(5).choices(range(5, 200), k=203)


def order(batches, epoch):
    batches.set_epoch(epoch)
    return list(batches)


def test_each_list_comes_once_an_epoch_in_an_order_that_epoch_and_seed_decide():
    batches = Batches(LENGTHS, 8, seed=3)

    first = order(batches, 0)
    assert sorted(position for batch in first for _, position in batch) == list(range(len(LENGTHS)))
    assert all(epoch == 0 for batch in first for epoch, _ in batch)
    assert len(first) == len(batches) == 26
    assert order(batches, 0) == first
    assert order(batches, 1) != first
    assert order(Batches(LENGTHS, 8, seed=4), 0) != first


def test_lists_of_like_length_share_a_batch():
    def spread(*, sort: bool) -> float:
        batches = order(Batches(LENGTHS, 8, seed=3, sort_by_length=sort), 0)
        return sum(max(LENGTHS[p] for _, p in b) - min(LENGTHS[p] for _, p in b) for b in batches) / len(batches)

    assert spread(sort=True) < spread(sort=False) / 5


def test_so_many_of_each_kind_are_drawn_and_others_the_next_time():
    labels = [1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]
    drawn = [choose(labels, Lists(positives=1, negatives=3), random.Random(i)) for i in range(30)]

    assert all(sum(labels[i] for i in own) == 1 and len(own) == 4 for own in drawn)
    assert len({tuple(own) for own in drawn}) > 5
    assert {i for own in drawn for i in own} == set(range(7))
    assert choose(labels, Lists(), random.Random(1)) == list(range(7))
    assert choose([0.0, 1.0], Lists(positives=4, negatives=4), random.Random(1)) == [0, 1]


def ready_list(writer, texts, query="where does ruby work"):
    count = len(texts)
    labels = (1.0, *[0.0] * (count - 1))
    return ReadyList("1", "test", query, tuple(writer.prepare(texts)), labels, (0.0,) * count, (1.0,) * count)


def test_a_draw_is_the_same_whenever_it_is_made():
    writer = InputWriter(build_tokenizer(), Manifest("x", max_length=64))
    draws = Draws([ready_list(writer, ["a cat", "a dog", "berlin", "lisbon"])], writer, Lists(1, 1), seed=9)

    first = [draws[epoch, 0] for epoch in range(8)]
    again = [draws[epoch, 0] for epoch in reversed(range(8))][::-1]
    ids = [[entry.ids.tolist() for entry in drawn.inputs] for drawn in first]
    assert ids == [[entry.ids.tolist() for entry in drawn.inputs] for drawn in again]
    assert len({str(own) for own in ids}) > 1


def test_tokens_of_a_source_are_hidden_others_each_time_and_never_what_holds_an_input_together():
    tokenizer = build_tokenizer()
    tokenizer.add_special_tokens(["[MASK]"])
    mask = tokenizer.token_to_id("[MASK]")
    writer = InputWriter(tokenizer, Manifest("x", max_length=64))
    lists = [ready_list(writer, ["ruby works at aurora labs in berlin", "a dog"])]
    plain = Draws(lists, writer, Lists(), seed=9)[0, 0].inputs
    draws = Draws(lists, writer, Lists(), seed=9, hidden={"test": 0.3, "other": 0.0})

    drawn = [draws[epoch, 0].inputs for epoch in range(60)]
    for inputs in drawn:
        for hidden, whole in zip(inputs, plain, strict=True):
            assert all(h in (mask, w) for h, w in zip(hidden.ids, whole.ids, strict=True))
            assert hidden.types.tolist() == whole.types.tolist()
    ids = np.array([inputs[0].ids for inputs in drawn])
    is_special = np.isin(plain[0].ids, tokenizer.encode("", "").ids)
    assert (ids[:, is_special] != mask).all()
    assert 0.25 < (ids[:, ~is_special] == mask).mean() < 0.35
    assert len(np.unique(ids, axis=0)) > 30
    assert draws[3, 0].inputs[0].ids.tolist() == drawn[3][0].ids.tolist()
    assert Draws(lists, writer, Lists(), 9, hidden={"other": 0.3})[0, 0].inputs[0].ids.tolist() == plain[0].ids.tolist()


def test_hiding_needs_a_mask():
    writer = InputWriter(build_tokenizer(), Manifest("x", max_length=64))
    with pytest.raises(InputError, match=r"mask_rate: the tokenizer has no mask"):
        Draws([ready_list(writer, ["a cat"])], writer, Lists(), seed=9, hidden={"test": 0.1})


QUERY = "Where does Ruby work?"
TEXTS = [
    "Ruby works at Aurora Labs because she moved to Berlin.",
    "the dentist visit in march",
    "Zenith Data and Aurora",
]


def rendered(drop, swap, seed=1):
    noise = NoisyFeatures(templates["features"], FeatureNoise(drop, swap))
    noise.begin(TEXTS, random.Random(seed))
    return [noise.render(QUERY, text, "").first for text in TEXTS]


def test_without_noise_training_reads_what_inference_reads():
    assert rendered(0, 0) == [templates["features"].render(QUERY, text, "").first for text in TEXTS]


def test_dropped_features_leave_query_and_text():
    assert rendered(1, 0) == [f"{QUERY} [SEP] {text}" for text in TEXTS]
    half = [line for seed in range(20) for line in rendered(0.5, 0, seed)]
    shares = sum(line.count("[HOP:") for line in half) / len(half)
    assert 0.3 < shares < 0.7


def test_swapped_features_are_those_of_another_text_of_the_list():
    own = {feature_prefix(QUERY, text) for text in TEXTS}
    lines = [(i, line) for seed in range(20) for i, line in enumerate(rendered(0, 1, seed))]
    assert all(any(line == f"{prefix} {QUERY} [SEP] {TEXTS[i]}" for prefix in own) for i, line in lines)
    assert any(not line.startswith(feature_prefix(QUERY, TEXTS[i])) for i, line in lines)
