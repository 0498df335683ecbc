"""Shapes that the dialects share."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any, Literal, get_type_hints

from fastapi import APIRouter
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
)

from mnemorank import Options
from mnemorank.errors import InputError
from mnemorank.server.requests import LONGEST_NAME, StrictRoute

LARGEST = 2**31 - 1

Flag = StrictBool
Text = StrictStr
Count = Annotated[StrictInt, Field(ge=1, le=LARGEST)]
# vLLM speaks the other dialects' paths too, and there 0 means all.
CountOrAll = Annotated[StrictInt, Field(ge=0, le=LARGEST, description="0 for all")]


class Shape(BaseModel):
    """A request of a dialect. Fields that it does not know are passed over, since clients grow new ones."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())


def _text_of(document: object) -> object:
    text = document.get("text") if isinstance(document, dict) else document
    if not isinstance(text, str):
        raise ValueError("expected a string, or an object with a string `text`")
    return text


def _listed(value: object) -> object:
    return value if isinstance(value, list) else [value]


_DOCUMENT: dict[str, Any] = {
    "anyOf": [
        {"type": "string"},
        {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    ]
}

# A document is a string or {"text": …}; both are read as the string.
Document = Annotated[Text, BeforeValidator(_text_of), WithJsonSchema(_DOCUMENT)]
# One document or several; read as a list.
Documents = Annotated[
    list[Document],
    BeforeValidator(_listed),
    WithJsonSchema({"anyOf": [*_DOCUMENT["anyOf"], {"type": "array", "items": _DOCUMENT}]}),
]


class AnyOf:
    """An annotation for a union told apart by a function: a body may fit several of its shapes, so not `oneOf`."""

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = dict(handler(core_schema))
        schema["anyOf"] = schema.pop("oneOf")
        return schema


def dialect_router(tag: str) -> APIRouter:
    return APIRouter(route_class=StrictRoute, tags=[tag])


def errors(example: dict[str, Any], *statuses: int) -> dict[int | str, dict[str, Any]]:
    """The error answers of a route, for OpenAPI."""
    content = {"application/json": {"schema": {"type": "object"}, "example": example}}
    all_statuses = sorted({400, 401, 403, 408, 413, 422, 429, 500, 503, 504, *statuses})
    return {status: {"description": _MEANING[status], "content": content} for status in all_statuses}


_MEANING = {
    400: "The body is not JSON, or there are no documents",
    401: "No API key, or not a valid one",
    403: "The API key lacks the scope",
    404: "There is no such thing",
    408: "The body came too slowly",
    409: "The model was refused; the old one stays",
    413: "The body is too large",
    421: "Not a host name of this server",
    422: "A field is wrong or beyond a limit",
    424: "The model failed, or the request's time ran out",
    429: "The queue is full; see Retry-After",
    500: "An internal error",
    503: "The model failed or is not loaded",
    504: "The request's time ran out",
}


Number = Annotated[StrictFloat | StrictInt, Field(ge=-1e9, le=1e9)]
Name = Annotated[Text, Field(min_length=1, max_length=LONGEST_NAME)]
ERROR_EXAMPLE = {"error": {"code": "invalid", "message": "query: is empty", "field": "query"}}


class NativeShape(BaseModel):
    """A native request. Unknown fields are errors: a misspelt option should not be passed over."""

    model_config = ConfigDict(extra="forbid")


def _is_memory(value: object) -> object:
    if not isinstance(value, (str, dict)):
        raise ValueError("expected a string or an object")
    return value


MemoryShape = Annotated[
    str | dict[str, Any],
    PlainValidator(_is_memory),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}]}),
]


_SCHEMA_TYPES: dict[Any, Any] = {
    float: Number,
    int: Count,
    bool: Flag,
    float | None: Number | None,
    int | None: Count | None,
}


def _options_schema() -> type[NativeShape]:
    """Derive the schema of `options` from the fields of `Options`."""
    hints = get_type_hints(Options)
    defaults = Options()
    schema: dict[str, Any] = {}
    for option in fields(Options):
        kind: Any = dict[str, Number] if option.name == "weights" else hints[option.name]
        schema[option.name] = (_SCHEMA_TYPES.get(kind, kind), getattr(defaults, option.name))
    return create_model("RankingOptions", __base__=NativeShape, **schema)


OptionsShape: Any = _options_schema()  # Any: mypy cannot follow a derived model


class MemoriesRequest(NativeShape):
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

    query: Text
    memories: list[MemoryShape] = Field(description="Texts, or objects with a text and what is known of it")
    top_k: Count | None = Field(None, description="How many results; all by default")
    now: Text | None = Field(None, description="The present; the clock's by default")
    as_of: Text | None = Field(None, description="Ask for the state at this date")
    time_range: Annotated[list[Text], Field(min_length=2, max_length=2)] | None = None
    instruction: Text | None = Field(None, description="For models that take one")
    deadline_ms: Annotated[StrictFloat | StrictInt, Field(gt=0, le=1e9)] | None = Field(
        None, description="What is not scored by then follows in first-stage order, and the answer says degraded"
    )
    explain: Flag = False
    return_texts: Flag = True
    field: Name | None = Field(None, description="The key that holds the text")
    on_error: Literal["raise", "skip"] = "raise"
    options: OptionsShape = Field(default_factory=OptionsShape, description="How to rank; see Options")
    user: Name | None = Field(None, description="Who asks, by a name of your own; for the feedback log")
    tenant: Name | None = Field(None, description="Whose data this is, where the API key does not say it")
    test: Flag = Field(False, description="Test traffic; learning leaves it out")

    def ranking_options(self) -> Options:
        """Return the request's options; errors name the field by its path in the body."""
        try:
            return Options(**self.options.model_dump())
        except InputError as error:
            field = f"options.{error.field}" if error.field else "options"
            raise InputError(error.message, field=field, code=error.code) from None


class ModelShape(BaseModel):
    name: str
    version: str
    fingerprint: str


class ResultShape(BaseModel):
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


class DegradationShape(BaseModel):
    kind: Literal["deadline", "model_failed", "incomplete"]
    message: str


class MemoriesResponse(BaseModel):
    event_id: str
    model: ModelShape
    results: list[ResultShape]
    abstained: bool
    degraded: DegradationShape | None
    warnings: list[str]
    usage: dict[str, int]
