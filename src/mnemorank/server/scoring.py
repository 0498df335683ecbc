"""What the dialects ask for: the model's own judgement of texts, without fusion."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from dataclasses import dataclass

import numpy as np
from fastapi import Request

from mnemorank._internal.arrays import logit, sigmoid
from mnemorank.artifact.calibration import model_odds
from mnemorank.memory.memory import Memory
from mnemorank.model.model import Model
from mnemorank.server.engine import Answer, Engine
from mnemorank.server.punctual import punctual
from mnemorank.server.requests import check_documents, check_instruction, check_query
from mnemorank.server.ticket import current_ticket

_EMPTY_LOGIT = float(logit(np.zeros(1))[0])
_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Judged:
    """Scores of texts in the given order. An empty text is not relevant: 0.

    :param relevance: calibrated, in [0, 1].
    :param logits: the model's own.
    :param matched: of texts read in windows, the one that scored best.
    """

    relevance: list[float]
    logits: list[float]
    matched: list[str | None]

    def order(self, top_n: int | None = None) -> list[int]:
        """Indexes, best first; equal scores in the given order."""
        return sorted(range(len(self.relevance)), key=lambda i: (-self.relevance[i], -self.logits[i], i))[:top_n]


async def judge(
    request: Request,
    query: str,
    texts: Sequence[str],
    *,
    field: str = "documents",
    instruction: str | None = None,
    max_tokens: int | None = None,
) -> Answer[Judged]:
    """Check the limits and score the texts for the query.

    :param field: what the dialect calls the texts, for errors.
    :param max_tokens: score only so many tokens of each text.
    """
    engine: Engine = request.app.state.engine
    check_query(query, engine.settings)
    check_instruction(instruction, engine.settings)
    check_documents(texts, engine.settings, field)
    _note_query(request, query)
    return await engine.run(
        request,
        lambda served: judge_with(punctual(served.model), query, texts, instruction, max_tokens),
        engine.deadline(request),
    )


async def judge_pairs(
    request: Request,
    pairs: Sequence[tuple[str, str]],
    *,
    fields: tuple[str, str],
    instruction: str | None = None,
    max_tokens: int | None = None,
) -> Answer[Judged]:
    """Score each text for its own query.

    :param fields: what the dialect calls the queries and the texts.
    """
    engine: Engine = request.app.state.engine
    by_query: dict[str, list[int]] = {}
    for position, (query, _) in enumerate(pairs):
        by_query.setdefault(query, []).append(position)
    check_instruction(instruction, engine.settings)
    check_documents([text for _, text in pairs], engine.settings, fields[1])
    for query in by_query:
        check_query(query, engine.settings, fields[0])
    _note_query(request, next(iter(by_query)))

    def score_one(model: Model, query: str) -> Judged:
        return judge_with(model, query, [pairs[i][1] for i in by_query[query]], instruction, max_tokens)

    def score_all(model: Model) -> Judged:
        for query in by_query:  # one that is too long is told before anything is scored
            model.scorer.room(query, instruction)
        with ThreadPoolExecutor(min(len(by_query), _AT_ONCE)) as pool:
            work = [pool.submit(copy_context().run, score_one, model, query) for query in by_query]
            _wait(work)
        placed = {
            position: (judged.relevance[i], judged.logits[i], judged.matched[i])
            for positions, judged in zip(by_query.values(), (future.result() for future in work), strict=True)
            for i, position in enumerate(positions)
        }
        relevance, logits, matched = zip(*(placed[position] for position in range(len(pairs))), strict=True)
        return Judged(list(relevance), list(logits), list(matched))

    return await engine.run(request, lambda served: score_all(punctual(served.model)), engine.deadline(request))


def _wait(work: Sequence[Future[Judged]]) -> None:
    """Wait for the parts of a request; once one fails, nobody needs the others, and they are given up."""
    done, _ = wait(work, return_when=FIRST_EXCEPTION)
    error = next((error for future in work if future in done and (error := future.exception())), None)
    if error is None:
        return
    for future in work:
        future.cancel()
    ticket = current_ticket.get()
    if ticket is not None:
        ticket.cancel()
    raise error


def judge_with(
    model: Model, query: str, texts: Sequence[str], instruction: str | None, max_tokens: int | None
) -> Judged:
    if max_tokens is not None:
        texts = [cut(model, text, max_tokens) for text in texts]
    scored = model.score(query, [Memory(text) for text in texts], instruction=instruction)
    manifest = scored.manifest
    relevance = sigmoid(model_odds(scored.raw, manifest))
    logits = logit(scored.raw) if manifest.score_kind == "probability" else scored.raw
    return Judged(
        np.nan_to_num(relevance, nan=0.0).tolist(), np.nan_to_num(logits, nan=_EMPTY_LOGIT).tolist(), scored.matched
    )


def cut(model: Model, text: str, max_tokens: int) -> str:
    """The text's first tokens."""
    if len(text) <= max_tokens:  # a token has at least a character
        return text
    offsets = model.scorer.offsets(text)
    return text if len(offsets) <= max_tokens else text[: offsets[max_tokens - 1][1]]


def _note_query(request: Request, query: str) -> None:
    if request.app.state.settings.log_texts:
        request.state.notes["query"] = query
