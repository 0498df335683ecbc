"""Schemas that the dialects share, and those of the native route."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any, Literal, get_type_hints

from fastapi import APIRouter, Query
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    PlainValidator,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    WithJsonSchema,
    create_model,
    model_validator,
)

from mnemorank import Options
from mnemorank.errors import InputError
from mnemorank.server.requests import MAX_NAME_LENGTH, StrictRoute
from mnemorank.server.settings import MAX_DOCUMENTS

MAX_INTEGER = 2**31 - 1
_MAX_KEYS = 100

Flag = StrictBool
Text = StrictStr
Name = Annotated[Text, Field(min_length=1, max_length=MAX_NAME_LENGTH)]
Number = Annotated[StrictFloat, Field(ge=-1e9, le=1e9)]
Count = Annotated[StrictInt, Field(ge=1, le=MAX_INTEGER)]
# vLLM serves the paths of the other dialects too, and there 0 means all.
CountOrAll = Annotated[StrictInt, Field(ge=0, le=MAX_INTEGER, description="0 for all")]


class DialectModel(BaseModel):
    """A request or response of another API. Unknown fields are ignored, since clients add new ones."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())


class NativeModel(BaseModel):
    """A request of our own API. Unknown fields are errors, so that a misspelled option is not ignored."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _limit_keys(cls, values: object) -> object:
        return _check_keys(values)


def _check_keys(values: object) -> object:
    """Refuse objects with so many keys that an error for each would take long to collect."""
    if isinstance(values, dict) and len(values) > _MAX_KEYS:
        raise InputError(f"expected at most {_MAX_KEYS} keys, got {len(values)}", code="limit")
    return values


def _document_text(document: object) -> object:
    text = document.get("text") if isinstance(document, dict) else document
    if not isinstance(text, str):
        raise InputError("expected a string, or an object with a string `text`")
    return text


def _check_document_type(document: object) -> object:
    if not isinstance(document, (str, dict)):
        raise InputError("expected a string, or an object with a string `text`")
    return document


def _as_list(value: object) -> object:
    return value if isinstance(value, list) else [value]


_DOCUMENT_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "string"},
        {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    ]
}
_DOCUMENTS_SCHEMA = {"anyOf": [*_DOCUMENT_SCHEMA["anyOf"], {"type": "array", "items": _DOCUMENT_SCHEMA}]}

# Validation of a list stops at its first error: an error for each of a million elements would stall the server.
# What a server accepts is limited further by its setting `max_documents`.
# A text is a string or {"text": ...}; both are read as the string.
_TextValue = Annotated[Text, BeforeValidator(_document_text), WithJsonSchema(_DOCUMENT_SCHEMA)]
_TextValues = Annotated[list[_TextValue], Field(fail_fast=True, max_length=MAX_DOCUMENTS)]
OneOrMoreTexts = Annotated[_TextValues, BeforeValidator(_as_list), WithJsonSchema(_DOCUMENTS_SCHEMA)]
# Of a document that is an object, the other fields of a memory are read, too.
DocumentValue = Annotated[str | dict[str, Any], PlainValidator(_check_document_type), WithJsonSchema(_DOCUMENT_SCHEMA)]
Documents = Annotated[list[DocumentValue], Field(fail_fast=True, max_length=MAX_DOCUMENTS)]
RankFields = Annotated[list[Text], Field(fail_fast=True, max_length=_MAX_KEYS)]
Pipeline = Annotated[
    Literal["auto", "full", "model"] | None,
    Query(description="`full` ranks with dates, scores and supersession, `model` by the texts alone"),
]


class AnyOf:
    """Marks a union that is resolved by a function as `anyOf` in OpenAPI: a body may match several of its schemas."""

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = dict(handler(core_schema))
        schema["anyOf"] = schema.pop("oneOf")
        return schema


def dialect_router(tag: str) -> APIRouter:
    return APIRouter(route_class=StrictRoute, tags=[tag])


def error_responses(example: dict[str, Any], *statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe the error responses of a route for OpenAPI.

    :param statuses: in addition to those that every route has.
    """
    content = {"application/json": {"schema": {"type": "object"}, "example": example}}
    all_statuses = sorted({400, 401, 403, 408, 413, 422, 429, 500, 503, 504, *statuses})
    return {status: {"description": _DESCRIPTIONS[status], "content": content} for status in all_statuses}


_DESCRIPTIONS = {
    400: "The body is not JSON, or there are no documents",
    401: "The API key is missing or invalid",
    403: "The API key lacks the scope, or the origin is not allowed",
    404: "Not found",
    408: "The body took too long",
    409: "Conflict with the current state",
    413: "The body is too large",
    422: "A field is invalid or exceeds a limit",
    424: "The model failed, or the deadline passed",
    429: "The server is overloaded; see Retry-After",
    500: "Internal error",
    503: "The model failed or is not loaded",
    504: "The deadline passed",
}
ERROR_EXAMPLE = {"error": {"code": "invalid", "message": "query: is empty", "field": "query"}}


