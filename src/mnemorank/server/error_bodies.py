"""Errors in the shape of the dialect that was spoken."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from mnemorank.errors import InputError, ScorerError
from mnemorank.server.errors import DeadlineError, OverloadedError, Problem, RequestCancelledError, SwapError

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
        return Problem(422, "invalid", str(error), field=_field(str(error)))
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
