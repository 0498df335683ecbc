"""A cache of scores, for queries that are repeated over texts that did not change."""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np

from mnemorank._internal.deadline import Deadline
from mnemorank.scorers import Passage, Scorer
from mnemorank.scorers.protocol import ForwardingScorer, Scores
from mnemorank.server.requests import current_request


class CachingScorer(ForwardingScorer):
    """Keeps the most recently used scores by query, instruction and text, as long as the model is served.

    The keys are hashes with a secret, so that texts are not kept and nobody can construct a collision.

    :param on_hit: called with the number of pairs that a call found in the cache.
    """

    def __init__(self, scorer: Scorer, max_entries: int, on_hit: Callable[[int], None]) -> None:
        super().__init__(scorer)
        self._max_entries = max_entries
        self._on_hit = on_hit
        self._scores: OrderedDict[bytes, float] = OrderedDict()
        self._lock = threading.Lock()
        self._secret = secrets.token_bytes(32)

    def score(
        self,
        query: str,
        passages: Sequence[Passage],
        *,
        instruction: str | None = None,
        deadline: Deadline | None = None,
    ) -> Scores:
        keys = [self._key(query, instruction or "", passage.text) for passage in passages]
        scores = self._look_up(keys)
        missing = {key: passage for key, passage in zip(keys, passages, strict=True) if key not in scores}
        if missing:
            new = self.scorer.score(query, list(missing.values()), instruction=instruction, deadline=deadline)
            scores.update(zip(missing, new.tolist(), strict=True))
            self._store({key: scores[key] for key in missing})
        self._add_usage(query, passages, list(missing.values()))
        return np.array([scores[key] for key in keys])

    def _look_up(self, keys: Sequence[bytes]) -> dict[bytes, float]:
        with self._lock:
            scores = {key: self._scores[key] for key in keys if key in self._scores}
            for key in scores:
                self._scores.move_to_end(key)
        return scores

    def _store(self, scores: dict[bytes, float]) -> None:
        with self._lock:
            self._scores.update({key: score for key, score in scores.items() if np.isfinite(score)})
            while len(self._scores) > self._max_entries:
                self._scores.popitem(last=False)

    def _add_usage(self, query: str, passages: Sequence[Passage], missing: Sequence[Passage]) -> None:
        """Add the pairs from the cache to the request's usage, where they count like all others."""
        hits = len(passages) - len(missing)
        if not hits:
            return
        self._on_hit(hits)
        request = current_request.get()
        if request is not None:
            (query_tokens,) = self.prepare([query])
            tokens = sum(passage.length for passage in passages) - sum(passage.length for passage in missing)
            request.add_usage(hits, hits * query_tokens.length + tokens)
            characters = sum(len(passage.text) for passage in passages) - sum(len(passage.text) for passage in missing)
            request.add_scored(hits, hits * len(query) + characters)

    def _key(self, *parts: str) -> bytes:
        digest = hashlib.blake2b(key=self._secret, digest_size=16)
        for part in parts:
            content = part.encode("utf-8", "surrogatepass")
            digest.update(len(content).to_bytes(8, "big") + content)
        return digest.digest()
