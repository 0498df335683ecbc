"""Hard negatives: what a first-stage retriever ranks high for a question and nobody called right."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from mnemorank._internal.arrays import Floats
from mnemorank._internal.validation import check_number
from mnemorank.data.examples import Candidate, Example, question_group
from mnemorank.data.splits import shingles
from mnemorank.errors import InputError, MissingExtraError
from mnemorank.memory.memory import Memory
from mnemorank.text.words import terms

Retriever = Callable[[Sequence[str], Sequence[str]], Floats]


@dataclass(frozen=True, slots=True)
class NegativeMining:
    """How negatives are chosen.

    :param count: negatives to add to each question.
    :param hard_share: the share of them that is hard; the rest is drawn at random from the pool. At least one of the
        negatives is hard wherever there is one, however small the set.
    :param first: the first rank (from 1, right ones left out) that counts as hard; higher skips likely false negatives.
    :param last: the last rank that counts as hard.
    :param margin: a hard negative's score may be at most this share of the best right memory's; .95 suits bi-encoders.
        None for no limit, as BM25 needs: there a short wrong text often scores above a right one.
    :param similarity: a text this alike to a right one (Jaccard over word shingles) is taken for right, not negative.
    :param retriever: `bm25`, or the folder of a bi-encoder.
    :param groups: draw from memories of `any` group (persona, conversation, matter), of the question's `own`, or of
        `other` ones alone: what answers a question may well stand in its group without being called right.
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
            raise InputError(
                f"expected bm25 or the folder of a bi-encoder, got {self.retriever!r:.60}", field="retriever"
            )
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
    """The examples with mined negatives added after their own candidates.

    :param corpus: where negatives come from; all memories of the examples by default.
    :param retriever: a function of your own from questions and texts to scores, instead of the named one.
    :param others: more examples; what any example of a question calls right is no negative of that question.
    """
    mining = mining or NegativeMining()
    pool = _Pool.of(examples, corpus)
    if not pool.memories:
        raise InputError("there is no memory to draw from", field="negatives")
    retrieve = retriever or load_retriever(mining.retriever)
    scores = retrieve([example.query for example in examples], [memory.text for memory in pool.memories])
    right: dict[str, dict[str, Memory]] = {}
    for example in (*examples, *others):
        own = right.setdefault(question_group(example.query), {})
        own.update((_key(c.memory), c.memory) for c in example.candidates if c.label > 0)
    return [
        _extended(
            example,
            row,
            pool,
            mining,
            random.Random(f"{seed}/{number}/{example.query}"),
            right[question_group(example.query)],
        )
        for number, (example, row) in enumerate(zip(examples, scores, strict=True))
    ]


@dataclass(frozen=True, slots=True)
class _Pool:
    """All memories once each, with the groups that they occur in."""

    memories: list[Memory]
    groups: list[set[str | None]]
    position: dict[str, int]

    @classmethod
    def of(cls, examples: Sequence[Example], corpus: Sequence[Memory] | None) -> _Pool:
        pool = cls([], [], {})
        owned = [(memory, example.group) for example in examples for memory in example.memories]
        for memory, group in owned if corpus is None else [(memory, None) for memory in corpus]:
            if not memory.text.strip():
                continue
            key = _key(memory)
            if key not in pool.position:
                pool.position[key] = len(pool.memories)
                pool.memories.append(memory)
                pool.groups.append(set())
            pool.groups[pool.position[key]].add(group)
        return pool


def _extended(
    example: Example,
    scores: Floats,
    pool: _Pool,
    mining: NegativeMining,
    rng: random.Random,
    right_anywhere: Mapping[str, Memory],
) -> Example:
    right = [candidate.memory for candidate in example.candidates if candidate.label > 0]
    own = {_key(memory) for memory in example.memories}
    guarded = [shingles(memory.text) for memory in right_anywhere.values()]

    def may_be_wrong(position: int) -> bool:
        memory = pool.memories[position]
        if _key(memory) in own:
            return False
        is_own = example.group in pool.groups[position]
        if mining.groups == "own" and not is_own:
            return False
        if mining.groups == "other" and is_own and example.group is not None:
            return False
        text = shingles(memory.text)
        return all(len(text & other) / len(text | other) < mining.similarity for other in guarded)

    ranked = [int(position) for position in np.argsort(-scores, kind="stable") if scores[position] > 0]
    window = [position for position in ranked if _key(pool.memories[position]) not in right_anywhere]
    ceiling = max((scores[pool.position[_key(m)]] for m in right if _key(m) in pool.position), default=np.inf)
    limit = ceiling * mining.margin if mining.margin is not None and np.isfinite(ceiling) else np.inf
    hard = [
        position
        for position in window[mining.first - 1 : mining.last]
        if scores[position] <= limit and may_be_wrong(position)
    ]
    wanted = min(max(round(mining.count * mining.hard_share), 1 if mining.hard_share > 0 else 0), mining.count)
    chosen = rng.sample(hard, min(wanted, len(hard)))
    hardest = set(window[: mining.last])
    easy = [p for p in rng.sample(range(len(pool.memories)), len(pool.memories)) if p not in hardest]
    for position in easy:
        if len(chosen) == mining.count:
            break
        if may_be_wrong(position):
            chosen.append(position)
    # A small pool may have no easy ones left: the rest is filled with hard ones rather than left out.
    chosen += [position for position in hard if position not in chosen][: mining.count - len(chosen)]
    # Without a score: that of another question means nothing here, and that of the mining would be on another scale
    # than those of the own candidates, or where these have none would tell the wrong from the right.
    mined = tuple(Candidate(pool.memories[position].with_score(None), 0.0) for position in sorted(chosen))
    return replace(example, candidates=example.candidates + mined)


def load_retriever(name: str) -> Retriever:
    """`bm25`, or the folder of a bi-encoder."""
    if name == "bm25":
        return bm25_scores
    if Path(name).is_dir():
        return lambda queries, texts: bi_encoder_scores(name, queries, texts)
    raise InputError(f"expected bm25 or the folder of a bi-encoder, got {name!r}", field="retriever")


def bm25_scores(queries: Sequence[str], texts: Sequence[str]) -> Floats:
    """BM25 of every text for every question, over a corpus of any size, through bm25s."""
    try:
        import bm25s
    except ImportError as error:
        raise MissingExtraError(f"mining with BM25 needs `pip install 'mnemorank[eval]'` ({error})") from error
    retriever = bm25s.BM25(k1=1.2, b=0.75)
    retriever.index([terms(text) or [""] for text in texts], show_progress=False)
    known = retriever.vocab_dict
    scores = np.zeros((len(queries), len(texts)))
    for row, query in enumerate(queries):
        found = [term for term in terms(query) if term in known]
        if found:
            scores[row] = retriever.get_scores(found)
    return scores


def bi_encoder_scores(folder: str, queries: Sequence[str], texts: Sequence[str]) -> Floats:
    """Cosine of the embeddings that a sentence-transformers folder gives."""
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise MissingExtraError(f"mining with a bi-encoder needs `pip install 'mnemorank[train]'` ({error})") from error
    encoder = SentenceTransformer(folder, device="cpu", local_files_only=True)
    asked, stored = (
        encoder.encode(list(part), normalize_embeddings=True, show_progress_bar=False) for part in (queries, texts)
    )
    return np.asarray(asked @ stored.T, dtype=np.float64)


def _key(memory: Memory) -> str:
    return f"{memory.text}\0{memory.occurred_start}\0{memory.occurred_end}"
