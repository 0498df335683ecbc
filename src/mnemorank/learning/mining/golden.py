"""Bootstrap: examples from a file of known answers, before there is any feedback."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from mnemorank.data.examples import Example, normalize_query
from mnemorank.data.formats import read_any_format
from mnemorank.learning.events import DEFAULT_TENANT, digest
from mnemorank.learning.mining.evidence import query_key
from mnemorank.learning.mining.miner import MinedExample, side_of, split_of


def mine_golden(path: Path, held_out: float, tenant: str = DEFAULT_TENANT) -> list[MinedExample]:
    """The file's examples with a relevant candidate, as mined ones."""
    mined = []
    for number, example in enumerate(read_any_format(path), 1):
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
    if example.group is None or example.group == normalize_query(example.query):
        return split_of(example.query, held_out)
    return side_of(example.group, held_out)
