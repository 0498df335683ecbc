"""How large requests may be. Every refusal names the limit and its setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mnemorank.memory import ALIASES
from mnemorank.server.errors import Problem
from mnemorank.server.settings import Settings

LONGEST_NAME = 256


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


def check_id(memory: Mapping[str, Any], position: int, text_field: str | None) -> None:
    """An id that feedback could not name is of no use."""
    key = next((key for key in ALIASES["id"] if memory.get(key) is not None), None)
    if key is None or key == text_field or not isinstance(memory[key], (str, int)):
        return
    length = len(str(memory[key]))
    if length > LONGEST_NAME:
        field = f"memories.{position}.{key}"
        message = f"{field}: has {length} characters, more than the {LONGEST_NAME} of an id"
        raise Problem(422, "limit", message, field=field)
