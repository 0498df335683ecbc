"""How large requests may be. Every refusal names the limit and its setting."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeAlias

from fastapi import Request, Response
from fastapi.routing import APIRoute

from mnemorank.memory.memory import ALIASES, Memory
from mnemorank.memory.records import HOLDERS
from mnemorank.server.errors import Problem
from mnemorank.server.settings import Settings

LONGEST_NAME = 256
_Records: TypeAlias = dict[tuple[str, ...], dict[str, Any]]
# Lists under these names are read as one string.
_JOINED = (*ALIASES["context"], *ALIASES["entities"])


def check_query(query: str, settings: Settings, field: str = "query") -> None:
    if not query.strip():
        raise Problem(422, "empty_query", f"{field}: is empty", field=field)
    if len(query) > settings.max_query_chars:
        raise Problem(
            422,
            "limit",
            f"{field}: has {len(query)} characters, more than max_query_chars = {settings.max_query_chars}",
            field=field,
        )


def check_instruction(instruction: str | None, settings: Settings) -> None:
    """An instruction is read with every document, as the query is, so it has the query's limit."""
    if instruction is not None and len(instruction) > settings.max_query_chars:
        raise Problem(
            422,
            "limit",
            f"instruction: has {len(instruction)} characters, more than max_query_chars = {settings.max_query_chars}",
            field="instruction",
        )


def check_documents(texts: Sequence[str], settings: Settings, field: str = "documents") -> None:
    check_count(len(texts), settings, field)
    for position, text in enumerate(texts):
        if len(text) > settings.max_document_chars:
            raise Problem(
                422,
                "limit",
                f"{field}.{position}: has {len(text)} characters, "
                f"more than max_document_chars = {settings.max_document_chars}",
                field=f"{field}.{position}",
            )


def check_count(count: int, settings: Settings, field: str) -> None:
    if count == 0:
        raise Problem(400, "empty", f"{field}: is empty", field=field)
    if count > settings.max_documents:
        raise Problem(
            422,
            "limit",
            f"{field}: has {count} entries, more than max_documents = {settings.max_documents}",
            field=field,
        )


def check_memory(memory: str | dict[str, Any], position: int, text_field: str | None, settings: Settings) -> None:
    """Every string of a memory has a document's limit, since its text may stand anywhere, and its id has its own."""
    name = f"memories.{position}"
    for path, text in _texts(memory, name):
        _check_size(len(text), path, settings)
    if isinstance(memory, str):
        return
    records = _records(memory, text_field)
    for place, record in records.items():
        for field in _JOINED:
            if isinstance(record.get(field), list):
                size = sum(len(text) for _, text in _texts(record[field], field))
                _check_size(size, (name, *place, field), settings)
    _check_id(memory, records, position, text_field)


def _check_size(size: int, path: Sequence[object], settings: Settings) -> None:
    if size > settings.max_document_chars:
        field = ".".join(map(str, path))
        message = f"{field}: has {size} characters, more than max_document_chars = {settings.max_document_chars}"
        raise Problem(422, "limit", message, field=field)


def _check_id(memory: dict[str, Any], records: _Records, position: int, text_field: str | None) -> None:
    """An id that feedback could not name is of no use."""
    long = {
        str(record[key]): (*place, key)
        for place, record in records.items()
        for key in ALIASES["id"]
        if isinstance(record.get(key), (str, int)) and len(str(record[key])) > LONGEST_NAME
    }
    if not long:
        return
    # Only reading the memory tells whether it is the id: it may be the text, or something else of its metadata.
    read = Memory.of(memory, field=text_field, path=f"memories.{position}", on_error="skip", report=lambda _: None)
    if read.id in long:
        field = ".".join(("memories", str(position), *long[read.id]))
        message = f"{field}: has {len(read.id)} characters, more than the {LONGEST_NAME} of an id"
        raise Problem(422, "limit", message, field=field)


def _records(memory: dict[str, Any], text_field: str | None) -> _Records:
    """Where a memory's fields may stand: in itself, in what holds a hit's record, and beside the text; by place."""
    beside = tuple((text_field or "").split(".")[:-1])
    found: _Records = {}
    for place in ((), *((name,) for name in HOLDERS), beside):
        record: Any = memory
        for key in place:
            record = record.get(key) if isinstance(record, dict) else None
        if isinstance(record, dict):
            found[place] = record
    return found


def _texts(value: object, name: str) -> Iterator[tuple[Sequence[object], str]]:
    """All strings in a value with their paths, each of which holds until the next is asked for.

    In a loop, since a body may be nested more deeply than calls may.
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
    """A request whose body is parsed strictly. The parsed body is kept for the writer of error bodies."""

    async def json(self) -> Any:
        body = parse_json(await self.body())
        self.scope["mnemorank.body"] = body
        return body


class StrictRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await answer(StrictRequest(request.scope, request.receive))

        return strict


def parse_json(body: bytes) -> Any:
    try:
        value = json.loads(body.decode("utf-8"), parse_constant=_refuse, parse_float=_finite)
        if b"\\ud" in body.lower():
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise Problem(400, "malformed", f"the body is not UTF-8: byte {error.start} is broken") from None
    except UnicodeEncodeError:
        raise Problem(422, "malformed", "the body has half of a surrogate pair, which is not a character") from None
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
