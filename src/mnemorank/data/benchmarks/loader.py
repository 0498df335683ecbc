"""The type of a benchmark loader and the table of all loaders."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mnemorank._internal.plugins import PluginTable
from mnemorank.data.examples import Candidate, Example
from mnemorank.memory.memory import Memory


@dataclass(frozen=True, slots=True)
class Loader:
    """Reads a benchmark in the format in which it is published.

    :param name: the TASK of `mnemorank bench`.
    :param read: yields the examples in file order; large files are streamed.
    :param files: the files that a path stands for, for the key of the result cache. Loaders of folders need it.
    :param pairs_metric: the name of the accuracy on `Example.pairs` in results.
    """

    name: str
    description: str
    read: Callable[[Path], Iterator[Example]]
    files: Callable[[Path], list[Path]] = lambda path: [path]
    pairs_metric: str = "pairwise_accuracy"


loaders: PluginTable[Loader] = PluginTable("task")


def label_candidates(memories: Sequence[Memory], relevant: Iterable[bool]) -> tuple[Candidate, ...]:
    """Return candidates labeled 1 where relevant and 0 elsewhere."""
    return tuple(Candidate(memory, float(label)) for memory, label in zip(memories, relevant, strict=True))
