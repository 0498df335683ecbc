"""Rerankers behind an HTTP API: `tei:http://127.0.0.1:8080`, `cohere:rerank-v3.5`, `vllm:https://host/score#model`."""

from __future__ import annotations

import logging
import math
import random
import re
import threading
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import numpy as np

from mnemorank._internal.deadline import Deadline
from mnemorank._internal.threads import Workers
from mnemorank.artifact.resolve import Artifact
from mnemorank.errors import InputError, MnemorankError, QueryTooLongError, ScorerError
from mnemorank.scorers.encoding import clean
from mnemorank.scorers.protocol import Passage, Scores
from mnemorank.scorers.remote.address import Address
from mnemorank.scorers.remote.client import Answer, HttpClient, Unreachable
from mnemorank.scorers.remote.dialects import Ask

logger = logging.getLogger(__name__)

# A guess at tokens that is rather too high than too low, since the model's own tokenizer is not here.
_TOKEN = re.compile(r"[\u2e80-\u9fff\uac00-\ud7af]|\w{1,4}|[^\w\s]")
_SPECIAL = 8
_LEAST_ROOM = 8
_RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504, 529})
_LONGEST_WAIT = 30.0
_GRACE = 0.05
_ROUNDING = 1e-6


class RemoteScorer:
    """Scores over HTTP, in requests of bounded size, a few at a time.

    The key comes from the environment (the dialect's variables, such as COHERE_API_KEY) and is never shown.

    :param timeout: seconds for one request, from the first byte sent to the last received.
    :param retries: further attempts after a refused, cut or slow request, a 429 or a 5xx.
    :param back_off: seconds before the first of them; doubled each time, with some chance, or what Retry-After says.
    :param concurrency: requests at once, over all calls.
    :param most: documents in one request; the dialect's by default.
    """

    def __init__(
        self,
        artifact: Artifact,
        *,
        timeout: float = 30.0,
        retries: int = 3,
        back_off: float = 0.5,
        concurrency: int = 4,
        most: int | None = None,
    ) -> None:
        _check_options(timeout, retries, back_off, concurrency, most)
        manifest = artifact.manifest
        self.name = manifest.name
        self._max_length = manifest.max_length
        self._is_probability = manifest.score_kind == "probability"
        self._address = Address.parse(manifest.base or manifest.name)
        self._dialect = self._address.dialect
        self._timeout, self._retries, self._back_off = timeout, retries, back_off
        self._most = most or self._dialect.most
        self._client = HttpClient(self._address.url)
        self._closing = threading.Event()
        self._workers = Workers(concurrency, "mnemorank-remote")

    def prepare(self, texts: Sequence[str]) -> list[Passage]:
        return [Passage(text, len(_TOKEN.findall(text))) for text in texts]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        return [match.span() for match in _TOKEN.finditer(text)]

    def room(self, query: str, instruction: str | None = None) -> int:
        asked = len(_TOKEN.findall(query)) + len(_TOKEN.findall(instruction or "")) + _SPECIAL
        if self._max_length - asked < _LEAST_ROOM:
            raise QueryTooLongError(asked, self._max_length)
        return self._max_length - asked

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
            part = texts[first : first + self._most]
            ask = Ask(clean(query), part, self._address.model, instruction, self._max_length)
            given = self._ask(ask, deadline)
            if given is not None:
                scores[first : first + len(part)] = given

        try:
            pending = [self._workers.submit(run, first) for first in range(0, len(texts), self._most)]
        except RuntimeError as error:  # the pool was shut down
            raise ScorerError(f"{self.name}: the model was closed") from error
        given_up = self._wait(pending, deadline)
        if given_up is not None and np.isnan(scores).all():
            raise given_up
        return scores.copy()  # a late answer may still be written to ours

    def close(self) -> None:
        self._closing.set()
        self._workers.shutdown(cancel_futures=True)
        self._client.close()

    def _wait(self, pending: Sequence[Future[None]], deadline: Deadline | None) -> _GivenUpError | None:
        """Wait for the requests of a call. Those given up for want of time leave their documents unscored."""
        given_up = None
        try:
            for future in pending:
                try:
                    future.result(None if deadline is None else deadline.remaining() + _GRACE)
                except _GivenUpError as error:
                    given_up = error
        except TimeoutError:
            pass  # other calls' requests are ahead of ours; what is not here by now is late
        except MnemorankError:
            raise
        except CancelledError as error:
            raise ScorerError(f"{self.name}: the model was closed") from error
        except Exception as error:  # named by its type alone: its message might hold the key
            raise ScorerError(f"{self.name}: the request failed ({type(error).__name__})") from None
        finally:
            for future in pending:
                future.cancel()
        return given_up

    def _ask(self, ask: Ask, deadline: Deadline | None) -> Scores | None:
        """The scores of one request's documents; None where the deadline came first."""
        attempt = 0
        while True:
            limit = Deadline(self._timeout) if deadline is None else deadline.within(self._timeout)
            if limit.expired:
                return None
            problem, wait = self._attempt(ask, limit)
            if not isinstance(problem, str):
                return problem
            if deadline is not None and deadline.expired:
                return None
            if wait is None or attempt >= self._retries:
                tried = f" ({attempt + 1} attempts)" if attempt else ""
                raise ScorerError(f"{self.name}: {problem}{tried}")
            pause = max(wait, self._back_off * 2**attempt * random.uniform(0.5, 1.0))
            if deadline is not None and deadline.remaining() <= pause:
                raise _GivenUpError(f"{self.name}: {problem}; no time to try again")
            logger.info("%s: %s; next attempt in %.1f s", self.name, problem, pause)
            if self._closing.wait(pause):
                raise ScorerError(f"{self.name}: the model was closed")
            attempt += 1

    def _attempt(self, ask: Ask, limit: Deadline) -> tuple[Scores | str, float | None]:
        """Scores, or what went wrong and how long to wait at least before trying again (None: never)."""
        try:
            answer = self._client.post(self._dialect.write(ask), self._headers(), limit)
        except Unreachable as error:
            return self._hidden(str(error)), 0.0
        if answer.status in _RETRIED:
            return self._refusal(answer), _retry_after(answer)
        if answer.status != 200:
            return self._refusal(answer), None
        try:
            pairs = list(self._dialect.read(answer.json()))
        except ValueError as error:
            return f"the answer is not JSON ({self._hidden(str(error)):.80})", 0.0
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            return f"the answer is not {self._dialect.name}'s: {self._hidden(what):.120}", None
        problem = self._flaw(pairs, len(ask.documents))
        if problem is not None:
            return problem, None
        scores = np.empty(len(pairs))
        for index, value in pairs:
            scores[index] = value
        return (np.clip(scores, 0, 1) if self._is_probability else scores), None

    def _flaw(self, pairs: Sequence[tuple[int, float]], asked: int) -> str | None:
        indexes = {index for index, _ in pairs}
        if indexes != set(range(asked)) or len(pairs) != asked:
            known = len(indexes & set(range(asked)))
            return f"the answer is partial: it scores {known} of {asked} documents ({len(pairs)} entries)"
        if not all(math.isfinite(value) for _, value in pairs):
            return "the answer has a score that is not a number"
        if self._is_probability and not all(-_ROUNDING <= value <= 1 + _ROUNDING for _, value in pairs):
            return (
                "the answer has scores outside 0 to 1, which are no probabilities; state score_kind logit in a "
                "mnemorank.json for this model"
            )
        return None

    def _headers(self) -> dict[str, str]:
        key = self._address.key()
        return {"Authorization": f"Bearer {key}"} if key else {}

    def _refusal(self, answer: Answer) -> str:
        reason = self._hidden(_message(answer))
        hint = ""
        if answer.status in (401, 403):
            hint = f"; the key is read from {' or '.join(self._dialect.key_variables)}"
        return f"the server answered {answer.status}{f': {reason}' if reason else ''}{hint}"

    def _hidden(self, text: str) -> str:
        """A server may repeat the key it was given; we do not."""
        key = self._address.key()
        return text.replace(key, "***") if key else text


