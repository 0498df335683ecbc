"""Data sources: read files of examples in any format, split, sample, weight and mix them reproducibly."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from mnemorank._internal.validation import check_number
from mnemorank.data.benchmarks import loaders
from mnemorank.data.examples import Example
from mnemorank.data.formats import READERS, detect_format
from mnemorank.data.hard_negatives import NegativeMining, add_hard_negatives
from mnemorank.data.label_conflicts import check_label_conflicts, drop_label_conflicts
from mnemorank.data.splits import is_held_out
from mnemorank.errors import InputError

CONFLICT_POLICIES = ("error", "drop")


@dataclass(frozen=True, slots=True)
class Source:
    """A file of examples and how much of it to use.

    :param format: `triplets`, `lists`, `graded`, a benchmark task such as `2wiki`, or `auto` to detect one of the first
        three from the first record.
    :param name: the name in reports and in `Example.source`; the file name by default.
    :param weight: how often its examples come up, relative to other sources: 2 repeats each, 0.5 samples half of them.
    :param max_examples: the number of examples to sample when the file has more.
    :param split: `train` or `dev` to use one side of a split by group; None for the whole file.
    :param dev_share: the share of groups on the `dev` side.
    :param hard_negatives: mine negatives from the file's own texts. A mapping is converted.
    :param label_conflicts: what to do when a query has the same memory labeled both 1 and 0: `error`, or `drop` to
        leave the memory out where it is labeled 0.
    :param mask_rate: the share of input tokens replaced by the mask token in training, drawn again in every epoch.
    """

    path: Path
    format: str = "auto"
    name: str | None = None
    weight: float = 1.0
    max_examples: int | None = None
    split: str | None = None
    dev_share: float = 0.1
    hard_negatives: NegativeMining | None = None
    label_conflicts: str = "error"
    mask_rate: float = 0.0

    def __post_init__(self) -> None:
        if self.format != "auto" and self.format not in loaders:
            raise InputError(
                f"expected one of {', '.join(('auto', *loaders))}, got {self.format!r:.60}", field="format"
            )
        if isinstance(self.weight, bool) or not isinstance(self.weight, (int, float)) or not 0 < self.weight < math.inf:
            raise InputError(f"expected a number above 0, got {self.weight!r:.60}", field="weight")
        if self.max_examples is not None:
            check_number("max_examples", self.max_examples, 1, whole=True)
        if self.split not in (None, "train", "dev"):
            raise InputError(f"expected train or dev, got {self.split!r:.60}", field="split")
        check_number("dev_share", self.dev_share, 0, 1)
        if self.label_conflicts not in CONFLICT_POLICIES:
            raise InputError(f"expected error or drop, got {self.label_conflicts!r:.60}", field="label_conflicts")
        check_number("mask_rate", self.mask_rate, 0, 0.9)

    @property
    def display_name(self) -> str:
        return self.name or self.path.name

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Source:
        """Read a source from a mapping; `hard_negatives` may be a mapping too."""
        known = [field.name for field in fields(cls)]
        for key in record:
            if key not in known:
                raise InputError(f"unknown key; expected one of {', '.join(known)}", field=key)
        if "path" not in record:
            raise InputError("is required", field="path")
        values = {**record, "path": Path(record["path"])}
        if isinstance(values.get("hard_negatives"), Mapping):
            values["hard_negatives"] = NegativeMining.from_dict(values["hard_negatives"])
        return cls(**values)


def load_sources(sources: Sequence[Source | Mapping[str, Any]], seed: int) -> list[Example]:
    """Return the examples of all sources, sampled, extended with hard negatives and repeated by weight.

    :param sources: `Source` objects, or mappings with their fields.
    :param seed: the same seed gives the same examples.
    """
    mixed: list[Example] = []
    for item in sources:
        source = Source.from_dict(item) if isinstance(item, Mapping) else item
        examples = load_source(source)
        sampled = _sample(examples, source, seed)
        if source.hard_negatives is not None:
            sampled = add_hard_negatives(sampled, source.hard_negatives, seed=seed, others=examples)
        mixed += _repeat(sampled, source, seed)
    return mixed


def load_source(source: Source) -> list[Example]:
    """Return all examples of a source's split."""
    examples = read_examples(source.path, source.format, source.label_conflicts)
    return select_split([replace(example, source=source.display_name) for example in examples], source)


def select_split(examples: list[Example], source: Source) -> list[Example]:
    """Return those of a file's examples that belong to the source's split."""
    if source.split is None:
        return examples
    wants_dev = source.split == "dev"
    selected = [e for e in examples if is_held_out(e.split_key, source.dev_share) == wants_dev]
    if not selected:
        raise InputError(
            f"the {source.split} split is empty; the file has too few groups for dev_share = {source.dev_share}",
            field="split",
            code="empty",
            location=str(source.path),
        )
    return selected


def read_examples(path: Path, format: str = "auto", label_conflicts: str = "error") -> Iterator[Example]:
    """Read a file in one of our formats or that of a benchmark, and check its labels for conflicts.

    :param format: as in `Source`.
    :param label_conflicts: as in `Source`.
    """
    name = detect_format(path) if format == "auto" else format
    examples = READERS[name](path) if name in READERS else loaders[name].read(path)
    checked: Iterable[Example]
    if label_conflicts == "drop":
        checked = drop_label_conflicts(examples)
    else:
        checked = check_label_conflicts(examples, describe=lambda example: f"{path}: example {example.id}")
    is_empty = True
    for example in checked:
        is_empty = False
        yield example
    if is_empty:
        raise InputError("contains no examples", code="empty", location=str(path))


def _sample(examples: list[Example], source: Source, seed: int) -> list[Example]:
    if source.max_examples is None or len(examples) <= source.max_examples:
        return examples
    positions = _random(seed, source, "cap").sample(range(len(examples)), source.max_examples)
    return [examples[position] for position in sorted(positions)]


def _repeat(examples: list[Example], source: Source, seed: int) -> list[Example]:
    times, rest = divmod(source.weight, 1)
    extra = _random(seed, source, "weight").sample(examples, round(rest * len(examples)))
    return examples * int(times) + extra


def _random(seed: int, source: Source, purpose: str) -> random.Random:
    return random.Random(f"{seed}/{source.display_name}/{purpose}")
