"""Reading what is to be audited, whichever of our formats it is in."""

from __future__ import annotations

from pathlib import Path

from mnemorank._internal.jsonio import read_json_lines
from mnemorank.data.benchmarks import Loader
from mnemorank.data.examples import Example
from mnemorank.data.formats import read_graded, read_lists, read_triplet_examples
from mnemorank.data.json_records import read_json_records
from mnemorank.errors import InputError

_OURS = ("positive", "candidates", "label")


def read_audited(path: Path, task: Loader | None = None) -> tuple[list[Example], bool]:
    """The examples of a file, and whether they are pairs (triplets).

    :param task: whose file it is; None for our own formats.
    """
    examples, in_pairs = (list(task.read(path)), False) if task else read_examples(path)
    if not examples:
        raise InputError(f"{path}: holds no example")
    return examples, in_pairs


def read_training(path: Path, task: Loader | None = None) -> list[Example]:
    """The examples of a file that a model was trained on: in one of our formats, else the task's."""
    return read_audited(path, None if _is_ours(path) else task)[0]


def _is_ours(path: Path) -> bool:
    """Told by the first record; a task may have a folder."""
    _, first = next(iter(read_json_records(path)), ("", {})) if path.is_file() else ("", {})
    return any(key in first for key in _OURS)


def read_examples(path: Path) -> tuple[list[Example], bool]:
    """The examples of a file in one of our formats, and whether they are pairs (triplets)."""
    where, first = next(iter(read_json_lines(path)), (str(path), None))
    if first is None:
        raise InputError(f"{path}: holds no example")
    if "positive" in first:
        return list(read_triplet_examples(path)), True
    if "candidates" in first:
        return list(read_lists(path)), False
    if "label" in first:
        return list(read_graded(path)), False
    raise InputError(
        f"{where}: expected triplets (query, positive, negative), lists (query, candidates) or graded pairs"
    )
