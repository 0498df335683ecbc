"""Split examples so that a persona, conversation or question stays on one side, and find what leaks across."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mnemorank.data.examples import Example
from mnemorank.errors import InputError
from mnemorank.text.near_duplicates import find_near_duplicates


@dataclass(frozen=True, slots=True)
class Split:
    train: list[Example]
    dev: list[Example]


@dataclass(frozen=True, slots=True)
class Leak:
    """Two examples on different sides of a split that are nearly the same.

    :param what: what they share: `group`, `query` or `memory`.
    :param similarity: Jaccard similarity of the word shingles; 1 for a shared group.
    """

    train_id: str
    dev_id: str
    what: str
    similarity: float
    text: str


def is_held_out(group: str, share: float) -> bool:
    """Return whether a group is on the dev side.

    It depends on the name of the group alone, so that adding data moves no group to the other side.
    """
    draw = int.from_bytes(_digest(group)[:8], "big")
    return draw < share * 2**64


def split_by_group(examples: Sequence[Example], dev_share: float = 0.1) -> Split:
    """Split examples by a hash of their group. With two groups or more, neither side is empty.

    :param dev_share: the share of groups on the dev side.
    """
    if not 0 < dev_share < 1:
        raise InputError(f"expected a number between 0 and 1, got {dev_share!r}", field="dev_share")
    groups = sorted({example.split_key for example in examples})
    if len(groups) < 2:
        raise InputError(f"a split needs at least two groups, got {len(groups)}", code="empty")
    dev = {group for group in groups if is_held_out(group, dev_share)}
    by_hash = sorted(groups, key=_digest)
    if not dev:
        dev = {by_hash[0]}
    elif len(dev) == len(groups):
        dev.remove(by_hash[-1])
    return Split([e for e in examples if e.split_key not in dev], [e for e in examples if e.split_key in dev])


def find_leaks(
    train: Sequence[Example], dev: Sequence[Example], threshold: float = 0.8, *, memories: bool = False
) -> list[Leak]:
    """Return groups that are on both sides, and near-duplicate queries.

    :param threshold: the Jaccard similarity of word shingles from which two texts are near-duplicates.
    :param memories: also compare relevant memories; off by default, since sources often share a pool on purpose.
    """
    train_ids = {example.split_key: example.id for example in train}
    leaks = [
        Leak(train_ids[example.split_key], example.id, "group", 1.0, example.split_key)
        for example in dev
        if example.split_key in train_ids
    ]
    leaks += _leaked_texts(_queries(train), _queries(dev), threshold, "query")
    if memories:
        leaks += _leaked_texts(_relevant_texts(train), _relevant_texts(dev), threshold, "memory")
    return leaks


def check_leaks(train: Sequence[Example], dev: Sequence[Example], threshold: float = 0.8) -> None:
    """Raise an `InputError` of code `leak` that names the first leak and the number of leaks."""
    leaks = find_leaks(train, dev, threshold)
    if leaks:
        first = leaks[0]
        raise InputError(
            f"{len(leaks)} leaks between train and dev. The first: {first.what} of train {first.train_id} and dev "
            f"{first.dev_id}, similarity {first.similarity:.2f}: {first.text!r:.80}; split by group, or drop one",
            code="leak",
        )


def _queries(examples: Sequence[Example]) -> list[tuple[str, str]]:
    return [(example.id, example.query) for example in examples]


def _relevant_texts(examples: Sequence[Example]) -> list[tuple[str, str]]:
    return [(e.id, c.memory.text) for e in examples for c in e.candidates if c.label > 0]


def _leaked_texts(
    train: Sequence[tuple[str, str]], dev: Sequence[tuple[str, str]], threshold: float, what: str
) -> Iterator[Leak]:
    """Yield a leak for each dev text that has a near-duplicate in train, with the most similar one.

    :param train: ids and texts.
    """
    duplicates = find_near_duplicates([text for _, text in dev], [text for _, text in train], threshold)
    for index, match in duplicates.items():
        dev_id, text = dev[index]
        yield Leak(train[match.index][0], dev_id, what, match.similarity, text)


def _digest(group: str) -> bytes:
    return hashlib.sha256(group.encode(errors="surrogatepass")).digest()
