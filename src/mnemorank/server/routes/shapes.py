"""Shapes that the dialects share."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    StrictBool,
    StrictInt,
    StrictStr,
    WithJsonSchema,
)

from mnemorank.server.bodies import StrictRoute

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
