"""Data sources: read files of examples in any format, split, sample, weight and mix them reproducibly."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from mnemorank._internal.jsonio import read_json_lines
from mnemorank._internal.validation import check_number
from mnemorank.data.benchmarks import loaders
from mnemorank.data.examples import Candidate, Example, read_graded, read_lists, read_triplets, triplet_examples
from mnemorank.data.hard_negatives import NegativeMining, add_hard_negatives
from mnemorank.data.label_conflicts import LabelsSeen
from mnemorank.data.splits import group_of, is_held_out
from mnemorank.errors import InputError

CONFLICT_POLICIES = ("error", "drop")
_Asked = tuple[str, ...]


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
    """All examples of the sources, each source capped, and its examples repeated as its weight says.

    A weight of 2 brings every example twice, 0.5 half of them, drawn with the seed.
    """
    mixed: list[Example] = []
    for source in sources:
        known = Source.from_dict(source) if isinstance(source, Mapping) else source
        found = load_source(known)
        mixed += _weighted(_mined(_sampled(found, known, seed), found, known, seed), known, seed)
    return mixed


def load_source(source: Source) -> list[Example]:
    """The examples of one source, its own part of the file only."""
    found = read_examples(source.path, source.format, source.label_conflicts)
    return select_split([replace(example, source=source.display_name) for example in found], source)


def select_split(examples: list[Example], source: Source) -> list[Example]:
    """Of a file's examples, those of the source's split."""
    if source.split is None:
        return examples
    wanted = source.split == "dev"
    chosen = [e for e in examples if is_held_out(group_of(e), source.dev_share) == wanted]
    if not chosen:
        raise InputError(f"{source.path}: split {source.split!r} is empty: the file has too few groups for its share")
    return chosen


def read_examples(path: Path, format: str = "auto", label_conflicts: str = "error") -> Iterator[Example]:
    """Read a file of any format, checked for pairs that are labelled both right and wrong.

    :param format: `triplets`, `lists`, `graded`, a benchmark task, or `auto` for our three.
    :param label_conflicts: `error`, or `drop` to leave such a memory out where it is called wrong.
    """
    if format == "auto":
        format = format_of(path)
    is_empty = True
    found = _read(path, format)
    for example in _checked(found, path) if label_conflicts == "error" else _drop_conflicts(found):
        is_empty = False
        yield example
    if is_empty:
        raise InputError(f"{path}: holds no example")


def _read(path: Path, format: str) -> Iterator[Example]:
    if format == "triplets":
        return triplet_examples(read_triplets(path))
    if format == "graded":
        return read_graded(path)
    if format == "lists":
        return read_lists(path)
    return loaders[format].read(path)


def format_of(path: Path) -> str:
    """Which of our formats a file is in, told by its first record."""
    for where, record in read_json_lines(path):
        for key, name in (("candidates", "lists"), ("positive", "triplets"), ("label", "graded")):
            if key in record:
                return name
        raise InputError(
            f"{where}: is neither a list (candidates), a triplet (positive, negative) nor a graded pair (label); "
            f"the record has {', '.join(record) or 'no fields'}"
        )
    raise InputError(f"{path}: holds no example")


def _checked(examples: Iterator[Example], path: Path) -> Iterator[Example]:
    """The examples as they are; an error where a question's memory is right in one place and wrong in another."""
    seen = LabelsSeen()
    for example in examples:
        for candidate in example.candidates:
            contrary = seen.contrary(_asked(example, candidate), candidate.label, example.id)
            if contrary is not None:
                raise InputError(
                    f"{path}: example {example.id}: contradicts example {contrary[1]}: for the query "
                    f"{example.query!r:.60} the memory {candidate.memory.text!r:.60} is labelled both 0 and 1; "
                    'mend the file, or leave it out where it is wrong with label_conflicts = "drop"'
                )
        yield example


def _drop_conflicts(examples: Iterator[Example]) -> Iterator[Example]:
    """The examples without the memories that are called wrong here and right elsewhere for the same question."""
    everything = list(examples)
    right = {_asked(e, candidate) for e in everything for candidate in e.candidates if candidate.label == 1.0}
    for example in everything:
        kept = tuple(c for c in example.candidates if c.label > 0 or _asked(example, c) not in right)
        # The positions that `pairs` names hold only where nothing was left out.
        yield example if len(kept) == len(example.candidates) else replace(example, candidates=kept, pairs=())


def _asked(example: Example, candidate: Candidate) -> _Asked:
    memory = candidate.memory
    dates = memory.occurred_start, memory.occurred_end, memory.mentioned_at
    return (example.query, str(example.query_time), memory.text, *(str(date) for date in dates))


def _mined(examples: list[Example], others: list[Example], source: Source, seed: int) -> list[Example]:
    if source.hard_negatives is None:
        return examples
    return add_hard_negatives(examples, source.hard_negatives, seed=seed, others=others)


def _sampled(examples: list[Example], source: Source, seed: int) -> list[Example]:
    if source.max_examples is None or len(examples) <= source.max_examples:
        return examples
    chosen = _random(seed, source, "cap").sample(range(len(examples)), source.max_examples)
    return [examples[position] for position in sorted(chosen)]


def _weighted(examples: list[Example], source: Source, seed: int) -> list[Example]:
    whole, rest = divmod(source.weight, 1)
    extra = _random(seed, source, "weight").sample(examples, round(rest * len(examples)))
    return examples * int(whole) + extra


def _random(seed: int, source: Source, purpose: str) -> random.Random:
    return random.Random(f"{seed}/{source.display_name}/{purpose}")


_NAMES = {"train": "train.jsonl.gz", "dev": "dev.jsonl", "test": "test.jsonl"}


def shipped(part: str) -> Path:
    """The file of a part: `train`, `dev` or `test`."""
    return Path(str(files("mnemorank") / "assets" / "datasets" / "dated" / _NAMES[part]))
