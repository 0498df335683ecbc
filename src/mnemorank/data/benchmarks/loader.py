"""What a benchmark loader is, and what loaders share: checked access to fields, and reading ahead."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from mnemorank._internal.plugins import Registry
from mnemorank.data.examples import Candidate, Example
from mnemorank.errors import InputError
from mnemorank.memory.memory import Memory

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Loader:
    """Reads a benchmark's own published file or folder.

    :param name: the TASK of `mnemorank bench`.
    :param read: yields the questions in file order; large files are streamed.
    :param files: which files a path stands for, for hashing; the path itself unless the loader takes a folder.
    """

    name: str
    description: str
    read: Callable[[Path], Iterator[Example]]
    files: Callable[[Path], list[Path]] = lambda path: [path]


loaders: Registry[Loader] = Registry("task")


def field(record: Mapping[str, Any], key: str, kind: type[T], where: str) -> T:
    """The value of a field, which must be of the given kind."""
    if key not in record:
        raise InputError(f"{where}: {key}: is missing; the record has {', '.join(record) or 'no fields'}")
    value = record[key]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise InputError(f"{where}: {key}: expected {_KINDS.get(kind, kind.__name__)}, got {value!r:.60}")
    return value


_KINDS: Mapping[type, str] = {str: "a string", list: "a list", dict: "an object", int: "a whole number"}


def objects(record: Mapping[str, Any], key: str, where: str) -> list[dict[str, Any]]:
    """A field that is a list of objects."""
    values = field(record, key, list, where)
    for index, value in enumerate(values):
        if not isinstance(value, dict):
            raise InputError(f"{where}: {key} {index}: expected an object, got {value!r:.60}")
    return values


def labelled(memories: Sequence[Memory], relevant: Iterable[bool]) -> tuple[Candidate, ...]:
    return tuple(Candidate(memory, float(is_right)) for memory, is_right in zip(memories, relevant, strict=True))


def read_ahead(items: Iterator[T], most: int = 8) -> Iterator[T]:
    """The same items, read in a thread of their own while the caller works on earlier ones.

    An error of the reader reaches the caller at its place; a caller that stops early stops the reader.
    """
    ready: queue.Queue[tuple[str, Any]] = queue.Queue(maxsize=most)
    stopped = threading.Event()

    def offer(entry: tuple[str, Any]) -> None:
        while not stopped.is_set():
            try:
                ready.put(entry, timeout=0.1)
                return
            except queue.Full:
                continue

    def work() -> None:
        try:
            for item in items:
                offer(("item", item))
                if stopped.is_set():
                    return
            offer(("end", None))
        except BaseException as error:  # raised again in the caller's thread
            offer(("error", error))

    thread = threading.Thread(target=work, name="mnemorank-read-ahead", daemon=True)
    thread.start()
    try:
        while True:
            what, value = ready.get()
            if what == "end":
                return
            if what == "error":
                raise value
            yield value
    finally:
        stopped.set()
        thread.join()
