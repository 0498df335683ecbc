"""The type of a benchmark loader, the table of all loaders, and checked access to fields of records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from mnemorank._internal.plugins import PluginTable
from mnemorank.data.examples import Candidate, Example
from mnemorank.errors import InputError
from mnemorank.memory.memory import Memory

T = TypeVar("T")


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


def get_field(record: Mapping[str, Any], key: str, kind: type[T], where: str) -> T:
    """Return the value of a field and check its type.

    :param where: how error messages refer to the record, such as `file:line`.
    """
    if key not in record:
        raise InputError(f"{where}: {key}: is missing; the record has {', '.join(record) or 'no keys'}")
    value = record[key]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise InputError(f"{where}: {key}: expected {_TYPE_NAMES.get(kind, kind.__name__)}, got {value!r:.60}")
    return value


_TYPE_NAMES: Mapping[type, str] = {str: "a string", list: "a list", dict: "an object", int: "a whole number"}


def get_objects(record: Mapping[str, Any], key: str, where: str) -> list[dict[str, Any]]:
    """Return a field that is a list of objects."""
    values = get_field(record, key, list, where)
    for index, value in enumerate(values):
        if not isinstance(value, dict):
            raise InputError(f"{where}: {key} {index}: expected an object, got {value!r:.60}")
    return values


def label_candidates(memories: Sequence[Memory], relevant: Iterable[bool]) -> tuple[Candidate, ...]:
    """Return candidates labeled 1 where relevant and 0 elsewhere."""
    return tuple(Candidate(memory, float(label)) for memory, label in zip(memories, relevant, strict=True))
