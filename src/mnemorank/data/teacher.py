"""Graded labels from a language model behind an OpenAI-compatible API."""

from __future__ import annotations

import json
import math
import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from mnemorank._internal.deadline import Deadline
from mnemorank.artifact.formats import format_memory
from mnemorank.data.examples import Example
from mnemorank.data.formats import GRADED_RELEVANT_FROM
from mnemorank.data.teacher_cache import GradeCache, pair_key
from mnemorank.errors import InputError, MnemorankError
from mnemorank.memory.memory import Memory
from mnemorank.ranking.first_stage import memories_bm25
from mnemorank.scorers.remote.client import ConnectionFailedError, HttpClient, HttpResponse

_RETRY_STATUSES = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_MAX_WAIT = 60.0


class TeacherError(MnemorankError):
    """Some pairs could not be graded. Those that were are in the cache."""


@dataclass(slots=True)
class LabelingCost:
    """Requests, tokens and money spent so far.

    :param price_in: price of a million input tokens.
    :param price_out: price of a million output tokens.
    """

    requests: int = 0
    retries: int = 0
    graded: int = 0
    from_cache: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    price_in: float = 0.0
    price_out: float = 0.0

    @property
    def money(self) -> float:
        return (self.input_tokens * self.price_in + self.output_tokens * self.price_out) / 1e6

    def __str__(self) -> str:
        price = f", price {self.money:.4f}" if self.price_in or self.price_out else ""
        return (
            f"{self.graded} pairs graded in {self.requests} requests ({self.retries} retries), {self.from_cache} from "
            f"the cache; {self.input_tokens} input and {self.output_tokens} output tokens{price}"
        )


@dataclass(frozen=True, slots=True)
class TeacherSettings:
    """Which model grades, and how it is called.

    :param url: the API's base URL, up to `/v1`; `/chat/completions` is added.
    :param key: sent as a bearer token.
    :param pairs_per_request: memories of one query graded in a request.
    :param concurrency: simultaneous requests.
    :param timeout: seconds for one attempt, from connecting to the last byte.
    :param max_attempts: attempts per request.
    :param initial_backoff: seconds before the second attempt; doubled each time, with jitter. A longer `Retry-After`
        takes precedence.
    :param price_in: price of a million input tokens, for the cost report.
    :param price_out: price of a million output tokens.
    """

    url: str
    model: str
    key: str | None = field(default=None, repr=False)
    pairs_per_request: int = 10
    concurrency: int = 4
    timeout: float = 60.0
    max_attempts: int = 6
    initial_backoff: float = 1.0
    price_in: float = 0.0
    price_out: float = 0.0

    def __post_init__(self) -> None:
        if urlsplit(self.url).scheme not in ("http", "https") or not urlsplit(self.url).hostname:
            raise InputError(f"expected an http:// or https:// URL, got {self.url!r}", field="url")
        for name in ("pairs_per_request", "concurrency", "max_attempts"):
            if getattr(self, name) < 1:
                raise InputError(f"expected a whole number from 1, got {getattr(self, name)!r}", field=name)


