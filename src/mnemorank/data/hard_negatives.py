"""Hard negatives: memories that a first-stage retriever ranks high for a query and that no example labels relevant."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from mnemorank._internal.arrays import Floats
from mnemorank._internal.validation import check_number
from mnemorank.data.examples import Candidate, Example, normalize_query
from mnemorank.data.retrieval import Retriever, load_retriever
from mnemorank.errors import InputError
from mnemorank.memory.memory import Memory
from mnemorank.text.near_duplicates import shingles
from mnemorank.text.similarity import jaccard


@dataclass(frozen=True, slots=True)
class NegativeMining:
    """How hard negatives are chosen.

    :param count: negatives to add to each example.
    :param hard_share: the share of them that is hard; the rest is drawn at random. Above 0, at least one is hard
        if there is one.
    :param first: the first rank that counts as hard, not counting relevant memories. A higher rank skips likely false
        negatives.
    :param last: the last rank that counts as hard.
    :param margin: the highest score of a hard negative, as a share of the best relevant memory's score. 0.95 suits
        bi-encoders; None, for no limit, suits BM25, where a short irrelevant text often scores above a relevant one.
    :param similarity: a text at least this similar to a relevant one (Jaccard over word shingles) is not used.
    :param retriever: `bm25`, or the folder of a bi-encoder.
    :param groups: draw from memories of `any` group, of the example's `own` group, or of `other` groups only, when a
        group may hold unlabeled answers.
    """

    count: int = 4
    hard_share: float = 0.75
    first: int = 1
    last: int = 30
    margin: float | None = None
    similarity: float = 0.7
    retriever: str = "bm25"
    groups: str = "any"

    def __post_init__(self) -> None:
        for name in ("count", "first", "last"):
            check_number(name, getattr(self, name), 1, whole=True)
        check_number("hard_share", self.hard_share, 0, 1)
        check_number("similarity", self.similarity, 0, 1)
        if self.margin is not None:
            check_number("margin", self.margin, 0, 10)
        if self.last < self.first:
            raise InputError(f"expected a rank from {self.first} (first), got {self.last}", field="last")
        if not isinstance(self.retriever, str):
            raise InputError(f"expected bm25 or the folder of a bi-encoder, got {self.retriever!r}", field="retriever")
        if self.groups not in ("any", "own", "other"):
            raise InputError(f"expected any, own or other, got {self.groups!r:.60}", field="groups")

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> NegativeMining:
        """Read the options from a mapping; errors name the key as `hard_negatives.KEY`."""
        known = [field.name for field in fields(cls)]
        for key in record:
            if key not in known:
                raise InputError(f"unknown key; expected one of {', '.join(known)}", field=f"hard_negatives.{key}")
        try:
            return cls(**record)
        except InputError as error:
            field = f"hard_negatives.{error.field}" if error.field else "hard_negatives"
            raise InputError(error.message, field=field, code=error.code) from None


def add_hard_negatives(
    examples: Sequence[Example],
    mining: NegativeMining | None = None,
    *,
    corpus: Sequence[Memory] | None = None,
    seed: int = 0,
    retriever: Retriever | None = None,
    others: Sequence[Example] = (),
) -> list[Example]:
    """Return the examples with mined negatives after their own candidates.

    :param corpus: where negatives come from; all memories of the examples by default.
    :param retriever: used instead of `mining.retriever`.
    :param others: further examples. What any example of a query labels relevant is never a negative for that query.
    """
    miner = NegativeMiner(examples, mining, corpus=corpus, seed=seed, retriever=retriever, others=others)
    return miner.extend(examples)


class NegativeMiner:
    """Adds mined negatives to examples, some at a time. The arguments are those of `add_hard_negatives`.

    :param examples: all of them.
    """

    def __init__(
        self,
        examples: Sequence[Example],
        mining: NegativeMining | None = None,
        *,
        corpus: Sequence[Memory] | None = None,
        seed: int = 0,
        retriever: Retriever | None = None,
        others: Sequence[Example] = (),
    ) -> None:
        self._mining, self._seed = mining or NegativeMining(), seed
        self._pool = _Pool.build(examples, corpus)
        if not self._pool.memories:
            raise InputError("there are no memories to draw from", field="hard_negatives", code="empty")
        retriever = retriever or load_retriever(self._mining.retriever)
        self._scores = retriever([memory.text for memory in self._pool.memories])
        self._relevant: dict[str, dict[str, Memory]] = {}
        for example in (*examples, *others):
            memories = self._relevant.setdefault(normalize_query(example.query), {})
            memories.update((_key(c.memory), c.memory) for c in example.candidates if c.label > 0)

    def extend(self, examples: Sequence[Example], numbers: Iterable[int] | None = None) -> list[Example]:
        """Return examples with their negatives.

        :param numbers: the number of each among all examples, which seeds its random choices; from 0 by default.
        """
        scores = self._scores([example.query for example in examples])
        return [
            _extend(
                example,
                row,
                self._pool,
                self._mining,
                random.Random(f"{self._seed}/{number}/{example.query}"),
                self._relevant.get(normalize_query(example.query), {}),
            )
            for number, example, row in zip(numbers or range(len(examples)), examples, scores, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class _Pool:
    """All memories to draw from, without duplicates.

    :param groups: the groups in which each memory occurs.
    """

    memories: list[Memory]
    groups: list[set[str | None]]
    position: dict[str, int]

    @classmethod
    def build(cls, examples: Sequence[Example], corpus: Sequence[Memory] | None) -> _Pool:
        pool = cls([], [], {})
        grouped = [(memory, example.group) for example in examples for memory in example.memories]
        for memory, group in grouped if corpus is None else [(memory, None) for memory in corpus]:
            if not memory.text.strip():
                continue
            key = _key(memory)
            if key not in pool.position:
                pool.position[key] = len(pool.memories)
                pool.memories.append(memory)
                pool.groups.append(set())
            pool.groups[pool.position[key]].add(group)
        return pool


def _extend(
    example: Example,
    scores: Floats,
    pool: _Pool,
    mining: NegativeMining,
    rng: random.Random,
    relevant_anywhere: Mapping[str, Memory],
) -> Example:
    candidate_keys = {_key(memory) for memory in example.memories}
    relevant_shingles = [shingles(memory.text) for memory in relevant_anywhere.values()]

    def is_eligible(position: int) -> bool:
        memory = pool.memories[position]
        if _key(memory) in candidate_keys:
            return False
        is_own_group = example.group in pool.groups[position]
        if mining.groups == "own" and not is_own_group:
            return False
        if mining.groups == "other" and is_own_group and example.group is not None:
            return False
        text = shingles(memory.text)
        return all(jaccard(text, other) < mining.similarity for other in relevant_shingles)

    ranked = [int(position) for position in np.argsort(-scores, kind="stable") if scores[position] > 0]
    ranked = [position for position in ranked if _key(pool.memories[position]) not in relevant_anywhere]
    max_score = _max_score(example, scores, pool, mining)
    hard = [
        position
        for position in ranked[mining.first - 1 : mining.last]
        if scores[position] <= max_score and is_eligible(position)
    ]
    hard_count = min(max(round(mining.count * mining.hard_share), 1 if mining.hard_share > 0 else 0), mining.count)
    chosen = rng.sample(hard, min(hard_count, len(hard)))
    top = set(ranked[: mining.last])
    easy = [p for p in rng.sample(range(len(pool.memories)), len(pool.memories)) if p not in top]
    for position in easy:
        if len(chosen) == mining.count:
            break
        if is_eligible(position):
            chosen.append(position)
    # A small pool may have no easy negatives: fill up with hard ones.
    chosen += [position for position in hard if position not in chosen][: mining.count - len(chosen)]
    # Without a first-stage score: one from another query or on another scale would tell negatives from the rest.
    mined = tuple(Candidate(pool.memories[position].with_score(None), 0.0) for position in sorted(chosen))
    return replace(example, candidates=example.candidates + mined)


def _max_score(example: Example, scores: Floats, pool: _Pool, mining: NegativeMining) -> float:
    keys = [_key(candidate.memory) for candidate in example.candidates if candidate.label > 0]
    best = max((float(scores[pool.position[key]]) for key in keys if key in pool.position), default=np.inf)
    return best * mining.margin if mining.margin is not None and np.isfinite(best) else np.inf


def _key(memory: Memory) -> str:
    return f"{memory.text}\0{memory.occurred_start}\0{memory.occurred_end}"
