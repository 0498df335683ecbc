"""Ranking for the dialect routes: the pipeline, or the model alone, and scores in the order of the request."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from fastapi import Request, Response

from mnemorank import Options, Ranking
from mnemorank._internal.arrays import logit
from mnemorank._internal.deadline import Deadline
from mnemorank.errors import ScorerError
from mnemorank.learning.events import RerankEvent
from mnemorank.memory.memory import Memory
from mnemorank.model.model import Model
from mnemorank.server.admission import Work
from mnemorank.server.auth import resolve_tenant
from mnemorank.server.documents import Document, PipelineChoice, read_documents
from mnemorank.server.engine import Completed, Engine
from mnemorank.server.errors import DeadlineError
from mnemorank.server.event_log import record_event
from mnemorank.server.model_slot import ServedModel
from mnemorank.server.requests import check_documents, check_instruction, check_query, current_request

_MODEL_ONLY = Options.model_only()
_EMPTY_LOGIT = float(logit(np.zeros(1))[0])
_MAX_CHARACTERS_PER_TOKEN = 6
_MAX_WARNING, _MAX_WARNINGS_HEADER = 300, 2000


@dataclass(frozen=True, slots=True)
class DocumentScores:
    """Scores of documents, in the order of the request. An empty document has a relevance of 0.

    :param relevance: calibrated, in [0, 1]; after the whole pipeline, the ranking score, which has its order.
    :param logits: the model's own scores; after the whole pipeline, the logits of the ranking scores.
    :param passages: for documents read in windows, the window that scored best.
    :param texts: of the documents.
    :param warnings: what was ignored.
    :param event_id: of the event in the feedback log, if there is one.
    """

    relevance: list[float]
    logits: list[float]
    passages: list[str | None]
    texts: Sequence[str] = ()
    warnings: tuple[str, ...] = ()
    event_id: str | None = None

    @classmethod
    def from_ranking(cls, ranking: Ranking, score_kind: str, *, is_full: bool = False) -> DocumentScores:
        scores = cls([0.0] * len(ranking), [_EMPTY_LOGIT] * len(ranking), [None] * len(ranking))
        for result in ranking:
            i, relevance, raw = result.index, result.relevance, result.raw_score
            scores.passages[i] = result.passage
            if result.score is None or relevance is None or raw is None:
                continue
            scores.relevance[i] = result.score if is_full else relevance
            is_logit = score_kind != "probability" and not is_full
            scores.logits[i] = raw if is_logit else float(logit(np.array([result.score if is_full else raw]))[0])
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


async def rank_documents(
    request: Request,
    query: str,
    documents: Sequence[Document],
    respond: Respond,
    *,
    pipeline: PipelineChoice | None = None,
    top_n: int | None = None,
    field: str = "documents",
    rank_fields: Sequence[str] = (),
    instruction: str | None = None,
    max_tokens: int | None = None,
) -> Response:
    """Check the limits, rank the documents for the query, log the event, and respond.

    :param pipeline: the request's choice, if it has one; see `read_documents`.
    :param top_n: how many results the response has, for the event.
    :param field: the dialect's name for the documents, for error messages.
    :param max_tokens: read only this many tokens of each document.
    """
    engine: Engine = request.app.state.engine
    settings = engine.settings
    tenant = resolve_tenant(request.state.caller, None)
    _log_query(request, query)

    def work(served: ServedModel, deadline: Deadline) -> DocumentScores:
        check_query(query, settings)
        check_instruction(instruction, settings)
        read = read_documents(documents, pipeline or settings.pipeline, settings, field=field, rank_fields=rank_fields)
        with served.scorer.admitted(_work(served, query, read.texts, max_tokens)):
            served.model.scorer.room(query, instruction)  # raises QueryTooLongError, as other servers do
            options = served.reranker.options if read.is_full else _MODEL_ONLY
            ranking = _rank(served, deadline, query, read.memories, instruction, max_tokens, options)
        scores = DocumentScores.from_ranking(ranking, served.model.manifest.score_kind, is_full=read.is_full)
        return replace(
            scores,
            texts=read.texts,
            warnings=tuple(dict.fromkeys([*read.warnings, *ranking.warnings])),
            event_id=_record(request, query, ranking, top_n, served, tenant),
        )

    def respond_with_headers(completed: Completed[DocumentScores]) -> Response:
        response = respond(completed)
        response.headers.update(_headers(completed.value))
        return response

    return await engine.run(request, work, respond_with_headers, engine.deadline(request), needs_all=True)


def _record(
    request: Request, query: str, ranking: Ranking, top_n: int | None, served: ServedModel, tenant: str | None
) -> str | None:
    """Record the event of a ranking if there is a log; return its id if it was stored."""
    if request.app.state.event_log is None:
        return None
    shown = replace(ranking, results=ranking.results[:top_n])
    event = RerankEvent.from_ranking(query, shown, served.label, tenant=tenant)
    return event.id if record_event(request, event) else None


def _headers(scores: DocumentScores) -> dict[str, str]:
    """Return what the dialects have no field for: the id of the event, and what was ignored, as JSON."""
    headers = {} if scores.event_id is None else {"x-mnemorank-event": scores.event_id}
    shown: list[str] = []
    for warning in scores.warnings:
        if len(json.dumps([*shown, warning[:_MAX_WARNING]])) > _MAX_WARNINGS_HEADER:
            break
        shown.append(warning[:_MAX_WARNING])
    return {**headers, "x-mnemorank-warnings": json.dumps(shown)} if shown else headers


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
            memories = [Memory(text) for text in own[query]]
            ranking = _rank(served, deadline, query, memories, instruction, max_tokens, _MODEL_ONLY)
            return DocumentScores.from_ranking(ranking, served.model.manifest.score_kind)

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


def _rank(
    served: ServedModel,
    deadline: Deadline,
    query: str,
    memories: Sequence[Memory],
    instruction: str | None,
    max_tokens: int | None,
    options: Options,
) -> Ranking:
    if max_tokens is not None:
        memories = [
            replace(memory, text=_truncate(served.model, memory.text, max_tokens, deadline)) for memory in memories
        ]
    ranking = served.reranker.rerank_within(deadline, query, memories, instruction=instruction, options=options)
    request = current_request.get()
    if request is not None:
        request.raise_if_canceled()
    if ranking.degraded is not None:
        raise _deadline_error() if deadline.expired else ScorerError(ranking.degraded.message)
    return ranking


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