class Teacher:
    """Grades pairs of query and memory. Close it, or use it in a `with` block."""

    def __init__(self, settings: TeacherSettings, cache: GradeCache | None = None) -> None:
        self.settings = settings
        self.cost = LabelingCost(price_in=settings.price_in, price_out=settings.price_out)
        self._cache = cache or GradeCache(None)
        self._client = HttpClient(urlsplit(settings.url.rstrip("/") + "/chat/completions"))
        self._lock = threading.Lock()

    def __enter__(self) -> Teacher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._client.close()
        self._cache.close()

    def label(
        self,
        examples: Iterable[Example],
        *,
        ranks: tuple[int, int] = (1, 30),
        on_graded: Callable[[int], None] | None = None,
    ) -> list[Example]:
        """Return the examples with the teacher's grades as labels; grades from 0.5 count as relevant.

        Candidates within `ranks` are graded. Of the others, those labeled above 0 are kept with their label.

        :param ranks: first and last first-stage rank to grade.
        :param on_graded: called after each request with the number of pairs graded.
        """
        selected = [(example, positions_by_rank(example, *ranks)) for example in examples]
        queries = [(example.query, [example.memories[i] for i in positions]) for example, positions in selected]
        grades = self.grade(queries, on_graded)
        return [_with_grades(*pair, values) for pair, values in zip(selected, grades, strict=True)]

    def grade(
        self, queries: Sequence[tuple[str, Sequence[Memory]]], on_graded: Callable[[int], None] | None = None
    ) -> list[list[float]]:
        """Return a grade for each memory of each query. Only pairs that are not in the cache are sent."""
        texts = [[format_memory(memory) for memory in memories] for _, memories in queries]
        pending: list[tuple[str, list[str]]] = []
        pending_pairs: set[tuple[str, str]] = set()
        for (query, _), memory_texts in zip(queries, texts, strict=True):
            new = [text for text in dict.fromkeys(memory_texts) if (query, text) not in pending_pairs]
            new = [text for text in new if self._cached(query, text) is None]
            pending_pairs.update((query, text) for text in new)
            self.cost.from_cache += len(memory_texts) - len(new)
            size = self.settings.pairs_per_request
            pending += [(query, new[start : start + size]) for start in range(0, len(new), size)]
        self._send_all(pending, on_graded)
        pairs = zip(queries, texts, strict=True)
        return [[self._require(query, text) for text in memory_texts] for (query, _), memory_texts in pairs]

    def _send_all(self, pending: Sequence[tuple[str, list[str]]], on_graded: Callable[[int], None] | None) -> None:
        failures: list[Exception] = []
        with ThreadPoolExecutor(self.settings.concurrency, thread_name_prefix="teacher") as pool:
            futures: list[Future[int]] = [pool.submit(self._send, query, texts) for query, texts in pending]
            try:
                for future in futures:
                    try:
                        count = future.result()
                    except TeacherError as error:
                        failures.append(error)
                        if isinstance(error, _RefusedError):
                            break  # further requests would be refused too
                    else:
                        if on_graded is not None:
                            on_graded(count)
            finally:
                for future in futures:
                    future.cancel()
        if failures:
            raise TeacherError(
                f"{self.settings.url}: {len(failures)} of {len(pending)} requests failed, the first: {failures[0]}; "
                "pairs graded so far are in the cache; run again to continue"
            )

    def _send(self, query: str, texts: list[str]) -> int:
        """Send a request until it gets a valid response; return the number of pairs graded."""
        body = request_body(self.settings.model, query, texts)
        headers = {"Authorization": f"Bearer {self.settings.key}"} if self.settings.key else {}
        problem = ""
        for attempt in range(self.settings.max_attempts):
            retry_after = 0.0
            if attempt:
                with self._lock:
                    self.cost.retries += 1
            try:
                with self._lock:
                    self.cost.requests += 1
                response = self._client.post(body, headers, Deadline(self.settings.timeout))
                if response.status == 200:
                    grades = self._read(response, len(texts))
                    for text, grade in zip(texts, grades, strict=True):
                        self._cache.put(self._key(query, text), grade)
                    with self._lock:
                        self.cost.graded += len(texts)
                    return len(texts)
                problem = f"status {response.status}: {response.content[:200].decode(errors='replace')}"
                if response.status not in _RETRY_STATUSES:
                    raise _RefusedError(problem)
                retry_after = response.retry_after()
            except ConnectionFailedError as error:
                problem = str(error)
            except _MalformedError as error:
                problem = f"invalid response: {error}"
            if attempt + 1 < self.settings.max_attempts:
                wait = self.settings.initial_backoff * 2**attempt * random.uniform(0.5, 1.0)
                time.sleep(min(max(wait, retry_after), _MAX_WAIT))
        raise TeacherError(f"{problem} ({self.settings.max_attempts} attempts)")

    def _read(self, response: HttpResponse, count: int) -> list[float]:
        """Return the grades in order. Tokens are counted even if the response is invalid, since they are billed."""
        try:
            data = response.json()
            usage = data.get("usage") or {}
            with self._lock:
                self.cost.input_tokens += int(usage.get("prompt_tokens") or 0)
                self.cost.output_tokens += int(usage.get("completion_tokens") or 0)
            listed = json.loads(data["choices"][0]["message"]["content"])["grades"]
            grades = {int(entry["memory"]): float(entry["grade"]) for entry in listed}
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise _MalformedError(f"{type(error).__name__}: {error}") from None
        if sorted(grades) != list(range(1, count + 1)):
            raise _MalformedError(f"expected grades for memories 1 to {count}, got {sorted(grades)}")
        for grade in grades.values():
            if not any(math.isclose(grade, allowed, abs_tol=1e-6) for allowed in GRADES):
                raise _MalformedError(f"expected grades from {GRADES}, got {grade}")
        return [round(grades[number], 1) for number in range(1, count + 1)]

    def _key(self, query: str, text: str) -> str:
        return pair_key(self.settings.model, PROMPT, query, text)

    def _cached(self, query: str, text: str) -> float | None:
        return self._cache.get(self._key(query, text))

    def _require(self, query: str, text: str) -> float:
        grade = self._cached(query, text)
        if grade is None:
            raise TeacherError(f"no grade for {text!r:.60}")
        return grade


