"""Errors of the server, and the one table that turns exceptions into responses.

Every exception becomes a `Problem`: a status, a code for programs, a message and the field at fault. Each API dialect
writes problems in its own format (`ErrorWriter`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from mnemorank.errors import ConflictError, InputError, MnemorankError, NotFoundError, ScorerError, StorageError

CLIENT_CLOSED_REQUEST = 499


class OverloadedError(MnemorankError):
    """The server has no room for another request.

    :param retry_after: seconds after which there should be room again.
    """

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RequestCanceledError(MnemorankError):
    """The client disconnected, or the server is shutting down."""


class DeadlineError(MnemorankError):
    """The deadline passed, and the dialect of the request has no format for partial results."""


class SwapError(MnemorankError):
    """A model could not be put into service."""


class Problem(HTTPException):
    """An error response, independent of the dialect.

    :param code: a stable word for programs: `invalid`, `empty`, `limit`, `unauthorized`, `overloaded`, ...
    :param field: the field of the request at fault, such as `documents.3`.
    :param retry_after: seconds until the client should try again.
    """

    def __init__(
        self, status: int, code: str, message: str, *, field: str | None = None, retry_after: int | None = None
    ) -> None:
        super().__init__(status, message, {"retry-after": str(retry_after)} if retry_after is not None else None)
        self.code = code
        self.message = message
        self.field = field


class _ErrorResponse(NamedTuple):
    """How a type of exception is answered.

    :param code: None for the code of the exception itself.
    """

    status: int
    code: str | None = None
    retry_after: int | None = None


_RESPONSES: Mapping[type[Exception], _ErrorResponse] = {
    InputError: _ErrorResponse(422),
    NotFoundError: _ErrorResponse(404),
    ConflictError: _ErrorResponse(409),
    OverloadedError: _ErrorResponse(429, "overloaded", retry_after=1),
    RequestCanceledError: _ErrorResponse(CLIENT_CLOSED_REQUEST, "canceled"),
    DeadlineError: _ErrorResponse(504, "timeout"),
    SwapError: _ErrorResponse(503, "no_model", retry_after=1),
    ScorerError: _ErrorResponse(503, "model_failed", retry_after=1),
    StorageError: _ErrorResponse(503, "storage_failed"),
}
_CODES = {400: "invalid", 401: "unauthorized", 403: "forbidden", 404: "not_found", 405: "method_not_allowed"}

# From a problem and the parsed body, if there is one, to the status and the content of the response.
ErrorWriter = Callable[[Problem, Any], tuple[int, Mapping[str, Any]]]


def install_error_handlers(app: FastAPI, writers: Mapping[str, ErrorWriter]) -> None:
    """Answer every known error in the format of its route.

    :param writers: by path; other paths use the native format.
    """

    async def handle(request: Request, error: Exception) -> Response:
        problem, path = as_problem(error), request.scope["path"]
        if problem.status_code == 404 and "route" not in request.scope and path.rstrip("/") not in writers:
            return JSONResponse(_unknown_route(path, writers), 404)
        return error_response(writers, request.scope, problem)

    for exception_type in (HTTPException, RequestValidationError, *_RESPONSES):
        app.add_exception_handler(exception_type, handle)


def error_response(writers: Mapping[str, ErrorWriter], scope: Mapping[str, Any], problem: Problem) -> Response:
    write = writers.get(scope["path"].rstrip("/"), write_native)
    status, content = write(problem, scope.get("mnemorank.body"))
    headers = {"www-authenticate": "Bearer"} if status == 401 else {}
    return JSONResponse(content, status, headers={**headers, **(problem.headers or {})})


def _unknown_route(path: str, writers: Mapping[str, ErrorWriter]) -> dict[str, Any]:
    """Describe a path that does not exist in the formats of all dialects: a client with a wrong base URL has any."""
    routes = ", ".join(sorted(name for name in writers if name.endswith("rerank")))
    message = f"no such route: {path!s:.200}; clients send reranks to {routes} or /v1/memories/rerank"
    error = {"code": "not_found", "message": message, "field": None, "type": "NotFoundError", "param": None}
    return {"error": error, "message": message, "detail": message}


def write_native(problem: Problem, body: Any) -> tuple[int, Mapping[str, Any]]:
    return problem.status_code, {"error": {"code": problem.code, "message": problem.message, "field": problem.field}}


def as_problem(error: Exception) -> Problem:
    """Return the problem that an exception stands for."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, RequestValidationError):
        return _validation_problem(error)
    if isinstance(error, HTTPException):
        problem = Problem(error.status_code, _CODES.get(error.status_code, "error"), str(error.detail))
        problem.headers = error.headers
        return problem
    response = next((_RESPONSES[base] for base in type(error).__mro__ if base in _RESPONSES), None)
    if response is None:
        return Problem(500, "internal", "internal error; see the server log for this request id")
    return Problem(
        response.status,
        str(response.code or getattr(error, "code", "invalid")),
        str(error),
        field=getattr(error, "field", None),
        retry_after=getattr(error, "retry_after", response.retry_after),
    )


def _validation_problem(error: RequestValidationError) -> Problem:
    """Describe the first validation error. The input is not repeated: it may be large, private or broken."""
    first = error.errors()[0]
    # A part of the location with a colon in front is the tag of a union, not a field of the request.
    field = ".".join(part for part in map(str, first["loc"][1:]) if part[:1] != ":") or None
    code = "invalid"
    if first["type"] in _NOT_AN_OBJECT and field is None:
        return Problem(422, code, "expected a JSON object, sent as application/json")
    message, cause = _MESSAGES.get(first["type"], str(first["msg"])), first.get("ctx", {}).get("error")
    if isinstance(cause, InputError):
        message, code = cause.message, cause.code
        field = ".".join(filter(None, (field, cause.field))) or None
    elif isinstance(cause, Exception):
        message = str(cause)
    return Problem(422, code, f"{field}: {message}" if field else message, field=field)


# In place of pydantic's "Extra inputs are not permitted" and "Field required".
_MESSAGES = {"extra_forbidden": "unknown field", "missing": "is required"}
_NOT_AN_OBJECT = ("missing", "model_attributes_type", "model_type", "dict_type", "union_tag_not_found")
