"""Sampling: which candidates of a list are trained on, and in which order lists come up.

Everything depends on seed, epoch and position alone, so that a resumed run repeats it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch.utils.data import Dataset, Sampler

from mnemorank.errors import InputError
from mnemorank.scorers.encoding import Input, InputWriter
from mnemorank.scorers.protocol import Pair
from mnemorank.training.augmentation import NoisyFeatures, TokenMasking
from mnemorank.training.dataset import PreparedList
from mnemorank.training.recipe import ListSampling

EpochAndPosition = tuple[int, int]
_SORTED_BATCHES = 64  # lists are sorted by length within this many batches


@dataclass(frozen=True, slots=True)
class SampledList:
    """A list of a batch, as token ids."""

    id: str
    source: str
    query: str
    inputs: tuple[Input, ...]
    labels: tuple[float, ...]
    teacher_scores: tuple[float, ...]
    weights: tuple[float, ...]


class ListDataset(Dataset[SampledList]):
    """Lists by (epoch, position), with candidates sampled again in each epoch.

    :param mask_rates: the share of tokens to mask, by source.
    """

    def __init__(
        self,
        lists: Sequence[PreparedList],
        writer: InputWriter,
        sampling: ListSampling,
        seed: int,
        noise: NoisyFeatures | None = None,
        mask_rates: Mapping[str, float] | None = None,
    ) -> None:
        self._lists = lists
        self._writer = writer
        self._sampling = sampling
        self._seed = seed
        self._noise = noise
        self._masking = TokenMasking(writer.tokenizer, mask_rates or {})

    def __len__(self) -> int:
        return len(self._lists)

    def __getitem__(self, index: EpochAndPosition) -> SampledList:
        epoch, position = index
        prepared = self._lists[position]
        rng = random.Random(f"{self._seed}/{epoch}/{position}")
        chosen = sample_candidates(prepared.labels, self._sampling, rng)
        passages = [prepared.passages[i] for i in chosen]
        if self._noise is not None:
            self._noise.start_list([passage.text for passage in passages], rng)
        inputs = self._writer.write([Pair(prepared.query, passage) for passage in passages])
        return SampledList(
            prepared.id,
            prepared.source,
            prepared.query,
            self._masking.apply(inputs, prepared.source, rng),
            tuple(prepared.labels[i] for i in chosen),
            tuple(prepared.teacher_scores[i] for i in chosen),
            tuple(prepared.weights[i] for i in chosen),
        )


def sample_candidates(labels: Sequence[float], sampling: ListSampling, rng: random.Random) -> list[int]:
    """Return the positions of the sampled candidates, in order."""
    positives = [i for i, label in enumerate(labels) if label > 0]
    negatives = [i for i, label in enumerate(labels) if label <= 0]
    chosen = []
    for pool, count in ((positives, sampling.positives), (negatives, sampling.negatives)):
        chosen += pool if count is None or count >= len(pool) else rng.sample(pool, count)
    return sorted(chosen)


def check_sampling(lists: Sequence[Sequence[float]], sampling: ListSampling) -> None:
    """Raise if no sample can contain two different labels.

    :param lists: the labels of each list.
    """

    def can_differ(labels: Sequence[float]) -> bool:
        relevant = {label for label in labels if label > 0}
        has_negative = bool(relevant) and len(relevant) < len(set(labels)) and sampling.negatives != 0
        return has_negative or (len(relevant) > 1 and sampling.positives != 1)

    if not any(can_differ(labels) for labels in lists):
        raise InputError(
            f"with positives = {sampling.positives} and negatives = {sampling.negatives} all sampled candidates of a "
            "list have the same label",
            field="lists",
        )


class BatchSampler(Sampler[list[EpochAndPosition]]):
    """Batches of dataset indices, shuffled again in each epoch.

    :param sort_by_length: batch lists of similar length together.
    """

    def __init__(self, lengths: Sequence[float], batch_size: int, seed: int, *, sort_by_length: bool = True) -> None:
        self._lengths = lengths
        self._batch_size = batch_size
        self._seed = seed
        self._sort = sort_by_length
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __len__(self) -> int:
        return -(-len(self._lengths) // self._batch_size)

    def __iter__(self) -> Iterator[list[EpochAndPosition]]:
        rng = random.Random(f"{self._seed}/{self._epoch}/order")
        order = list(range(len(self._lengths)))
        rng.shuffle(order)
        size = self._batch_size
        if self._sort:
            pool = size * _SORTED_BATCHES
            order = [
                position
                for start in range(0, len(order), pool)
                for position in sorted(order[start : start + pool], key=lambda p: self._lengths[p])
            ]
        batches = [order[start : start + size] for start in range(0, len(order), size)]
        if self._sort:
            rng.shuffle(batches)
        yield from ([(self._epoch, position) for position in batch] for batch in batches)
