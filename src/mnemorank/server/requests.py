"""Requests: strict JSON, size limits, and the state of a request in progress."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from mnemorank._internal.deadline import Deadline
from mnemorank.errors import MnemorankError
from mnemorank.memory.memory import ALIASES, Memory
from mnemorank.memory.records import HOLDERS
from mnemorank.server.errors import Problem, RequestCanceledError, as_problem
from mnemorank.server.settings import ServerSettings

MAX_NAME_LENGTH = 256
# Bodies from this size on are parsed in a thread: 32 MB would hold up the event loop for a second and more.
_LARGE_BODY = 32 * 1024
# Commas and colons in a body. Parsing holds the interpreter's lock, so 9 million empty objects would hold up every
# thread for a second, wherever they are parsed, and take 600 MB.
_MAX_SEPARATORS = 2_000_000
_Records: TypeAlias = dict[tuple[str, ...], dict[str, Any]]
# Lists under these names are read as one string.
_JOINED = (*ALIASES["context"], *ALIASES["entities"])
# Lists under these names are ids of other memories of the request.
_REFERENCES = ("supersedes", "superseded_by")


class ActiveRequest:
    """A request in progress: its deadline, its cancellation and what it costs.

    :param deadline: also expires when the request is canceled.
    :param needs_all: partial results are useless to the client, so pairs may be scored in any order.

    `on_scored` is set while the request is admitted; it takes the pairs and characters that were scored.
    """

    def __init__(self, deadline: Deadline | None = None, *, needs_all: bool = False) -> None:
        self.deadline = deadline or Deadline(math.inf)
        self.needs_all = needs_all
        self.pairs = 0
        self.tokens = 0
        self.queue_seconds = 0.0
        self.inference_seconds = 0.0
        self.on_scored: Callable[[int, int], None] | None = None
        self._lock = threading.Lock()
        self._canceled = False
        self._callbacks: list[Callable[[], None]] = []

    def cancel(self) -> None:
        """Stop the work of the request, now and in future."""
        self.deadline.cancel()
        with self._lock:
            self._canceled = True
            callbacks = list(self._callbacks)
        for callback in callbacks:
            callback()

    @contextmanager
    def on_cancel(self, callback: Callable[[], None]) -> Iterator[None]:
        """Call the callback if the request is canceled inside the block."""
        with self._lock:
            self._callbacks.append(callback)
        try:
            self.raise_if_canceled()
            yield
            self.raise_if_canceled()
        finally:
            with self._lock:
                self._callbacks.remove(callback)

    def raise_if_canceled(self) -> None:
        if self._canceled:
            raise RequestCanceledError("the request was canceled")

    def add_usage(self, pairs: int, tokens: int) -> None:
        with self._lock:
            self.pairs += pairs
            self.tokens += tokens

    def add_scored(self, pairs: int, characters: int) -> None:
        if self.on_scored is not None:
            self.on_scored(pairs, characters)

    def add_seconds(self, queue: float, inference: float) -> None:
        with self._lock:
            self.queue_seconds += queue
            self.inference_seconds += inference


current_request: ContextVar[ActiveRequest | None] = ContextVar("mnemorank_request", default=None)


def check_query(query: str, settings: ServerSettings, field: str = "query") -> None:
    if not query.strip():
        raise Problem(422, "empty_query", f"{field}: is empty", field=field)
    _check_length(query, field, "max_query_chars", settings)


def check_instruction(instruction: str | None, settings: ServerSettings) -> None:
    """Apply the limit of queries: like the query, the instruction is read with every document."""
    if instruction is not None:
        _check_length(instruction, "instruction", "max_query_chars", settings)


def check_documents(texts: Sequence[str], settings: ServerSettings, field: str = "documents") -> None:
    check_count(len(texts), settings, field)
    for position, text in enumerate(texts):
        check_document(text, f"{field}.{position}", settings)


def check_document(text: str, field: str, settings: ServerSettings) -> None:
    _check_length(text, field, "max_document_chars", settings)


def check_count(count: int, settings: ServerSettings, field: str) -> None:
    if count == 0:
        raise Problem(400, "empty", f"{field}: is empty", field=field)
    if count > settings.max_documents:
        raise _too_large(field, f"{count} entries", "max_documents", settings)


def check_memory(memory: str | dict[str, Any], position: int, text_field: str | None, settings: ServerSettings) -> int:
    """Apply the limits to every string of a memory, and check its id.

    :returns: the number of characters in all strings.
    """
    characters = check_strings(memory, f"memories.{position}", text_field, settings)
    if isinstance(memory, dict):
        _check_id(memory, _records(memory, text_field), position, text_field)
    return characters


def check_strings(memory: str | dict[str, Any], name: str, text_field: str | None, settings: ServerSettings) -> int:
    """Apply the limit of documents to every string of a memory, since any may be its text.

    :param name: the path of the memory, for errors.
    :returns: the number of characters in all strings.
    """
    characters = 0
    for path, text in _strings(memory, name):
        characters += len(text)
        if len(text) > settings.max_document_chars:
            _check_length(text, ".".join(map(str, path)), "max_document_chars", settings)
    if isinstance(memory, str):
        return characters
    records = _records(memory, text_field)
    for place, record in records.items():
        for field in _JOINED:
            if isinstance(record.get(field), list):
                size = sum(len(text) for _, text in _strings(record[field], field))
                if size > settings.max_document_chars:
                    path = ".".join((name, *place, field))
                    raise _too_large(path, f"{size} characters", "max_document_chars", settings)
        for field in _REFERENCES:
            count = len(record[field]) if isinstance(record.get(field), list) else 0
            if count > settings.max_documents:
                path = ".".join((name, *place, field))
                raise _too_large(path, f"{count} entries", "max_documents", settings)
    return characters


def _check_length(text: str, field: str, setting: str, settings: ServerSettings) -> None:
    if len(text) > getattr(settings, setting):
        raise _too_large(field, f"{len(text)} characters", setting, settings)


def _too_large(field: str, size: str, setting: str, settings: ServerSettings) -> Problem:
    message = f"{field}: has {size}, more than {setting} = {getattr(settings, setting)}"
    return Problem(422, "limit", message, field=field)


def _check_id(memory: dict[str, Any], records: _Records, position: int, text_field: str | None) -> None:
    """Refuse an id that is too long for the feedback routes."""
    long_ids = {
        str(record[key]): (*place, key)
        for place, record in records.items()
        for key in ALIASES["id"]
        if isinstance(record.get(key), (str, int)) and len(str(record[key])) > MAX_NAME_LENGTH
    }
    if not long_ids:
        return
    # Whether it is the id, the text or other metadata is known only after reading the memory.
    read = Memory.of(memory, field=text_field, path=f"memories.{position}", on_error="skip", report=lambda _: None)
    if read.id in long_ids:
        field = ".".join(("memories", str(position), *long_ids[read.id]))
        message = f"{field}: has {len(read.id)} characters, more than the {MAX_NAME_LENGTH} of an id"
        raise Problem(422, "limit", message, field=field)


def _records(memory: dict[str, Any], text_field: str | None) -> _Records:
    """Return the mappings that may hold a memory's fields, by their path: itself, its payload, the text's parent."""
    parent = tuple((text_field or "").split(".")[:-1])
    records: _Records = {}
    for path in ((), *((name,) for name in HOLDERS), parent):
        record: Any = memory
        for key in path:
            record = record.get(key) if isinstance(record, dict) else None
        if isinstance(record, dict):
            records[path] = record
    return records


def _strings(value: object, name: str) -> Iterator[tuple[Sequence[object], str]]:
    """Yield all strings in a value with their paths; a path is valid until the next one is yielded.

    Iterative, since a body may be nested more deeply than the recursion limit.
    """
    path: list[object] = []
    levels: list[Iterator[tuple[object, object]]] = [iter([(name, value)])]
    while levels:
        for key, part in levels[-1]:
            path.append(key)
            if isinstance(part, str):
                yield path, part
            elif isinstance(part, (dict, list)):
                levels.append(iter(part.items() if isinstance(part, dict) else enumerate(part)))
                break
            path.pop()
        else:
            levels.pop()
            del path[-1:]


class StrictRequest(Request):
    """A request whose body is parsed strictly and validated, a large one in a thread.

    The parsed body is kept in the scope for error writers.
    """

    body_field: Any = None

    async def json(self) -> Any:
        """Return the body as an instance of the route's model, which FastAPI accepts as it is."""
        body = await self.body()
        if len(body) < _LARGE_BODY:
            return self._read(body)
        state = self.app.state
        try:
            return await state.parser_pool.run(lambda: self._read(body), state.engine.deadline(self))
        except MnemorankError as error:  # FastAPI would take it for a malformed body
            raise as_problem(error) from error

    def _read(self, body: bytes) -> Any:
        parsed = self.scope["mnemorank.body"] = parse_json(body)
        if self.body_field is None:
            return parsed
        value, errors = self.body_field.validate(parsed, {}, loc=("body",))
        if errors:
            raise as_problem(RequestValidationError(errors))
        return value


class StrictRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def strict_handler(request: Request) -> Response:
            strict = StrictRequest(request.scope, request.receive)
            strict.body_field = self.body_field
            return await handler(strict)

        return strict_handler


def parse_json(body: bytes) -> Any:
    """Parse JSON without NaN, infinities, numbers out of range, unpaired surrogates and millions of values."""
    if len(body) > _MAX_SEPARATORS and body.count(b",") + body.count(b":") > _MAX_SEPARATORS:
        raise Problem(422, "limit", f"the body has too many values: more than {_MAX_SEPARATORS} commas and colons")
    try:
        value = json.loads(body.decode("utf-8"), parse_constant=_refuse, parse_float=_finite)
        if b"\\ud" in body.lower():
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise Problem(400, "malformed", f"the body is not UTF-8: invalid byte at {error.start}") from None
    except UnicodeEncodeError:
        raise Problem(422, "malformed", "the body contains an unpaired surrogate") from None
    except json.JSONDecodeError as error:
        message = f"the body is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        raise Problem(400, "malformed", message) from None
    except RecursionError:
        raise Problem(400, "malformed", "the body is nested too deeply") from None
    except ValueError as error:
        raise Problem(422, "malformed", f"the body has a number out of range: {error}") from None
    return value


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is too large")
    return number
