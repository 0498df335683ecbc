"""Splits that keep a persona, conversation or question on one side, and a check that nothing leaked across."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mnemorank.data.examples import Example
from mnemorank.errors import InputError
from mnemorank.text.words import words

_BANDS = 16
_DRAWS = np.random.default_rng(0).integers(0, 2**63, size=(2, 4 * _BANDS), dtype=np.uint64)
_FACTORS, _SHIFTS = _DRAWS[0] * np.uint64(2) + np.uint64(1), _DRAWS[1]  # odd factors permute the 64-bit numbers


@dataclass(frozen=True, slots=True)
class Split:
    train: list[Example]
    dev: list[Example]


@dataclass(frozen=True, slots=True)
class Leak:
    """Two examples on different sides that are nearly the same.

    :param what: `group`, `query` or `memory`: what they share.
    :param similarity: Jaccard's over word shingles; 1 for a shared group.
    """

    train_id: str
    dev_id: str
    what: str
    similarity: float
    text: str


def is_held_out(group: str, share: float) -> bool:
    """Whether a group is on the dev side. It depends on the group's name alone, so that more data moves nobody."""
    draw = int.from_bytes(hashlib.sha256(group.encode(errors="surrogatepass")).digest()[:8], "big")
    return draw < share * 2**64


def split_by_group(examples: Sequence[Example], dev_share: float = 0.1) -> Split:
    """Split by hash of the group. Both sides get something wherever there are two groups.

    :param dev_share: the share of groups on the dev side.
    """
    if not 0 < dev_share < 1:
        raise InputError(f"expected a number between 0 and 1, got {dev_share!r}", field="dev_share")
    groups = sorted({example.split_key for example in examples})
    if len(groups) < 2:
        raise InputError(f"a split needs at least two groups, got {len(groups)}")
    dev = {group for group in groups if is_held_out(group, dev_share)}
    by_draw = sorted(groups, key=lambda group: hashlib.sha256(group.encode(errors="surrogatepass")).digest())
    if not dev:
        dev = {by_draw[0]}
    elif len(dev) == len(groups):
        dev.remove(by_draw[-1])
    return Split([e for e in examples if e.split_key not in dev], [e for e in examples if e.split_key in dev])


def find_leaks(
    train: Sequence[Example], dev: Sequence[Example], threshold: float = 0.8, *, memories: bool = False
) -> list[Leak]:
    """What stands on both sides: groups, and near-duplicates of questions (and of relevant memories).

    :param threshold: how alike two texts must be, by Jaccard over word shingles.
    :param memories: also compare relevant memories; off by default, since pools are often shared on purpose.
    """
    sides = {example.split_key: example.id for example in train}
    leaks = [
        Leak(sides[example.split_key], example.id, "group", 1.0, example.split_key)
        for example in dev
        if example.split_key in sides
    ]
    leaks += _near(_questions(train), _questions(dev), threshold, "query")
    if memories:
        leaks += _near(_relevant(train), _relevant(dev), threshold, "memory")
    return leaks


def check_leaks(train: Sequence[Example], dev: Sequence[Example], threshold: float = 0.8) -> None:
    """Raise an error that names the first leak and counts the rest."""
    leaks = find_leaks(train, dev, threshold)
    if leaks:
        first = leaks[0]
        raise InputError(
            f"{len(leaks)} leaks between train and dev, the first: {first.what} of train {first.train_id} and dev "
            f"{first.dev_id} ({first.similarity:.2f} alike): {first.text!r:.80}; split by group, or drop one of them"
        )


def shingles(text: str, size: int = 3) -> frozenset[str]:
    """Runs of words; a shorter text is one shingle."""
    found = words(text)
    if len(found) <= size:
        return frozenset([" ".join(found)])
    return frozenset(" ".join(found[i : i + size]) for i in range(len(found) - size + 1))


def _questions(examples: Sequence[Example]) -> list[tuple[str, str]]:
    return [(example.id, example.query) for example in examples]


def _relevant(examples: Sequence[Example]) -> list[tuple[str, str]]:
    return [(e.id, c.memory.text) for e in examples for c in e.candidates if c.label > 0]


def _near(
    train: Sequence[tuple[str, str]], dev: Sequence[tuple[str, str]], threshold: float, what: str
) -> Iterator[Leak]:
    """Pairs above the threshold: candidates by min-hash bands, then the exact measure. The best match of each."""
    index: dict[tuple[int, bytes], list[int]] = {}
    sets = [shingles(text) for _, text in train]
    for position, own in enumerate(sets):
        for key in _bands(own):
            index.setdefault(key, []).append(position)
    for dev_id, text in dev:
        own = shingles(text)
        found = {position for key in _bands(own) for position in index.get(key, ())}
        best = max(((len(own & sets[p]) / len(own | sets[p]), -p) for p in found), default=None)
        if best is not None and best[0] >= threshold:
            yield Leak(train[-best[1]][0], dev_id, what, best[0], text)


def _bands(own: frozenset[str]) -> Iterator[tuple[int, bytes]]:
    """Min-hashes, four to a band: texts of Jaccard .8 share at least one band with a chance above .999."""
    digests = (hashlib.blake2b(shingle.encode(errors="surrogatepass"), digest_size=8).digest() for shingle in own)
    hashes = np.array([int.from_bytes(digest, "big") for digest in digests], dtype=np.uint64)
    lowest = (hashes[:, None] * _FACTORS + _SHIFTS).min(axis=0)
    for band, rows in enumerate(lowest.reshape(_BANDS, -1)):
        yield band, rows.tobytes()