class _GivenUpError(ScorerError):
    """The server failed, and the deadline left no time for another attempt."""


def _message(answer: Answer) -> str:
    """The reason in an error body of any dialect."""
    try:
        body = answer.json()
    except ValueError:
        return ""
    for name in ("message", "detail", "error"):
        value = body.get(name) if isinstance(body, dict) else None
        if isinstance(value, dict):
            value = value.get("message")
        if isinstance(value, str) and value:
            return value[:200]
    return ""


def _retry_after(answer: Answer) -> float:
    value = next((text for name, text in answer.headers.items() if name.lower() == "retry-after"), "").strip()
    try:
        wait = float(value) if value else 0.0
    except ValueError:
        try:
            wait = (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds()
        except (ValueError, TypeError):
            return 0.0
    return min(max(wait, 0.0), _LONGEST_WAIT) if math.isfinite(wait) else 0.0


def _check_options(timeout: Any, retries: Any, back_off: Any, concurrency: Any, most: Any) -> None:
    for name, value, low in (("retries", retries, 0), ("concurrency", concurrency, 1), ("most", most or 1, 1)):
        if not isinstance(value, int) or value < low:
            raise InputError(f"expected a whole number from {low}, got {value!r}", field=name)
    if not timeout > 0:
        raise InputError(f"expected a number of seconds above 0, got {timeout!r}", field="timeout")
    if not back_off >= 0:
        raise InputError(f"expected a number of seconds from 0, got {back_off!r}", field="back_off")
