"""Any reranker behind HTTP that speaks Cohere's, Jina's or TEI's dialect."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from mnemorank.errors import ScorerError
from mnemorank.evaluation.baselines.base import Answer, Floats, Question


class HttpReranker:
    """The path tells the dialect: `/v1/…` (Jina) and `/v2/…` (Cohere) take documents, any other takes TEI's texts.

    :param url: of the rerank route; a bare host stands for its `/v2/rerank`.
    """

    # What answers behind an address may change from day to day: its results are not cached.
    fingerprint = ""

    def __init__(self, url: str, timeout: float = 120.0, model: str = "default") -> None:
        parts = urlsplit(url)
        self.name = url
        self._url = url.rstrip("/") + "/v2/rerank" if parts.path in ("", "/") else url
        self._takes_documents = urlsplit(self._url).path.startswith(("/v1/", "/v2/"))
        self._timeout, self._model = timeout, model

    def answer(self, question: Question) -> Answer:
        texts = [memory.text for memory in question.memories]
        if self._takes_documents:
            body = {"model": self._model, "query": question.query, "documents": texts, "top_n": len(texts)}
        else:
            body = {"query": question.query, "texts": texts, "truncate": True}
        return Answer(self._scores(self._post(body), len(texts)))

    def _post(self, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(
            self._url, json.dumps(body).encode(), {"Content-Type": "application/json"}, method="POST"
        )
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                said = error.read(300).decode(errors="replace")
            raise ScorerError(f"{self._url}: answered {error.code}: {said}") from None
        except (OSError, ValueError) as error:
            raise ScorerError(f"{self._url}: {error}") from None

    def _scores(self, answer: Any, count: int) -> Floats:
        results: Any = answer.get("results") if isinstance(answer, dict) else answer
        scores = np.full(count, -np.inf)
        try:
            for result in results:
                scores[int(result["index"])] = float(result.get("relevance_score", result.get("score")))
        except (TypeError, KeyError, IndexError, ValueError, AttributeError):
            raise ScorerError(f"{self._url}: expected results with index and score, got {answer!r:.120}") from None
        return scores
