"""Split encoders on ONNX Runtime: each text is read once, and the joint layers score pairs of what was read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from mnemorank._internal.deadline import Deadline
from mnemorank._internal.hardware import available_cores
from mnemorank._internal.threads import Workers
from mnemorank._internal.validation import check_number
from mnemorank.artifact.resolve import Artifact
from mnemorank.errors import QueryTooLongError, ScorerError
from mnemorank.scorers.encoding import Ids, PairLayout, PassageEncoder, encode, load_tokenizer, offsets
from mnemorank.scorers.onnx import open_session
from mnemorank.scorers.protocol import BasePairScorer, Batch, Pair, Passage, Scores
from mnemorank.scorers.states import Key, State, StateCache, StateStore, key_of

# Rows of the segment table in the joint graph.
_QUERY, _MEMORY, _OLDER, _NEWER, _START = range(5)
_CACHED_QUERIES = 64
_MEGABYTE = 1_000_000
# Pairs of memories whose judgment is remembered: those of a store come up at every query. 20 MB at most.
_MAX_JUDGED = 100_000
# Of the manifest's `max_length`, which is the length of a pair in training.
_QUERY_SHARE, _MEMORY_SHARE = 1.0, 0.75

T = TypeVar("T")


class SplitScorer(BasePairScorer):
    """Scores pairs in two steps: states of both texts, which are cached, then the joint layers.

    :param threads: how many texts or pairs are read at once; by default as many as the process has cores.
    :param cache_megabytes: for the states of memories used last; a memory of 80 tokens takes 32 kB.
    :param states: where states outlive the process, such as a `StateFile`.
    """

    token_budget = 512

    def __init__(
        self,
        artifact: Artifact,
        *,
        threads: int | None = None,
        cache_megabytes: float = 256,
        states: StateStore | None = None,
    ) -> None:
        if threads is not None:
            check_number("threads", threads, 1, whole=True)
        check_number("cache_megabytes", cache_megabytes, 0)
        manifest = artifact.manifest
        self.threads = threads or available_cores()
        self._max_query, self._max_memory = (
            int(share * manifest.max_length) for share in (_QUERY_SHARE, _MEMORY_SHARE)
        )
        self.on_batch: Callable[[Batch], None] | None = None
        self._tokens = load_tokenizer(artifact.file("tokenizer.json"))
        self._layout = PairLayout.of(self._tokens)
        self._passages = PassageEncoder(self._tokens)
        super().__init__(manifest.name, self)
        self._encoder: ort.InferenceSession | None = open_session(artifact.file("encoder.onnx"))
        self._joint: ort.InferenceSession | None = open_session(artifact.file("joint.onnx"))
        self.width = int(self._encoder.get_outputs()[0].shape[2])
        self.max_memory = self._max_memory - len(self._layout.after)
        self.cache = StateCache(int(cache_megabytes * _MEGABYTE))
        # A query is read for its relevance and for whether it asks about the past.
        self._read_query = lru_cache(_CACHED_QUERIES)(lambda ids: self._encode(np.frombuffer(ids, np.int64), 0))
        self._judged: dict[tuple[Key, Key], float] = {}
        self._states = states
        self._workers = Workers(self.threads, "mnemorank")

    def prepare(self, texts: Sequence[str]) -> list[Passage]:
        return self._passages.encode(texts)

    def offsets(self, text: str) -> list[tuple[int, int]]:
        return offsets(self._tokens, text)

    def room(self, query: str, instruction: str | None = None) -> int:
        """Return how many tokens a passage may have: the same for every query, so that windows can be prepared."""
        length = len(encode(self._tokens, [query])[0]) + len(self._layout.before) + len(self._layout.between)
        if length > self._max_query:
            raise QueryTooLongError(length, self._max_query)
        return self.max_memory

    def score_pairs(self, pairs: Sequence[Pair], *, deadline: Deadline | None = None) -> Scores:
        scores = np.full(len(pairs), np.nan)
        queries = {query: self._query_state(query) for query in dict.fromkeys(pair.query for pair in pairs)}
        keys = [self.key(pair.passage) for pair in pairs]
        known = self._known(keys)

        def run(position: int) -> None:
            if deadline is not None and deadline.expired:
                return
            passage = pairs[position].passage
            query = queries[pairs[position].query]
            memory = known.get(keys[position]) or self._read(passage)
            scores[position] = self._relevance(query, memory)

        self._run(run, range(len(pairs)))
        return scores

    def key(self, passage: Passage) -> Key:
        """Return the key of a passage's state in caches and stores."""
        return key_of(passage.encoded)

    def states(self, passages: Sequence[Passage]) -> list[State]:
        """Return the states of passages, from the cache or the store where they are there."""
        keys = [self.key(passage) for passage in passages]
        known = self._known(keys)
        missing = {key: passage for key, passage in zip(keys, passages, strict=True) if key not in known}
        known.update(zip(missing, self._run(self._read, missing.values()), strict=True))
        return [known[key] for key in keys]

    def embed(self, passages: Sequence[Passage]) -> NDArray[np.float32]:
        """Return the embedding of each passage, of length 1."""
        return np.array([state.embedding for state in self.states(passages)], dtype=np.float32)

    def embed_query(self, query: str) -> NDArray[np.float32]:
        """Return the embedding of a query, of length 1."""
        return self._query_state(query).embedding.astype(np.float32)

    def replacement(self, pairs: Sequence[tuple[Passage, Passage]]) -> Scores:
        """Return, for pairs of an older and a newer memory, the log-odds that the newer replaces the older."""
        keys = [(self.key(older), self.key(newer)) for older, newer in pairs]
        if len(self._judged) > _MAX_JUDGED:
            self._judged = {}
        known = self._judged  # another thread may start a new one
        new = {key: pair for key, pair in zip(keys, pairs, strict=True) if key not in known}
        texts = list({self.key(passage): passage for pair in new.values() for passage in pair}.items())
        states = dict(zip((key for key, _ in texts), self.states([text for _, text in texts]), strict=True))
        nothing = np.zeros(self.width)
        start = State(nothing[None].astype(np.int8), np.ones(1, np.float16), nothing.astype(np.float16))

        def run(key: tuple[Key, Key]) -> float:
            older, newer = (states[part] for part in key)
            return self._together([start, older, newer], [_START, _OLDER, _NEWER], 0.0)[1]

        known.update(zip(new, self._run(run, new), strict=True))
        return np.array([known[key] for key in keys], dtype=np.float64)

    def asks_about_past(self, query: str) -> float:
        """Return the log-odds that a query asks for an earlier state ("where did she work before?").

        Of a query that is too long the end is read, as for its relevance.
        """
        ids = self._query_ids(query)
        if len(ids) > self._max_query:
            start = len(self._layout.before)
            ids = np.concatenate([ids[:start], ids[start - self._max_query :]])
        return self._read_query(ids.tobytes())[1]

    def close(self) -> None:
        self._workers.shutdown()
        self._encoder = self._joint = None
        self._read_query.cache_clear()

    def _open(self, session: ort.InferenceSession | None) -> ort.InferenceSession:
        if session is None:
            raise ScorerError(f"{self.name}: the model was closed")
        return session

    def _run(self, function: Callable[[T], Any], items: Iterable[T]) -> list[Any]:
        items = list(items)
        self._open(self._joint)
        try:
            if len(items) < 2 or self.threads == 1:
                return [function(item) for item in items]
            return self._workers.map(function, items)
        except ScorerError:
            raise
        except Exception as error:  # the errors of onnxruntime share no base class
            raise ScorerError(f"{self.name}: scoring failed: {error}") from error

    def _known(self, keys: Sequence[Key]) -> dict[Key, State]:
        known = self.cache.get(keys)
        missing = [key for key in dict.fromkeys(keys) if key not in known]
        if missing and self._states is not None:
            stored = self._states.get(missing)
            self.cache.put(stored)
            known |= stored
        return known

    def _read(self, passage: Passage) -> State:
        """Compute the state of a memory and keep it."""
        state = self._encode(self._memory_ids(passage), 1)[0]
        new = {self.key(passage): state}
        self.cache.put(new)
        if self._states is not None:
            self._states.put(new)
        return state

    def _query_state(self, query: str) -> State:
        return self._read_query(self._query_ids(query).tobytes())[0]

    def _query_ids(self, query: str) -> Ids:
        (ids,) = encode(self._tokens, [query])
        return np.array([*self._layout.before, *ids, *self._layout.between], dtype=np.int64)

    def _memory_ids(self, passage: Passage) -> Ids:
        return np.array([*passage.encoded, *self._layout.after], dtype=np.int64)

    def _encode(self, ids: Ids, first_position: int) -> tuple[State, float]:
        """Return the state of a text, and the log-odds that it asks about the past.

        Texts run one by one: INT8 ranges over a batch would make the state of a text depend on the others.
        """
        limit = self._max_memory if first_position else self._max_query
        if len(ids) > limit:
            raise ScorerError(f"{self.name}: input of {len(ids)} tokens exceeds the model's limit of {limit}")
        feed = {
            "input_ids": ids[None],
            "attention_mask": np.ones((1, len(ids)), dtype=np.int64),
            "first_position": np.array([first_position], dtype=np.int64),
        }
        codes, scales, embedding, past = self._open(self._encoder).run(None, feed)
        state = State(codes[0], scales[0].astype(np.float16), embedding[0].astype(np.float16))
        return state, float(past[0])

    def _relevance(self, query: State, memory: State) -> float:
        cosine = float(query.embedding.astype(np.float32) @ memory.embedding.astype(np.float32))
        return self._together([query, memory], [_QUERY, _MEMORY], cosine)[0]

    def _together(self, states: Sequence[State], segments: Sequence[int], cosine: float) -> tuple[float, float]:
        lengths = [len(state.scales) for state in states]
        total = sum(lengths)
        feed = {
            "states": np.concatenate([state.codes for state in states])[None],
            "scales": np.concatenate([state.scales for state in states]).astype(np.float32)[None],
            "segments": np.repeat(np.array(segments, dtype=np.int64), lengths)[None],
            "attention_mask": np.ones((1, total), dtype=np.int64),
            "cosine": np.array([cosine], dtype=np.float32),
        }
        relevance, replacement = self._open(self._joint).run(None, feed)
        if self.on_batch is not None:
            self.on_batch(Batch(1, total, total))
        return float(relevance[0]), float(replacement[0])
