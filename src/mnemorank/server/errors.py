"""What can go wrong with a request, apart from the dialect it is told in."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from mnemorank.errors import InputError, MnemorankError, ScorerError


class OverloadedError(MnemorankError):
    """The queue is full.

    :param retry_after: seconds after which there should be room again.
    """

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RequestCancelledError(MnemorankError):
    """The client went away, or the server stops; nobody waits for the answer."""


class DeadlineError(MnemorankError):
    """The request's time ran out, and its dialect has no way to say that an answer is partial."""


class SwapError(MnemorankError):
    """A new model was refused; the old one stays."""


class Problem(HTTPException):
    """An error answer. Each dialect writes it in its own shape.

    :param code: a word for programs: `invalid`, `empty`, `limit`, `unauthorized`, `overloaded`, …
    :param field: the field of the request that is wrong, such as `documents.3`.
    """

    def __init__(
        self, status: int, code: str, message: str, *, field: str | None = None, retry_after: int | None = None
    ) -> None:
        super().__init__(status, message, {"retry-after": str(retry_after)} if retry_after is not None else None)
        self.code = code
        self.message = message
        self.field = field


logger = logging.getLogger(__name__)

# From a problem, and the request's parsed body if there is one, to status and error body.
ErrorWriter = Callable[[Problem, Any], tuple[int, Mapping[str, Any]]]

CLIENT_CLOSED = 499


def write_native(problem: Problem, body: Any) -> tuple[int, Mapping[str, Any]]:
    return problem.status_code, {"error": {"code": problem.code, "message": problem.message, "field": problem.field}}


def install(app: FastAPI, writers: Mapping[str, ErrorWriter]) -> None:
    """Answer every error of the app in its route's dialect.

    :param writers: by path; other paths get the native shape.
    """

    async def answer(request: Request, error: Exception) -> Response:
        return respond(writers, request.scope, as_problem(error))

    for kind in (
        HTTPException, RequestValidationError, InputError, ScorerError, OverloadedError, DeadlineError,
        RequestCancelledError, SwapError,
    ):  # fmt: skip
        app.add_exception_handler(kind, answer)


def respond(writers: Mapping[str, ErrorWriter], scope: Mapping[str, Any], problem: Problem) -> Response:
    write = writers.get(scope["path"].rstrip("/"), write_native)
    status, content = write(problem, scope.get("mnemorank.body"))
    headers = {"www-authenticate": "Bearer"} if status == 401 else {}
    return JSONResponse(content, status, headers={**headers, **(problem.headers or {})})


def as_problem(error: Exception) -> Problem:
    """The problem that an exception stands for."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, RequestValidationError):
        return _invalid(error)
    if isinstance(error, HTTPException):
        problem = Problem(error.status_code, _WORDS.get(error.status_code, "error"), str(error.detail))
        problem.headers = error.headers
        return problem
    if isinstance(error, InputError):
        return Problem(422, "invalid", str(error), field=error.field or _field(str(error)))
    if isinstance(error, OverloadedError):
        return Problem(429, "overloaded", str(error), retry_after=error.retry_after)
    if isinstance(error, DeadlineError):
        return Problem(504, "timeout", str(error))
    if isinstance(error, RequestCancelledError):
        return Problem(CLIENT_CLOSED, "cancelled", str(error))
    if isinstance(error, SwapError):
        return Problem(503, "no_model", str(error), retry_after=1)
    if isinstance(error, ScorerError):
        return Problem(503, "model_failed", str(error), retry_after=1)
    return Problem(500, "internal", "an internal error; the log has it under this request's id")


_WORDS = {404: "not_found", 405: "method_not_allowed", 400: "invalid", 401: "unauthorized", 403: "forbidden"}


def _invalid(error: RequestValidationError) -> Problem:
    """The first validation error, by field. The input is never repeated: it may be large, private or broken."""
    first = error.errors()[0]
    place = [str(part) for part in first["loc"][1:]]
    field = ".".join(part for part in place if not part.startswith(":") and not _is_branch(part)) or None
    if first["type"] in _NOT_AN_OBJECT and field is None:
        return Problem(422, "invalid", "the body must be a JSON object, sent as application/json")
    message = str(first["msg"]).removeprefix("Value error, ")
    return Problem(422, "invalid", f"{field}: {message}" if field else message, field=field)


_NOT_AN_OBJECT = ("missing", "model_attributes_type", "model_type", "dict_type", "union_tag_not_found")


def _is_branch(part: str) -> bool:
    """Whether a part of a location names a branch of a union rather than a field of the request."""
    return part in ("str", "int", "float") or part.startswith(("dict[", "list[", "constrained-", "function-"))


def _field(message: str) -> str | None:
    """`memory 3: occurred_start: …` → `memories.3.occurred_start`; `query: …` → `query`."""
    found = re.match(r"(?:memory (\d+): )?(?:([a-z_]+): )?", message)
    if not found or not any(found.groups()):
        return None
    number, name = found.groups()
    return ".".join(part for part in (f"memories.{number}" if number else None, name) if part)
