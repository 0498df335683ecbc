"""Rerankers behind an HTTP API: `tei:http://127.0.0.1:8080`, `cohere:rerank-v3.5`, `vllm:https://host/score#model`."""

from __future__ import annotations

import logging
import math
import random
import re
import threading
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from typing import NamedTuple

import numpy as np

from mnemorank._internal.deadline import Deadline
from mnemorank._internal.threads import Workers
from mnemorank._internal.validation import check_number
from mnemorank.artifact.resolve import Artifact
from mnemorank.errors import InputError, MnemorankError, QueryTooLongError, ScorerError
from mnemorank.scorers.encoding import clean
from mnemorank.scorers.protocol import Passage, Scores
from mnemorank.scorers.remote.address import Address
from mnemorank.scorers.remote.client import ConnectionFailedError, HttpClient, HttpResponse
from mnemorank.scorers.remote.dialects import RerankRequest

logger = logging.getLogger(__name__)

# The model's tokenizer is not available here; this pattern overestimates the number of tokens.
_TOKEN = re.compile(r"[\u2e80-\u9fff\uac00-\ud7af]|\w{1,4}|[^\w\s]")
_SPECIAL_TOKENS = 8
_MIN_ROOM = 8
_RETRY_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504, 529})
_MAX_RETRY_AFTER = 30.0
_GRACE = 0.05
_ROUNDING = 1e-6


