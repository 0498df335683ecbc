"""Reading what is to be audited, whichever of our formats it is in."""

from __future__ import annotations

from pathlib import Path

from mnemorank.data.records import Example, read_graded, read_lists, read_triplets, triplet_examples
from mnemorank.errors import InputError
from mnemorank.files import read_json_lines


def read_examples(path: Path) -> tuple[list[Example], bool]:
    """The examples of a file, and whether they are pairs (triplets)."""
    where, first = next(iter(read_json_lines(path)), (str(path), {}))
    if "positive" in first:
        return list(triplet_examples(read_triplets(path))), True
    if "candidates" in first:
        return list(read_lists(path)), False
    if "label" in first:
        return list(read_graded(path)), False
    raise InputError(
        f"{where}: expected triplets (query, positive, negative), lists (query, candidates) or graded pairs"
    )