class _RefusedError(TeacherError):
    """The API refuses the request; a retry would not help."""


class _MalformedError(Exception):
    """The response is not in the requested format; a retry may help."""


def positions_by_rank(example: Example, first: int, last: int) -> list[int]:
    """Return the positions of the candidates at the given first-stage ranks, by their own scores or else by BM25."""
    if not 1 <= first <= last:
        raise InputError(f"expected 1 ≤ first ≤ last, got {first} and {last}", field="ranks")
    own_scores = [memory.first_stage_score for memory in example.memories]
    if any(score is None for score in own_scores):
        scores = memories_bm25(example.query, example.memories)
    else:
        scores = np.array(own_scores, dtype=np.float64)
    ranked = [int(i) for i in np.argsort(-scores, kind="stable") if example.memories[int(i)].text.strip()]
    return ranked[first - 1 : last]


def _with_grades(example: Example, positions: Sequence[int], grades: Sequence[float]) -> Example:
    graded = dict(zip(positions, grades, strict=True))
    kept = [
        replace(candidate, label=graded.get(position, candidate.label))
        for position, candidate in enumerate(example.candidates)
        if position in graded or candidate.label > 0
    ]
    return replace(example, candidates=tuple(kept), pairs=(), relevant_from=GRADED_RELEVANT_FROM)


GRADES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
PROMPT = (
    "You grade how well memories answer a question that is put to the person's assistant. For each memory give one of "
    "0, 0.2, 0.4, 0.6, 0.8, 1: 1 answers the question fully, 0.8 nearly, 0.6 answers a part of it, 0.4 is about the "
    "same thing and helps a little, 0.2 only shares a topic, 0 has nothing to do with it. A memory that was true once "
    "and has been superseded does not answer a question about now. Judge each memory by itself. Answer with JSON only: "
    '{"grades": [{"memory": 1, "grade": 0.4}, …]}, one entry for each memory.'
)
SCHEMA = {
    "type": "object",
    "properties": {
        "grades": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"memory": {"type": "integer"}, "grade": {"type": "number", "enum": list(GRADES)}},
                "required": ["memory", "grade"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["grades"],
    "additionalProperties": False,
}


def request_body(model: str, query: str, texts: Sequence[str]) -> dict[str, Any]:
    """Return the body of a chat completion request."""
    memories = "\n".join(f"{number}. {text}" for number, text in enumerate(texts, 1))
    return {
        "model": model,
        "temperature": 0,
        "messages": [
            {"role": "system", "content": PROMPT},
            {"role": "user", "content": f"Question: {query}\n\nMemories:\n{memories}"},
        ],
        "response_format": {"type": "json_schema", "json_schema": {"name": "grades", "strict": True, "schema": SCHEMA}},
    }
