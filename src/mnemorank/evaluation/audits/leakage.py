"""Audit 4: does the test know the training data? Near-duplicates of queries and relevant memories, shared groups."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import chain

from mnemorank.data.examples import Example
from mnemorank.evaluation.audits.protocol import Audit, Finding, Material, audits, relevant, shown
from mnemorank.text.words import terms, words

QUERY_ALIKE, TEXT_ALIKE = 0.8, 0.7
SHINGLE = 4
FAIL = 0.01
# Near-duplicates are sought by a text's rarest pieces; of a piece that very many texts have, some texts will do. Of the
# texts that share them, so many are compared.
SOUGHT, MOST_COMMON, COMPARED = 12, 500, 50


def run(material: Material) -> Finding:
    """With training data, the number is the share of test examples whose query or relevant memory (nearly) occurs in
    it. Without, it is what a random split of this file would leak: queries with a near-duplicate in another group.
    """
    if material.train is None:
        return _within(material.examples)
    test, train = list(material.examples), list(material.train)
    queries = near_duplicates([one.query for one in test], [one.query for one in train], QUERY_ALIKE, _query_pieces)
    owners = [i for i, one in enumerate(test) for _ in _relevant(one)]
    known_texts = list(chain(*map(_relevant, train)))
    repeated = near_duplicates(list(chain(*map(_relevant, test))), known_texts, TEXT_ALIKE, _text_pieces)
    texts = list(dict.fromkeys(owners[position] for position in repeated))
    known = {one.group for one in train if one.group}
    groups = {i for i, one in enumerate(test) if one.group in known}
    leaked = set(queries) | set(texts)
    number = len(leaked) / len(test)
    seen = [f"query {shown(test[i].query, 60)} ≈ {shown(train[j].query, 60)}" for i, j in list(queries.items())[:2]]
    seen += [f"memory of {shown(test[i].query, 60)} is in the training data" for i in texts[:2]]
    seen += [f"group {test[i].group!r} is on both sides" for i in sorted(groups)[:1]]
    failed = number > FAIL or bool(groups)
    return Finding(
        "leakage",
        "fail" if failed else "warn" if leaked else "pass",
        f"{len(queries)} of {len(test)} queries and the relevant memories of {len(texts)} (nearly) occur in the "
        f"training data; {len(groups)} examples share a group with it",
        number,
        seen,
        {"queries": len(queries), "memories": len(texts), "groups": len(groups)},
    )


def _within(examples: Sequence[Example]) -> Finding:
    queries = [one.query for one in examples]
    groups = [one.group or one.query for one in examples]
    alike = near_duplicates(queries, queries, QUERY_ALIKE, _query_pieces, own_groups=groups)
    number = len(alike) / max(len(examples), 1)
    return Finding(
        "leakage",
        "warn" if number > FAIL else "pass",
        f"{len(alike)} of {len(examples)} queries have a near-duplicate in another group of this file, so that even a "
        "split by group leaks; give --train to compare with training data",
        number,
        [f"{shown(queries[i], 60)} ≈ {shown(queries[j], 60)}" for i, j in list(alike.items())[:3]],
        {"queries": len(alike)},
    )


def _relevant(example: Example) -> list[str]:
    return [example.candidates[i].memory.text for i in relevant(example).nonzero()[0]]


def _query_pieces(text: str) -> set[str]:
    return set(terms(text))


def _text_pieces(text: str) -> set[str]:
    found = words(text)
    return {" ".join(found[i : i + SHINGLE]) for i in range(max(len(found) - SHINGLE + 1, 1))} if found else set()


def near_duplicates(
    texts: Sequence[str],
    others: Sequence[str],
    alike: float,
    cut: Callable[[str], set[str]],
    own_groups: Sequence[str] | None = None,
) -> dict[int, int]:
    """For each text that has one, one of the others that shares at least `alike` of the larger's pieces with it.

    :param own_groups: `texts` and `others` are the same; only pairs of different groups count.
    """
    pieces = [cut(other) for other in others]
    groups = own_groups or [""] * len(others)
    held: dict[str, list[int]] = defaultdict(list)
    # Of texts with all the same pieces the first of each group: among very many texts that share every piece, a copy
    # would not be found by its rarest.
    same: dict[frozenset[str], dict[str, int]] = defaultdict(dict)
    for j, own in enumerate(pieces):
        same[frozenset(own)].setdefault(groups[j], j)
        for piece in own:
            held[piece].append(j)
    found: dict[int, int] = {}
    for i, mine in enumerate(map(cut, texts)):
        copies = same.get(frozenset(mine), {}).values() if mine else ()
        for j in chain(copies, _likeliest(mine, held)):
            is_other = own_groups is None or own_groups[i] != own_groups[j]
            if is_other and len(mine & pieces[j]) >= alike * max(len(mine), len(pieces[j])):
                found[i] = j
                break
    return found


def _likeliest(mine: set[str], held: Mapping[str, Sequence[int]]) -> list[int]:
    """Who shares the most of these pieces, the rarer the piece the more it counts.

    :param held: which texts have a piece.
    """
    rare = sorted(mine & held.keys(), key=lambda piece: (len(held[piece]), piece))[:SOUGHT]
    shared: dict[int, float] = defaultdict(float)
    for piece in rare:
        for j in held[piece][:MOST_COMMON]:
            shared[j] += 1 / len(held[piece])
    return sorted(shared, key=lambda j: -shared[j])[:COMPARED]


audits.add(Audit("leakage", "near-duplicates and shared groups of train and test", run))
