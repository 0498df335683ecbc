"""Bootstrap: examples from a file of known answers, before there is any feedback."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from mnemorank._internal.jsonio import read_json_lines
from mnemorank.data.examples import (
    Example,
    question_group,
    read_graded,
    read_lists,
    read_triplets,
    triplet_examples,
)
from mnemorank.errors import InputError
from mnemorank.learning.events import DEFAULT_TENANT, digest
from mnemorank.learning.mining.evidence import query_key
from mnemorank.learning.mining.miner import MinedExample, side_of, split_of


def format_of(path: Path) -> str:
    """Which of our formats a file is in, told by its first record."""
    first = next(iter(read_json_lines(path)), None)
    if first is None:
        raise InputError(f"{path}: has no records")
    where, record = first
    for key, name in (("candidates", "lists"), ("positive", "triplets"), ("label", "graded")):
        if key in record:
            return name
    raise InputError(f"{where}: expected `candidates` (lists), `positive` (triplets) or `label` (graded pairs)")


def read_any(path: Path) -> Iterator[Example]:
    """Examples of a file in any of our formats: lists, triplets or graded pairs."""
    match format_of(path):
        case "lists":
            return read_lists(path)
        case "triplets":
            return triplet_examples(read_triplets(path))
    return read_graded(path)


def mine_golden(path: Path, held_out: float, tenant: str = DEFAULT_TENANT) -> list[MinedExample]:
    """The file's examples with a relevant candidate, as mined ones."""
    mined = []
    for number, example in enumerate(read_any(path), 1):
        if not any(label > 0 for label in example.labels):
            continue
        named = replace(
            example,
            id=f"golden-{digest(path.name, str(number), example.query)}",
            group=example.group or query_key(example.query),
            source="golden",
        )
        provenance = {"origin": "golden", "file": path.name, "record": number}
        sources = frozenset({("tenant", tenant), ("file", path.name)})
        mined.append(MinedExample(named, tenant, _split(example, held_out), provenance, sources))
    return mined


def _split(example: Example, held_out: float) -> str:
    """By the group that the file states; else by the question, as feedback is split."""
    if example.group is None or example.group == question_group(example.query):
        return split_of(example.query, held_out)
    return side_of(example.group, held_out)
