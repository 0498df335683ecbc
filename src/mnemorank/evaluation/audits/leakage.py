"""Leakage audit: near-duplicate queries and memories, and groups shared between training and test data."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from mnemorank.data.examples import Example
from mnemorank.evaluation.audits.protocol import Audit, AuditInput, Finding, audits, relevance_mask, shorten
from mnemorank.text.near_duplicates import NearDuplicate, Pieces, find_near_duplicates, shingles
from mnemorank.text.similarity import overlap
from mnemorank.text.words import terms

QUERY_SIMILARITY, MEMORY_SIMILARITY = 0.8, 0.7
SHINGLE_SIZE = 4
FAIL = 0.01


def run(data: AuditInput) -> Finding:
    """Measure the share of test examples whose query or relevant memory (nearly) occurs in the training data.

    Without training data, measure what a split by group of this file would leak: queries with a near-duplicate in
    another group.
    """
    if data.train is None:
        return _audit_single_file(data.examples)
    test, train = list(data.examples), list(data.train)
    queries = similar_queries([example.query for example in test], [example.query for example in train])
    owners = [i for i, example in enumerate(test) for _ in _relevant_texts(example)]
    memories = find_near_duplicates(
        list(chain(*map(_relevant_texts, test))),
        list(chain(*map(_relevant_texts, train))),
        MEMORY_SIMILARITY,
        pieces=_memory_shingles,
        similarity=overlap,
    )
    with_leaked_memory = list(dict.fromkeys(owners[position] for position in memories))
    train_groups = {example.group for example in train if example.group}
    with_shared_group = [i for i, example in enumerate(test) if example.group in train_groups]
    leaked = set(queries) | set(with_leaked_memory)
    share = len(leaked) / len(test)
    cases = [
        f"query {shorten(test[i].query, 60)} ≈ {shorten(train[match.index].query, 60)}"
        for i, match in list(queries.items())[:2]
    ]
    cases += [f"memory of {shorten(test[i].query, 60)} is in the training data" for i in with_leaked_memory[:2]]
    cases += [f"group {test[i].group!r} is on both sides" for i in with_shared_group[:1]]
    is_failed = share > FAIL or bool(with_shared_group)
    return Finding(
        "leakage",
        "fail" if is_failed else "warn" if leaked else "pass",
        f"{len(queries)} of {len(test)} queries and the relevant memories of {len(with_leaked_memory)} (nearly) occur "
        f"in the training data; {len(with_shared_group)} examples share a group with it",
        share,
        cases,
        {"queries": len(queries), "memories": len(with_leaked_memory), "groups": len(with_shared_group)},
    )


def similar_queries(
    queries: Sequence[str], others: Sequence[str], groups: Sequence[str] | None = None
) -> dict[int, NearDuplicate]:
    """Return the near-duplicate of each query that has one, compared by their terms."""
    return find_near_duplicates(
        queries, others, QUERY_SIMILARITY, pieces=_query_terms, similarity=overlap, groups=groups
    )


def _audit_single_file(examples: Sequence[Example]) -> Finding:
    queries = [example.query for example in examples]
    duplicates = similar_queries(queries, queries, [example.group or example.query for example in examples])
    share = len(duplicates) / max(len(examples), 1)
    return Finding(
        "leakage",
        "warn" if share > FAIL else "pass",
        f"{len(duplicates)} of {len(examples)} queries have a near-duplicate in another group of this file, which even "
        "a split by group leaks; add --train to compare with training data",
        share,
        [
            f"{shorten(queries[i], 60)} ≈ {shorten(queries[match.index], 60)}"
            for i, match in list(duplicates.items())[:3]
        ],
        {"queries": len(duplicates)},
    )


def _relevant_texts(example: Example) -> list[str]:
    return [example.candidates[i].memory.text for i in relevance_mask(example).nonzero()[0]]


def _query_terms(query: str) -> Pieces:
    return frozenset(terms(query))


def _memory_shingles(text: str) -> Pieces:
    return shingles(text, SHINGLE_SIZE)


audits.add(Audit("leakage", "near-duplicates and groups shared by training and test data", run))
