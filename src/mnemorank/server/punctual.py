"""Preparation that ends with its request: tokenizing many long texts may take longer than a request has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mnemorank.model.model import Model
from mnemorank.scorers import Passage, Scorer
from mnemorank.scorers.protocol import ForwardingScorer
from mnemorank.server.errors import DeadlineError
from mnemorank.server.ticket import Ticket, current_ticket

_TEXTS_AT_ONCE = 64


def punctual(model: Model) -> Model:
    """The model for the current request."""
    ticket = current_ticket.get()
    return model if ticket is None else replace(model, scorer=PunctualScorer(model.scorer, ticket))


class PunctualScorer(ForwardingScorer):
    """A scorer for one request: between texts it looks whether the request was cancelled or its time ran out."""

    def __init__(self, scorer: Scorer, ticket: Ticket) -> None:
        super().__init__(scorer)
        self._ticket = ticket

    def prepare(self, texts: Sequence[str]) -> list[Passage]:
        passages: list[Passage] = []
        for first in range(0, len(texts), _TEXTS_AT_ONCE):
            self._check()
            passages += super().prepare(texts[first : first + _TEXTS_AT_ONCE])
        return passages

    def room(self, query: str, instruction: str | None = None) -> int:
        self._check()
        return super().room(query, instruction)

    def offsets(self, text: str) -> list[tuple[int, int]]:
        self._check()
        return super().offsets(text)

    def _check(self) -> None:
        self._ticket.check()
        if self._ticket.deadline is not None and self._ticket.deadline.expired:
            raise DeadlineError("the request's time ran out before all documents were read")
