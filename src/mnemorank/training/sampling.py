"""What is drawn in which order. A draw depends on seed, epoch and position alone, so that a resumed run repeats it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch.utils.data import Dataset, Sampler

from mnemorank.errors import InputError
from mnemorank.scorers.encoding import Input, InputWriter
from mnemorank.scorers.protocol import Pair
from mnemorank.training.augmentation import Hiding, NoisyFeatures
from mnemorank.training.dataset import ReadyList
from mnemorank.training.recipe import Lists

Draw = tuple[int, int]
_POOL = 64  # batches among which lists of like length are put together


@dataclass(frozen=True, slots=True)
class DrawnList:
    """One list of a batch, as token ids."""

    id: str
    source: str
    query: str
    inputs: tuple[Input, ...]
    labels: tuple[float, ...]
    teacher: tuple[float, ...]
    weights: tuple[float, ...]


class Draws(Dataset[DrawnList]):
    """Lists by (epoch, position); each time other candidates are drawn, as the recipe's `lists` says.

    :param hidden: the share of tokens to hide, by source.
    """

    def __init__(
        self,
        lists: Sequence[ReadyList],
        writer: InputWriter,
        drawing: Lists,
        seed: int,
        noise: NoisyFeatures | None = None,
        hidden: Mapping[str, float] | None = None,
    ) -> None:
        self._lists = lists
        self._writer = writer
        self._drawing = drawing
        self._seed = seed
        self._noise = noise
        self._hiding = Hiding(writer.tokenizer, hidden or {})

    def __len__(self) -> int:
        return len(self._lists)

    def __getitem__(self, draw: Draw) -> DrawnList:
        epoch, position = draw
        ready = self._lists[position]
        rng = random.Random(f"{self._seed}/{epoch}/{position}")
        chosen = choose(ready.labels, self._drawing, rng)
        passages = [ready.passages[i] for i in chosen]
        if self._noise is not None:
            self._noise.begin([passage.text for passage in passages], rng)
        inputs = self._writer.write([Pair(ready.query, passage) for passage in passages])
        return DrawnList(
            ready.id,
            ready.source,
            ready.query,
            self._hiding.hide(inputs, ready.source, rng),
            tuple(ready.labels[i] for i in chosen),
            tuple(ready.teacher[i] for i in chosen),
            tuple(ready.weights[i] for i in chosen),
        )


def choose(labels: Sequence[float], drawing: Lists, rng: random.Random) -> list[int]:
    """Positions of the candidates that are drawn, in order."""
    positives = [i for i, label in enumerate(labels) if label > 0]
    negatives = [i for i, label in enumerate(labels) if label <= 0]
    drawn = []
    for pool, most in ((positives, drawing.positives), (negatives, drawing.negatives)):
        drawn += pool if most is None or most >= len(pool) else rng.sample(pool, most)
    return sorted(drawn)


def check_draws(lists: Sequence[Sequence[float]], drawing: Lists) -> None:
    """Stop where no draw can hold two labels to set against each other.

    :param lists: the labels of each.
    """

    def can_differ(labels: Sequence[float]) -> bool:
        relevant = {label for label in labels if label > 0}
        against_wrong = bool(relevant) and len(relevant) < len(set(labels)) and drawing.negatives != 0
        return against_wrong or (len(relevant) > 1 and drawing.positives != 1)

    if not any(can_differ(labels) for labels in lists):
        raise InputError(
            f"with positives = {drawing.positives} and negatives = {drawing.negatives} all that is drawn of a "
            "list has the same label; there is nothing to learn",
            field="lists",
        )


class Batches(Sampler[list[Draw]]):
    """Batches of draws, shuffled anew each epoch.

    :param sort_by_length: fill a batch with lists of like length.
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

    def __iter__(self) -> Iterator[list[Draw]]:
        rng = random.Random(f"{self._seed}/{self._epoch}/order")
        order = list(range(len(self._lengths)))
        rng.shuffle(order)
        size = self._batch_size
        if self._sort:
            pool = size * _POOL
            order = [
                position
                for start in range(0, len(order), pool)
                for position in sorted(order[start : start + pool], key=lambda p: self._lengths[p])
            ]
        batches = [order[start : start + size] for start in range(0, len(order), size)]
        if self._sort:
            rng.shuffle(batches)
        yield from ([(self._epoch, position) for position in batch] for batch in batches)
