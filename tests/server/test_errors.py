"""The table from exceptions to responses."""

from __future__ import annotations

import pytest
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from mnemorank.errors import ConflictError, InputError, NotFoundError, QueryTooLongError, ScorerError
from mnemorank.server.api import cohere, jina, tei, vllm
from mnemorank.server.api.schemas import MemoriesRequest
from mnemorank.server.errors import (
    DeadlineError,
    OverloadedError,
    Problem,
    RequestCanceledError,
    SwapError,
    as_problem,
    write_native,
)


class UnknownRunError(NotFoundError):
    pass


@pytest.mark.parametrize(
    ("error", "status", "code", "field", "retry_after"),
    [
        (InputError("is wrong", field="top_k"), 422, "invalid", "top_k", None),
        (InputError("is wrong", field="top_k", code="limit"), 422, "limit", "top_k", None),
        (QueryTooLongError(80, 64), 422, "too_long", "query", None),
        (NotFoundError("no such run", field="run_id"), 404, "not_found", "run_id", None),
        (UnknownRunError("no such run", code="unknown_run"), 404, "unknown_run", None, None),
        (ConflictError("a run is in progress"), 409, "conflict", None, None),
        (OverloadedError("full", retry_after=7), 429, "overloaded", None, "7"),
        (DeadlineError("late"), 504, "timeout", None, None),
        (RequestCanceledError("gone"), 499, "canceled", None, None),
        (SwapError("no model"), 503, "no_model", None, "1"),
        (ScorerError("out of memory"), 503, "model_failed", None, "1"),
        (HTTPException(405, "Method Not Allowed"), 405, "method_not_allowed", None, None),
        (Problem(403, "forbidden", "no"), 403, "forbidden", None, None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_errors_are_mapped_by_type(error, status, code, field, retry_after):
    problem = as_problem(error)
    assert (problem.status_code, problem.code, problem.field) == (status, code, field)
    assert (problem.headers or {}).get("retry-after") == retry_after


def test_the_message_of_an_unexpected_error_is_not_shown():
    problem = as_problem(KeyError("secret"))
    assert (problem.status_code, problem.code) == (500, "internal")
    assert "secret" not in problem.message


@pytest.mark.parametrize(
    ("body", "field", "code"),
    [
        ({"query": 3, "memories": ["a"]}, "query", "invalid"),
        ({"query": "q", "memories": ["a", 3]}, "memories.1", "invalid"),
        ({"query": "q", "memories": ["a"], "deadline_ms": True}, "deadline_ms", "invalid"),
        ({"query": "q", "memories": ["a"], "options": {"floor": "x"}}, "options.floor", "invalid"),
        ({"query": "q", "memories": ["a"], **dict.fromkeys(map(str, range(200)), 1)}, None, "limit"),
    ],
)
def test_validation_errors_have_a_path_and_a_code(body, field, code):
    with pytest.raises(ValidationError) as caught:
        MemoriesRequest(**body)
    errors = [{**error, "loc": ("body", *error["loc"])} for error in caught.value.errors()]
    problem = as_problem(RequestValidationError(errors))
    assert (problem.status_code, problem.field, problem.code) == (422, field, code)


@pytest.mark.parametrize(
    ("write", "status", "content"),
    [
        (write_native, 422, {"error": {"code": "too_long", "message": "query: x", "field": "query"}}),
        (cohere.write_error, 422, {"message": "invalid request: query: x"}),
        (jina.write_error, 422, {"detail": "query: x"}),
        (tei.write_error, 422, {"error": "query: x", "error_type": "Validation"}),
        (
            vllm.write_error,
            400,
            {"error": {"message": "query: x", "type": "BadRequestError", "param": "query", "code": 400}},
        ),
    ],
)
def test_each_dialect_writes_problems_in_its_own_format(write, status, content):
    problem = Problem(422, "too_long", "query: x", field="query")
    assert write(problem, {}) == (status, content)
