"""Remembered scores: a query that is asked again over texts that did not change need not be scored again."""

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
from mnemorank.server.ticket import current_ticket


class RememberingScorer(ForwardingScorer):
    """Scores a pair of query and text once, until `most` other pairs have come since.

    What it knows lives and dies with the model. It keeps hashes, no texts; they are keyed, so that nobody can send two
    texts with the same one.

    :param on_known: told how many pairs of a call were known.
    """

    def __init__(self, scorer: Scorer, most: int, on_known: Callable[[int], None]) -> None:
        super().__init__(scorer)
        self._most = most
        self._on_known = on_known
        self._known: OrderedDict[bytes, float] = OrderedDict()
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
        names = [self._name(query, instruction or "", passage.text) for passage in passages]
        found = self._recall(names)
        new = {name: passage for name, passage in zip(names, passages, strict=True) if name not in found}
        if new:
            given = self.scorer.score(query, list(new.values()), instruction=instruction, deadline=deadline)
            found.update(zip(new, given.tolist(), strict=True))
            self._remember({name: found[name] for name in new})
        self._count(query, passages, list(new.values()))
        return np.array([found[name] for name in names])

    def _recall(self, names: Sequence[bytes]) -> dict[bytes, float]:
        with self._lock:
            found = {name: self._known[name] for name in names if name in self._known}
            for name in found:
                self._known.move_to_end(name)
        return found

    def _remember(self, scores: dict[bytes, float]) -> None:
        with self._lock:
            self._known.update({name: score for name, score in scores.items() if np.isfinite(score)})
            while len(self._known) > self._most:
                self._known.popitem(last=False)

    def _count(self, query: str, passages: Sequence[Passage], new: Sequence[Passage]) -> None:
        """Note the pairs that were not scored: in a request's usage they count like any others."""
        known = len(passages) - len(new)
        if not known:
            return
        self._on_known(known)
        ticket = current_ticket.get()
        if ticket is not None:
            (asked,) = self.prepare([query])
            lengths = sum(passage.length for passage in passages) - sum(passage.length for passage in new)
            ticket.count(known, known * asked.length + lengths)

    def _name(self, *parts: str) -> bytes:
        digest = hashlib.blake2b(key=self._secret, digest_size=16)
        for part in parts:
            content = part.encode("utf-8", "surrogatepass")
            digest.update(len(content).to_bytes(8, "big") + content)
        return digest.digest()
