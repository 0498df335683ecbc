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
from mnemorank.training.dataset import PreparedList
from mnemorank.training.recipe import FeatureNoise, ListSampling
from mnemorank.training.sampling import BatchSampler, ListDataset, sample_candidates
from tests.conftest import build_tokenizer

LENGTHS = random.Random(5).choices(range(5, 200), k=203)


def order(batches, epoch):
    batches.set_epoch(epoch)
    return list(batches)


def test_every_list_comes_up_once_per_epoch_in_an_order_given_by_seed_and_epoch():
    batches = BatchSampler(LENGTHS, 8, seed=3)

    first = order(batches, 0)
    assert sorted(position for batch in first for _, position in batch) == list(range(len(LENGTHS)))
    assert all(epoch == 0 for batch in first for epoch, _ in batch)
    assert len(first) == len(batches) == 26
    assert order(batches, 0) == first
    assert order(batches, 1) != first
    assert order(BatchSampler(LENGTHS, 8, seed=4), 0) != first


def test_lists_of_similar_length_share_a_batch():
    def spread(*, sort: bool) -> float:
        batches = order(BatchSampler(LENGTHS, 8, seed=3, sort_by_length=sort), 0)
        return sum(max(LENGTHS[p] for _, p in b) - min(LENGTHS[p] for _, p in b) for b in batches) / len(batches)

    assert spread(sort=True) < spread(sort=False) / 5


def test_positives_and_negatives_are_sampled_again_each_time():
    labels = [1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]
    samples = [sample_candidates(labels, ListSampling(positives=1, negatives=3), random.Random(i)) for i in range(30)]

    assert all(sum(labels[i] for i in sample) == 1 and len(sample) == 4 for sample in samples)
    assert len({tuple(sample) for sample in samples}) > 5
    assert {i for sample in samples for i in sample} == set(range(7))
    assert sample_candidates(labels, ListSampling(), random.Random(1)) == list(range(7))
    assert sample_candidates([0.0, 1.0], ListSampling(positives=4, negatives=4), random.Random(1)) == [0, 1]


def prepared_list(writer, texts, query="where does ruby work"):
    count = len(texts)
    labels = (1.0, *[0.0] * (count - 1))
    return PreparedList("1", "test", query, tuple(writer.prepare(texts)), labels, (0.0,) * count, (1.0,) * count)


def test_a_sample_depends_on_epoch_and_position_only():
    writer = InputWriter(build_tokenizer(), Manifest("x", max_length=64))
    dataset = ListDataset(
        [prepared_list(writer, ["a cat", "a dog", "berlin", "lisbon"])],
        writer,
        ListSampling(positives=1, negatives=1),
        seed=9,
    )

    first = [dataset[epoch, 0] for epoch in range(8)]
    again = [dataset[epoch, 0] for epoch in reversed(range(8))][::-1]
    ids = [[entry.ids.tolist() for entry in sampled.inputs] for sampled in first]
    assert ids == [[entry.ids.tolist() for entry in sampled.inputs] for sampled in again]
    assert len({str(sample) for sample in ids}) > 1


def test_random_tokens_of_a_source_are_masked_but_never_special_tokens():
    tokenizer = build_tokenizer()
    tokenizer.add_special_tokens(["[MASK]"])
    mask = tokenizer.token_to_id("[MASK]")
    writer = InputWriter(tokenizer, Manifest("x", max_length=64))
    lists = [prepared_list(writer, ["ruby works at aurora labs in berlin", "a dog"])]
    plain = ListDataset(lists, writer, ListSampling(), seed=9)[0, 0].inputs
    dataset = ListDataset(lists, writer, ListSampling(), seed=9, mask_rates={"test": 0.3, "other": 0.0})

    samples = [dataset[epoch, 0].inputs for epoch in range(60)]
    for inputs in samples:
        for masked, original in zip(inputs, plain, strict=True):
            assert all(m in (mask, o) for m, o in zip(masked.ids, original.ids, strict=True))
            assert masked.types.tolist() == original.types.tolist()
    ids = np.array([inputs[0].ids for inputs in samples])
    is_special = np.isin(plain[0].ids, tokenizer.encode("", "").ids)
    assert (ids[:, is_special] != mask).all()
    assert 0.25 < (ids[:, ~is_special] == mask).mean() < 0.35
    assert len(np.unique(ids, axis=0)) > 30
    assert dataset[3, 0].inputs[0].ids.tolist() == samples[3][0].ids.tolist()
    assert (
        ListDataset(lists, writer, ListSampling(), 9, mask_rates={"other": 0.3})[0, 0].inputs[0].ids.tolist()
        == plain[0].ids.tolist()
    )


def test_masking_needs_a_mask_token():
    writer = InputWriter(build_tokenizer(), Manifest("x", max_length=64))
    with pytest.raises(InputError) as caught:
        ListDataset([prepared_list(writer, ["a cat"])], writer, ListSampling(), seed=9, mask_rates={"test": 0.1})
    assert caught.value.field == "mask_rate"


QUERY = "Where does Ruby work?"
TEXTS = [
    "Ruby works at Aurora Labs because she moved to Berlin.",
    "the dentist visit in march",
    "Zenith Data and Aurora",
]


def rendered(drop, swap, seed=1):
    noise = NoisyFeatures(templates["features"], FeatureNoise(drop=drop, swap=swap))
    noise.start_list(TEXTS, random.Random(seed))
    return [noise.render(QUERY, text, "").first for text in TEXTS]


def test_without_noise_inputs_are_those_of_inference():
    assert rendered(0, 0) == [templates["features"].render(QUERY, text, "").first for text in TEXTS]


def test_dropping_all_features_leaves_query_and_text():
    assert rendered(1, 0) == [f"{QUERY} [SEP] {text}" for text in TEXTS]
    half = [line for seed in range(20) for line in rendered(0.5, 0, seed)]
    shares = sum(line.count("[HOP:") for line in half) / len(half)
    assert 0.3 < shares < 0.7


def test_swapped_features_come_from_another_text_of_the_list():
    prefixes = {feature_prefix(QUERY, text) for text in TEXTS}
    lines = [(i, line) for seed in range(20) for i, line in enumerate(rendered(0, 1, seed))]
    assert all(any(line == f"{prefix} {QUERY} [SEP] {TEXTS[i]}" for prefix in prefixes) for i, line in lines)
    assert any(not line.startswith(feature_prefix(QUERY, TEXTS[i])) for i, line in lines)
