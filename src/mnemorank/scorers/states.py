"""States: what a split encoder computes of a text, once for all queries. Kept in memory and, if asked for, on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from mnemorank._internal.byte_cache import ByteCache
from mnemorank.scorers.protocol import ForwardingScorer, Passage, Scorer

Key = bytes
_KEY_BYTES = 16


@dataclass(frozen=True, slots=True)
class State:
    """The states and the embedding of a text, rounded so that a stored copy gives the same scores.

    :param codes: a row of INT8 codes per token.
    :param scales: the scale of each row.
    :param embedding: of length 1.
    """

    codes: NDArray[np.int8]
    scales: NDArray[np.float16]
    embedding: NDArray[np.float16]

    @property
    def size(self) -> int:
        """In bytes."""
        return self.codes.nbytes + self.scales.nbytes + self.embedding.nbytes

    def to_bytes(self) -> bytes:
        return self.embedding.tobytes() + self.scales.tobytes() + self.codes.tobytes()

    @classmethod
    def from_bytes(cls, data: bytes, width: int) -> State | None:
        """Return the state, None if the bytes cannot be one of this width."""
        tokens, rest = divmod(len(data) - 2 * width, width + 2)
        if tokens < 1 or rest:
            return None
        embedding = np.frombuffer(data, np.float16, width)
        scales = np.frombuffer(data, np.float16, tokens, 2 * width)
        codes = np.frombuffer(data, np.int8, tokens * width, 2 * width + 2 * tokens).reshape(tokens, width)
        return cls(codes, scales, embedding)


def key_of(token_ids: NDArray[np.int64]) -> Key:
    """Return the key of a text: a hash of its token ids, which are all that its state depends on."""
    return hashlib.blake2b(token_ids.tobytes(), digest_size=_KEY_BYTES).digest()


class StateStore(Protocol):
    """Where states are kept. Safe to use from many threads."""

    def get(self, keys: Sequence[Key]) -> dict[Key, State]:
        """Return the states that are there."""
        ...

    def put(self, states: Mapping[Key, State]) -> None: ...


@runtime_checkable
class StateScorer(Protocol):
    """A scorer that reads each memory by itself, once for all queries.

    :param cache: the states used last.
    """

    cache: StateCache

    def key(self, passage: Passage) -> Key:
        """Return the key of a passage's state in caches and stores."""
        ...

    def states(self, passages: Sequence[Passage]) -> list[State]:
        """Return the states of passages, computed where they are not known."""
        ...

    def embed_query(self, query: str) -> NDArray[np.float32]:
        """Return the embedding of a query, of length 1."""
        ...


def state_scorer(scorer: Scorer) -> StateScorer | None:
    """Return the scorer that computes states, which others may wrap; None if there is none."""
    while isinstance(scorer, ForwardingScorer):
        scorer = scorer.scorer
    return scorer if isinstance(scorer, StateScorer) else None


class StateCache(ByteCache[Key, State]):
    """The states used last, in memory.

    :param max_bytes: the size of all states in it.
    """

    def __init__(self, max_bytes: int) -> None:
        super().__init__(max_bytes, lambda state: state.size)
