"""Golden examples: a file of known answers, to start with before there is any feedback."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from mnemorank.data.examples import Example, normalize_query
from mnemorank.data.formats import read_any_format
from mnemorank.learning.events import DEFAULT_TENANT, digest
from mnemorank.learning.mining.miner import MinedExample, split_of_group, split_of_query
from mnemorank.learning.mining.votes import query_key


def mine_golden(path: Path, held_out: float, tenant: str = DEFAULT_TENANT) -> list[MinedExample]:
    """Return the examples of a file that have a relevant candidate.

    :param path: a file in any of our formats.
    :param held_out: share of the queries that are reserved for the gate.
    """
    mined = []
    for number, example in enumerate(read_any_format(path), 1):
        if not any(label > 0 for label in example.labels):
            continue
        golden = replace(
            example,
            id=f"golden-{digest(path.name, str(number), example.query)}",
            group=example.group or query_key(example.query),
            source="golden",
        )
        provenance = {"origin": "golden", "file": path.name, "record": number}
        sources = frozenset({("tenant", tenant), ("file", path.name)})
        mined.append(MinedExample(golden, tenant, _split(example, held_out), provenance, sources))
    return mined


def _split(example: Example, held_out: float) -> str:
    """Split by the group that the file states; otherwise by the query, as feedback is split."""
    if example.group is None or example.group == normalize_query(example.query):
        return split_of_query(example.query, held_out)
    return split_of_group(example.group, held_out)