def _check_memory_type(value: object) -> object:
    if not isinstance(value, (str, dict)):
        raise InputError("expected a string or an object")
    return value


MemoryValue = Annotated[
    str | dict[str, Any],
    PlainValidator(_check_memory_type),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}]}),
]

_OPTION_TYPES: dict[Any, Any] = {
    float: Number,
    int: Count,
    bool: Flag,
    float | None: Number | None,
    int | None: Count | None,
}


def _create_options_model() -> type[NativeModel]:
    """Derive the schema of `options` from the fields of `Options`."""
    hints = get_type_hints(Options)
    defaults = Options()
    definitions: dict[str, Any] = {}
    for option in fields(Options):
        hint = hints[option.name]
        kind: Any = _OPTION_TYPES.get(hint, hint)
        if option.name == "weights":
            kind = Annotated[dict[str, Number], BeforeValidator(_check_keys)]
        definitions[option.name] = (kind, getattr(defaults, option.name))
    return create_model("RankingOptions", __base__=NativeModel, **definitions)


OptionsModel: Any = _create_options_model()  # Any: mypy cannot follow a derived model


class RankingRequest(NativeModel):
    """What the native routes have in common."""

    query: Text
    top_k: Count | None = Field(None, description="Number of results; all by default")
    now: Text | None = Field(None, description="The present; the current time by default")
    as_of: Text | None = Field(None, description="Rank by the state at this date")
    time_range: Annotated[list[Text], Field(fail_fast=True, min_length=2, max_length=2)] | None = Field(
        None, description="The period that the query is about"
    )
    instruction: Text | None = Field(None, description="For models that take one")
    deadline_ms: Annotated[StrictFloat, Field(gt=0, le=1e9)] | None = Field(
        None, description="Memories not scored by then follow in first-stage order, and the ranking is degraded"
    )
    explain: Flag = False
    return_texts: Flag = True
    options: OptionsModel = Field(default_factory=OptionsModel, description="How to rank; see Options")
    user: Name | None = Field(None, description="The user who asks, by an id of yours, for the feedback log")
    test: Flag = Field(False, description="Test traffic, which learning ignores")

    def ranking_options(self) -> Options:
        """Return the request's options; errors name the field by its path in the body."""
        try:
            return Options(**self.options.model_dump())
        except InputError as error:
            field = f"options.{error.field}" if error.field else "options"
            raise InputError(error.message, field=field, code=error.code) from None

    @property
    def period(self) -> tuple[str, str] | None:
        return (self.time_range[0], self.time_range[1]) if self.time_range else None


Memories = Annotated[list[MemoryValue], Field(fail_fast=True, max_length=MAX_DOCUMENTS)]


class MemoriesRequest(RankingRequest):
    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "example": {
                "query": "Where does Ruby work now?",
                "memories": [
                    {"id": "m1", "text": "Ruby works at Zenith.", "occurred_start": "2021-05", "score": 0.81},
                    {"id": "m2", "text": "Ruby works at Aurora Labs.", "occurred_start": "2024-03-05", "score": 0.78},
                    "The cat sleeps.",
                ],
                "now": "2025-01-15",
                "top_k": 2,
                "explain": True,
            }
        },
    )

    memories: Memories = Field(description="Strings, or objects with a text and any fields of a memory")
    field: Name | None = Field(None, description="The key that holds the text")
    on_error: Literal["raise", "skip"] = "raise"
    tenant: Name | None = Field(None, description="The tenant whose data this is, unless the API key determines it")

    def ranking_arguments(self) -> dict[str, Any]:
        """Return the arguments of `Reranker.rerank_within`."""
        return {
            "query": self.query,
            "memories": self.memories,
            "top_k": self.top_k,
            "now": self.now,
            "as_of": self.as_of,
            "time_range": self.period,
            "instruction": self.instruction,
            "explain": self.explain,
            "field": self.field,
            "on_error": self.on_error,
            "options": self.ranking_options(),
        }


class ModelInfo(BaseModel):
    name: str
    version: str
    fingerprint: str


class ResultModel(BaseModel):
    index: int
    id: str | None
    rank: int
    relevance: float | None
    score: float | None
    raw_score: float | None
    rank_change: int
    stale: bool
    superseded_by: int | None
    stale_because: Literal["stated", "key", "similar"] | None
    text: str | None = None
    passage: str | None = None
    factors: dict[str, float] | None = None


class DegradationModel(BaseModel):
    kind: Literal["deadline", "model_failed", "incomplete"]
    message: str


class MemoriesResponse(BaseModel):
    event_id: str
    model: ModelInfo
    results: list[ResultModel]
    abstained: bool
    degraded: DegradationModel | None
    warnings: list[str]
    usage: dict[str, int]
