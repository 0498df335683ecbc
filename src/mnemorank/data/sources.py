"""Mixing sources: each file read in its format, checked, split, capped and weighted; the same for one seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Protocol

from mnemorank._internal.jsonio import read_json_lines
from mnemorank.data.benchmarks import loaders
from mnemorank.data.examples import Candidate, Example, read_graded, read_lists, read_triplets, triplet_examples
from mnemorank.data.label_conflicts import LabelsSeen
from mnemorank.data.splits import group_of, is_held_out
from mnemorank.errors import InputError

CONTRADICTIONS = ("error", "drop")
_Asked = tuple[str, ...]


class SourceLike(Protocol):
    """What is said about a file; a recipe's sources have the same fields."""

    @property
    def path(self) -> Path: ...
    @property
    def format(self) -> str: ...
    @property
    def name(self) -> str | None: ...
    @property
    def weight(self) -> float: ...
    @property
    def cap(self) -> int | None: ...
    @property
    def split(self) -> str | None: ...
    @property
    def dev_share(self) -> float: ...
    @property
    def negatives(self) -> dict[str, Any] | None: ...
    @property
    def contradictions(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Source:
    """One file of examples.

    :param format: `triplets`, `lists`, `graded`, a benchmark task such as `2wiki`, or `auto` (our three, by the first
        record).
    :param name: what reports call the source; the file's name by default.
    :param weight: how often its examples come up, relative to the other sources.
    :param cap: the most examples taken from it, drawn with the seed.
    :param split: `train` or `dev`: only that part of the file, split by group; None for all of it.
    :param dev_share: the share of groups that `dev` gets.
    :param negatives: options of `mnemorank.data.hard_negatives.mine`, to add hard negatives from the file's own texts.
    :param contradictions: what to do where a question's memory is right in one place and wrong in another: `error`, or
        `drop` to leave it out where it is wrong.
    """

    path: Path
    format: str = "auto"
    name: str | None = None
    weight: float = 1.0
    cap: int | None = None
    split: str | None = None
    dev_share: float = 0.1
    negatives: dict[str, Any] | None = None
    contradictions: str = "error"

    def __post_init__(self) -> None:
        where = f"source {self.name or self.path}"
        if not self.weight > 0:
            raise InputError(f"{where}: weight: expected a number above 0, got {self.weight!r}")
        if self.cap is not None and self.cap < 1:
            raise InputError(f"{where}: cap: expected a whole number from 1, got {self.cap!r}")
        if self.split not in (None, "train", "dev"):
            raise InputError(f"{where}: split: expected train or dev, got {self.split!r}")
        if not 0 < self.dev_share < 1:
            raise InputError(f"{where}: dev_share: expected a number between 0 and 1, got {self.dev_share!r}")
        if self.contradictions not in CONTRADICTIONS:
            raise InputError(f"{where}: contradictions: expected error or drop, got {self.contradictions!r}")

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Source:
        """Read a source from a mapping, such as a table of a recipe."""
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(table) - known)
        if unknown:
            raise InputError(f"{unknown[0]}: unknown key; there are: {', '.join(sorted(known))}", field="source")
        if "path" not in table:
            raise InputError("path: is required", field="source")
        return cls(**{**table, "path": Path(table["path"])})


def load_mix(sources: Sequence[SourceLike | Mapping[str, Any]], seed: int) -> list[Example]:
    """All examples of the sources, each source capped, and its examples repeated as its weight says.

    A weight of 2 brings every example twice, 0.5 half of them, drawn with the seed.
    """
    mixed: list[Example] = []
    for source in sources:
        known = Source.of(source) if isinstance(source, Mapping) else source
        found = load_source(known)
        mixed += _weighted(_mined(_capped(found, known, seed), found, known, seed), known, seed)
    return mixed


def load_source(source: SourceLike) -> list[Example]:
    """The examples of one source, its own part of the file only."""
    name = source.name or source.path.name
    found = read_examples(source.path, source.format, source.contradictions)
    return own_part([replace(example, source=name) for example in found], source)


def own_part(examples: list[Example], source: SourceLike) -> list[Example]:
    """Of a file's examples, those of the source's split."""
    if source.split is None:
        return examples
    wanted = source.split == "dev"
    chosen = [e for e in examples if is_held_out(group_of(e), source.dev_share) == wanted]
    if not chosen:
        raise InputError(f"{source.path}: split {source.split!r} is empty: the file has too few groups for its share")
    return chosen


def read_examples(path: Path, format: str = "auto", contradictions: str = "error") -> Iterator[Example]:
    """Read a file of any format, checked for pairs that are labelled both right and wrong.

    :param format: `triplets`, `lists`, `graded`, a benchmark task, or `auto` for our three.
    :param contradictions: `error`, or `drop` to leave such a memory out where it is called wrong.
    """
    if format == "auto":
        format = format_of(path)
    is_empty = True
    found = _read(path, format)
    for example in _checked(found, path) if contradictions == "error" else _without_contradictions(found):
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
                    'mend the file, or leave it out where it is wrong with contradictions = "drop"'
                )
        yield example


def _without_contradictions(examples: Iterator[Example]) -> Iterator[Example]:
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


def _mined(examples: list[Example], others: list[Example], source: SourceLike, seed: int) -> list[Example]:
    if source.negatives is None:
        return examples
    from mnemorank.data.hard_negatives import Mining, mine

    return mine(examples, Mining.of(source.negatives, f"{source.path}: negatives"), seed=seed, others=others)


def _capped(examples: list[Example], source: SourceLike, seed: int) -> list[Example]:
    if source.cap is None or len(examples) <= source.cap:
        return examples
    chosen = _random(seed, source, "cap").sample(range(len(examples)), source.cap)
    return [examples[position] for position in sorted(chosen)]


def _weighted(examples: list[Example], source: SourceLike, seed: int) -> list[Example]:
    whole, rest = divmod(source.weight, 1)
    extra = _random(seed, source, "weight").sample(examples, round(rest * len(examples)))
    return examples * int(whole) + extra


def _random(seed: int, source: SourceLike, purpose: str) -> random.Random:
    return random.Random(f"{seed}/{source.name or source.path.name}/{purpose}")


_NAMES = {"train": "train.jsonl.gz", "dev": "dev.jsonl", "test": "test.jsonl"}


def shipped(part: str) -> Path:
    """The file of a part: `train`, `dev` or `test`."""
    return Path(str(files("mnemorank") / "assets" / "datasets" / "dated" / _NAMES[part]))
