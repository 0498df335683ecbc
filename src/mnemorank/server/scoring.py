"""Scoring for the dialect routes: the ranking pipeline with `Options.model_only()`, and scores in document order."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from fastapi import Request, Response

from mnemorank import Options, Ranking
from mnemorank._internal.arrays import logit
from mnemorank._internal.deadline import Deadline
from mnemorank.errors import ScorerError
from mnemorank.model.model import Model
from mnemorank.server.admission import Work
from mnemorank.server.engine import Completed, Engine
from mnemorank.server.errors import DeadlineError
from mnemorank.server.model_slot import ServedModel
from mnemorank.server.requests import check_documents, check_instruction, check_query, current_request

_MODEL_ONLY = Options.model_only()
_EMPTY_LOGIT = float(logit(np.zeros(1))[0])
_MAX_CHARACTERS_PER_TOKEN = 6


@dataclass(frozen=True, slots=True)
class DocumentScores:
    """Scores of documents, in the order of the request. An empty document has a relevance of 0.

    :param relevance: calibrated, in [0, 1].
    :param logits: the model's own scores.
    :param passages: for documents read in windows, the window that scored best.
    """

    relevance: list[float]
    logits: list[float]
    passages: list[str | None]

    @classmethod
    def from_ranking(cls, ranking: Ranking, score_kind: str) -> DocumentScores:
        scores = cls([0.0] * len(ranking), [_EMPTY_LOGIT] * len(ranking), [None] * len(ranking))
        for result in ranking:
            scores.passages[result.index] = result.passage
            if result.relevance is not None and result.raw_score is not None:
                raw = result.raw_score
                scores.relevance[result.index] = result.relevance
                scores.logits[result.index] = float(logit(np.array([raw]))[0]) if score_kind == "probability" else raw
        return scores

    @classmethod
    def join(cls, parts: Sequence[tuple[Sequence[int], DocumentScores]]) -> DocumentScores:
        """Combine the scores of several rankings.

        :param parts: positions in the request, and the scores of the documents there.
        """
        count = sum(len(positions) for positions, _ in parts)
        joined = cls([0.0] * count, [0.0] * count, [None] * count)
        for positions, scores in parts:
            for i, position in enumerate(positions):
                joined.relevance[position] = scores.relevance[i]
                joined.logits[position] = scores.logits[i]
                joined.passages[position] = scores.passages[i]
        return joined

    def order(self, top_n: int | None = None) -> list[int]:
        """Return indexes, best first; equal scores in the order of the request."""
        return sorted(range(len(self.relevance)), key=lambda i: (-self.relevance[i], -self.logits[i], i))[:top_n]


Respond = Callable[[Completed[DocumentScores]], Response]


async def score_documents(
    request: Request,
    query: str,
    documents: Sequence[str],
    respond: Respond,
    *,
    field: str = "documents",
    instruction: str | None = None,
    max_tokens: int | None = None,
) -> Response:
    """Check the limits, score the documents for the query, and respond.

    :param field: the dialect's name for the documents, for error messages.
    :param max_tokens: read only this many tokens of each document.
    """
    engine: Engine = request.app.state.engine
    _log_query(request, query)

    def work(served: ServedModel, deadline: Deadline) -> DocumentScores:
        check_query(query, engine.settings)
        check_instruction(instruction, engine.settings)
        check_documents(documents, engine.settings, field)
        with served.scorer.admitted(_work(served, query, documents, max_tokens)):
            # Raises QueryTooLongError: dialects have no place for warnings.
            served.model.scorer.room(query, instruction)
            return _score(served, deadline, query, documents, instruction, max_tokens)

    return await engine.run(request, work, respond, engine.deadline(request), needs_all=True)


async def score_pairs(
    request: Request,
    queries: Sequence[str],
    documents: Sequence[str],
    respond: Respond,
    *,
    fields: tuple[str, str],
    instruction: str | None = None,
    max_tokens: int | None = None,
) -> Response:
    """Check the limits, score each document for the query at its position, and respond.

    :param queries: as many as documents, or one for all of them.
    :param fields: the dialect's names for the queries and the documents, for error messages.
    """
    engine: Engine = request.app.state.engine
    _log_query(request, queries[0])

    def work(served: ServedModel, deadline: Deadline) -> DocumentScores:
        check_instruction(instruction, engine.settings)
        check_documents(documents, engine.settings, fields[1])
        positions: dict[str, list[int]] = {}
        for i in range(len(documents)):
            positions.setdefault(queries[i] if len(queries) > 1 else queries[0], []).append(i)
        for query in positions:
            check_query(query, engine.settings, fields[0])
        own = {query: [documents[i] for i in places] for query, places in positions.items()}

        def score_query(query: str) -> DocumentScores:
            return _score(served, deadline, query, own[query], instruction, max_tokens)

        total = sum((_work(served, query, own[query], max_tokens) for query in own), Work(0, 0.0))
        with served.scorer.admitted(total):
            for query in own:  # a query that is too long is an error before anything is scored
                served.model.scorer.room(query, instruction)
            scores = engine.helpers.map(score_query, list(own), on_error=_cancel_request)
        return DocumentScores.join(list(zip(positions.values(), scores, strict=True)))

    return await engine.run(request, work, respond, engine.deadline(request), needs_all=True)


def _work(served: ServedModel, query: str, documents: Sequence[str], max_tokens: int | None) -> Work:
    limit = math.inf if max_tokens is None else max_tokens * _MAX_CHARACTERS_PER_TOKEN
    return Work.of(query, (int(min(len(document), limit)) for document in documents), served.model.manifest)


def _score(
    served: ServedModel,
    deadline: Deadline,
    query: str,
    documents: Sequence[str],
    instruction: str | None,
    max_tokens: int | None,
) -> DocumentScores:
    if max_tokens is not None:
        documents = [_truncate(served.model, document, max_tokens, deadline) for document in documents]
    ranking = served.reranker.rerank_within(deadline, query, documents, instruction=instruction, options=_MODEL_ONLY)
    request = current_request.get()
    if request is not None:
        request.raise_if_canceled()
    if ranking.degraded is not None:
        raise _deadline_error() if deadline.expired else ScorerError(ranking.degraded.message)
    return DocumentScores.from_ranking(ranking, served.model.manifest.score_kind)


def _truncate(model: Model, text: str, max_tokens: int, deadline: Deadline) -> str:
    if len(text) <= max_tokens:  # a token has at least one character
        return text
    if deadline.expired:
        raise _deadline_error()
    offsets = model.scorer.offsets(text)
    return text if len(offsets) <= max_tokens else text[: offsets[max_tokens - 1][1]]


def _deadline_error() -> DeadlineError:
    return DeadlineError("the deadline passed before all documents were scored")


def _cancel_request() -> None:
    """Stop the work of the current request that other threads do."""
    request = current_request.get()
    if request is not None:
        request.cancel()


def _log_query(request: Request, query: str) -> None:
    if request.app.state.settings.log_texts:
        request.state.log_fields["query"] = query