class RemoteScorer:
    """Scores over HTTP, in requests of bounded size, a few at a time.

    The API key comes from the environment (the variables of the dialect, such as COHERE_API_KEY) and is never shown.

    :param timeout: seconds for one request, from the first byte sent to the last one received.
    :param retries: further attempts after a connection error, a timeout, a 429 or a 5xx.
    :param backoff: seconds before the first retry, doubled each time, with jitter; `Retry-After` can prolong it.
    :param concurrency: requests at once, over all calls.
    :param max_documents: documents in one request; by default as many as the dialect allows.
    """

    def __init__(
        self,
        artifact: Artifact,
        *,
        timeout: float = 30.0,
        retries: int = 3,
        backoff: float = 0.5,
        concurrency: int = 4,
        max_documents: int | None = None,
    ) -> None:
        if not timeout > 0:
            raise InputError(f"expected a number of seconds above 0, got {timeout!r}", field="timeout")
        check_number("retries", retries, 0, whole=True)
        check_number("backoff", backoff, 0)
        check_number("concurrency", concurrency, 1, whole=True)
        if max_documents is not None:
            check_number("max_documents", max_documents, 1, whole=True)
        manifest = artifact.manifest
        self.name = manifest.name
        self._max_length = manifest.max_length
        self._is_probability = manifest.score_kind == "probability"
        self._address = Address.parse(manifest.base or manifest.name)
        self._dialect = self._address.dialect
        self._timeout, self._retries, self._backoff = timeout, retries, backoff
        self._max_documents = max_documents or self._dialect.max_documents
        self._client = HttpClient(self._address.url)
        self._closing = threading.Event()
        self._workers = Workers(concurrency, "mnemorank-remote")

    def prepare(self, texts: Sequence[str]) -> list[Passage]:
        return [Passage(text, _count_tokens(text)) for text in texts]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        return [match.span() for match in _TOKEN.finditer(text)]

    def room(self, query: str, instruction: str | None = None) -> int:
        used = _count_tokens(query) + _count_tokens(instruction or "") + _SPECIAL_TOKENS
        if self._max_length - used < _MIN_ROOM:
            raise QueryTooLongError(used, self._max_length)
        return self._max_length - used

    def score(
        self,
        query: str,
        passages: Sequence[Passage],
        *,
        instruction: str | None = None,
        deadline: Deadline | None = None,
    ) -> Scores:
        scores = np.full(len(passages), np.nan)
        texts = [clean(passage.text) for passage in passages]

        def run(first: int) -> None:
            part = texts[first : first + self._max_documents]
            request = RerankRequest(clean(query), part, self._address.model, instruction, self._max_length)
            received = self._send(request, deadline)
            if received is not None:
                scores[first : first + len(part)] = received

        try:
            pending = [self._workers.submit(run, first) for first in range(0, len(texts), self._max_documents)]
        except RuntimeError as error:  # the pool was shut down
            raise ScorerError(f"{self.name}: the model was closed") from error
        out_of_time = self._wait(pending, deadline)
        if out_of_time is not None and np.isnan(scores).all():
            raise out_of_time
        return scores.copy()  # a late response may still be written to the original

    def close(self) -> None:
        self._closing.set()
        self._workers.shutdown(cancel_futures=True)
        self._client.close()

    def _wait(self, pending: Sequence[Future[None]], deadline: Deadline | None) -> _OutOfTimeError | None:
        """Wait for the requests of a call, at most until the deadline; return the error of one that ran out of time."""
        out_of_time = None
        try:
            for future in pending:
                try:
                    future.result(None if deadline is None else deadline.timeout(_GRACE))
                except _OutOfTimeError as error:
                    out_of_time = error
        except TimeoutError:
            pass  # documents without a response by now stay unscored
        except MnemorankError:
            raise
        except CancelledError as error:
            raise ScorerError(f"{self.name}: the model was closed") from error
        except Exception as error:  # the message might contain the key
            raise ScorerError(f"{self.name}: the request failed ({type(error).__name__})") from None
        finally:
            for future in pending:
                future.cancel()
        return out_of_time

    def _send(self, request: RerankRequest, deadline: Deadline | None) -> Scores | None:
        """Return the scores of the documents, retrying if needed; None if the deadline expires first."""
        attempt = 0
        while True:
            limit = Deadline(self._timeout) if deadline is None else deadline.within(self._timeout)
            if limit.expired:
                return None
            outcome = self._attempt(request, limit)
            if not isinstance(outcome, _Failure):
                return outcome
            if deadline is not None and deadline.expired:
                return None
            if not outcome.is_retryable or attempt >= self._retries:
                attempts = f" ({attempt + 1} attempts)" if attempt else ""
                raise ScorerError(f"{self.name}: {outcome.reason}{attempts}")
            pause = max(outcome.retry_after, self._backoff * 2**attempt * random.uniform(0.5, 1.0))
            if deadline is not None and deadline.remaining() <= pause:
                raise _OutOfTimeError(f"{self.name}: {outcome.reason}; no time left to retry")
            logger.info("%s: %s; retrying in %.1f s", self.name, outcome.reason, pause)
            if self._closing.wait(pause):
                raise ScorerError(f"{self.name}: the model was closed")
            attempt += 1

    def _attempt(self, request: RerankRequest, limit: Deadline) -> Scores | _Failure:
        try:
            response = self._client.post(self._dialect.write(request), self._headers(), limit)
        except ConnectionFailedError as error:
            return _Failure(self._redacted(str(error)), is_retryable=True)
        if response.status in _RETRY_STATUSES:
            wait = min(response.retry_after(), _MAX_RETRY_AFTER)
            return _Failure(self._describe(response), is_retryable=True, retry_after=wait)
        if response.status != 200:
            return _Failure(self._describe(response))
        try:
            entries = list(self._dialect.read(response.json()))
        except ValueError as error:
            return _Failure(f"the response is not JSON ({self._redacted(str(error)):.80})", is_retryable=True)
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            return _Failure(f"not a response of the {self._dialect.name} API: {self._redacted(reason):.120}")
        problem = self._check(entries, len(request.documents))
        if problem is not None:
            return _Failure(problem)
        scores = np.empty(len(entries))
        for index, value in entries:
            scores[index] = value
        return np.clip(scores, 0, 1) if self._is_probability else scores

    def _check(self, entries: Sequence[tuple[int, float]], count: int) -> str | None:
        """Return what is wrong with the scores of `count` documents, if anything."""
        indexes = {index for index, _ in entries}
        if indexes != set(range(count)) or len(entries) != count:
            known = len(indexes & set(range(count)))
            return f"incomplete response: {known} of {count} documents scored ({len(entries)} entries)"
        if not all(math.isfinite(value) for _, value in entries):
            return "the response contains a score that is not a number"
        if self._is_probability and not all(-_ROUNDING <= value <= 1 + _ROUNDING for _, value in entries):
            return 'expected scores from 0 to 1; for logits, set "score_kind": "logit" in a manifest for this model'
        return None

    def _headers(self) -> dict[str, str]:
        key = self._address.key()
        return {"Authorization": f"Bearer {key}"} if key else {}

    def _describe(self, response: HttpResponse) -> str:
        message = self._redacted(_message(response))
        hint = ""
        if response.status in (401, 403):
            hint = f"; set the API key in {' or '.join(self._dialect.key_variables)}"
        return f"HTTP {response.status}{f': {message}' if message else ''}{hint}"

    def _redacted(self, text: str) -> str:
        """Return the text without the key, which a server may repeat."""
        key = self._address.key()
        return text.replace(key, "***") if key else text


class _Failure(NamedTuple):
    """A failed attempt.

    :param retry_after: the least number of seconds before the next attempt.
    """

    reason: str
    is_retryable: bool = False
    retry_after: float = 0.0


class _OutOfTimeError(ScorerError):
    """The server failed, and the deadline leaves no time for a retry."""


def _count_tokens(text: str) -> int:
    return len(_TOKEN.findall(text))


def _message(response: HttpResponse) -> str:
    """Return the message in the error body of any dialect."""
    try:
        body = response.json()
    except ValueError:
        return ""
    for name in ("message", "detail", "error"):
        value = body.get(name) if isinstance(body, dict) else None
        if isinstance(value, dict):
            value = value.get("message")
        if isinstance(value, str) and value:
            return value[:200]
    return ""
