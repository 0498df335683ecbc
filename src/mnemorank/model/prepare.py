"""Prepare memories: compute what a split model reads of them, once for all queries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mnemorank.artifact.manifest import Manifest
from mnemorank.errors import InputError
from mnemorank.memory.memory import Memory
from mnemorank.model.passages import PassageReader
from mnemorank.scorers.protocol import Passage, Scorer
from mnemorank.scorers.states import Key, State, StateScorer, state_scorer

if TYPE_CHECKING:
    from mnemorank.scorers.state_file import StateFile

# Bounds the states in memory, since a long memory has many passages.
_MEMORIES_AT_ONCE = 32
_PASSAGES_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Prepared:
    """How many memories were prepared.

    :param new: now.
    :param known: before, or without text.
    :param not_stored: now, but they could not be written: others held the file for too long, or the disk is full.
    """

    new: int = 0
    known: int = 0
    not_stored: int = 0

    def __add__(self, other: Prepared) -> Prepared:
        return Prepared(self.new + other.new, self.known + other.known, self.not_stored + other.not_stored)


def require_states(scorer: Scorer, manifest: Manifest, field: str | None = None) -> StateScorer:
    """Return the scorer that computes states; raise an InputError if the model is not split."""
    found = state_scorer(scorer)
    if found is None:
        raise not_split(manifest.name, field)
    return found


def not_split(name: str, field: str | None = None) -> InputError:
    message = f"{name!r} is not a split model: it reads query and memory together, so memories cannot be prepared"
    return InputError(message, field=field, code="not_split")


def prepare(scorer: Scorer, manifest: Manifest, memories: Sequence[Memory], store: StateFile | None) -> Prepared:
    """Compute the states of the memories that are not in the store, and write them.

    :param store: None to keep them only in the scorer's cache, as far as they fit.
    """
    states = require_states(scorer, manifest)
    reader = PassageReader.create(scorer, manifest, None)
    total = Prepared()
    for first in range(0, len(memories), _MEMORIES_AT_ONCE):
        chunk = memories[first : first + _MEMORIES_AT_ONCE]
        passages = reader.read(chunk)
        keys = [states.key(each.passage) for each in passages]
        known = (states.cache if store is None else store).get(list(dict.fromkeys(keys)))
        missing = {key: each.passage for key, each in zip(keys, passages, strict=True) if key not in known}
        lost: set[Key] = set()
        for computed in _compute(states, missing):
            if store is not None and not store.store(computed):
                lost |= computed.keys()
        new = {each.owner for key, each in zip(keys, passages, strict=True) if key in missing}
        not_stored = {each.owner for key, each in zip(keys, passages, strict=True) if key in lost}
        total += Prepared(len(new - not_stored), len(chunk) - len(new), len(not_stored))
    return total


def _compute(scorer: StateScorer, passages: dict[Key, Passage]) -> Iterator[dict[Key, State]]:
    keys = list(passages)
    for first in range(0, len(keys), _PASSAGES_AT_ONCE):
        some = keys[first : first + _PASSAGES_AT_ONCE]
        yield dict(zip(some, scorer.states([passages[key] for key in some]), strict=True))
