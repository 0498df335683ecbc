"""Near-duplicates: texts that share most of their pieces, such as words or word shingles."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from mnemorank.text.similarity import jaccard
from mnemorank.text.words import words

Pieces = frozenset[str]

# A text is compared with the texts that share its rarest pieces.
_RARE_PIECES = 12
_MAX_TEXTS_PER_PIECE = 500
_MAX_COMPARED = 50


@dataclass(frozen=True, slots=True)
class NearDuplicate:
    """The text that is most similar to another one.

    :param index: its position.
    """

    index: int
    similarity: float


def shingles(text: str, size: int = 3) -> Pieces:
    """Return all runs of `size` words. A shorter text is a single shingle."""
    tokens = words(text)
    if len(tokens) <= size:
        return frozenset([" ".join(tokens)])
    return frozenset(" ".join(tokens[i : i + size]) for i in range(len(tokens) - size + 1))


def find_near_duplicates(
    texts: Sequence[str],
    others: Sequence[str],
    threshold: float,
    *,
    pieces: Callable[[str], Pieces] = shingles,
    similarity: Callable[[Pieces, Pieces], float] = jaccard,
    groups: Sequence[str] | None = None,
) -> dict[int, NearDuplicate]:
    """Return the most similar of the other texts for each text that has one at or above the threshold.

    :param pieces: splits a text into the pieces to compare.
    :param groups: the group of each text, if `texts` and `others` are the same; texts of one group are not compared.
    """
    other_pieces = [pieces(text) for text in others]
    texts_by_piece: dict[str, list[int]] = defaultdict(list)
    # Exact copies are looked up separately: when very many texts share every piece, none of the pieces is rare.
    copies: dict[Pieces, dict[str, int]] = defaultdict(dict)
    for index, own_pieces in enumerate(other_pieces):
        copies[own_pieces].setdefault(groups[index] if groups else "", index)
        for piece in own_pieces:
            texts_by_piece[piece].append(index)
    duplicates: dict[int, NearDuplicate] = {}
    for index, own_pieces in enumerate(map(pieces, texts)):
        if not any(own_pieces):
            continue
        best: NearDuplicate | None = None
        for other in chain(copies.get(own_pieces, {}).values(), _candidates(own_pieces, texts_by_piece)):
            if groups is not None and groups[index] == groups[other]:
                continue
            value = similarity(own_pieces, other_pieces[other])
            if value >= threshold and (best is None or value > best.similarity):
                best = NearDuplicate(other, value)
        if best is not None:
            duplicates[index] = best
    return duplicates


def _candidates(pieces: Pieces, texts_by_piece: Mapping[str, Sequence[int]]) -> list[int]:
    """Return the texts that share the rarest of these pieces; the rarer a shared piece, the more it counts."""
    rare = sorted(pieces & texts_by_piece.keys(), key=lambda piece: (len(texts_by_piece[piece]), piece))[:_RARE_PIECES]
    shared: dict[int, float] = defaultdict(float)
    for piece in rare:
        for index in texts_by_piece[piece][:_MAX_TEXTS_PER_PIECE]:
            shared[index] += 1 / len(texts_by_piece[piece])
    return sorted(shared, key=lambda index: -shared[index])[:_MAX_COMPARED]
