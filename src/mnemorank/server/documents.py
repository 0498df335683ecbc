"""Documents of the dialect routes: texts, or memories with dates, ids and scores."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from mnemorank.errors import InputError
from mnemorank.memory.memory import Memory
from mnemorank.memory.records import ALIASES
from mnemorank.memory.values import DATE_FIELDS
from mnemorank.server.requests import MAX_NAME_LENGTH, check_count, check_document, check_strings
from mnemorank.server.settings import ServerSettings

Document: TypeAlias = str | dict[str, Any]
PipelineChoice: TypeAlias = Literal["auto", "full", "model"]

_DATE_NAMES = frozenset(name for field in DATE_FIELDS for name in ALIASES[field])
_MAX_IGNORED_NAMES = 5


@dataclass(frozen=True, slots=True)
class Documents:
    """What a dialect route ranks.

    :param texts: as responses return them.
    :param memories: what the model reads.
    :param is_full: run the whole pipeline, and not the model alone.
    :param warnings: what was ignored.
    """

    texts: list[str]
    memories: list[Memory]
    is_full: bool
    warnings: list[str]


def read_documents(
    documents: Sequence[Document],
    pipeline: PipelineChoice,
    settings: ServerSettings,
    *,
    field: str = "documents",
    rank_fields: Sequence[str] = (),
) -> Documents:
    """Check the limits and read the documents.

    :param pipeline: `full` for the whole pipeline, `model` for the model alone, which reads nothing but the texts, or
        `auto` for the whole pipeline if a document has a date.
    :param field: the dialect's name for the documents, for errors.
    :param rank_fields: the fields of objects that make up the text, instead of `text`.
    """
    check_count(len(documents), settings, field)
    warnings: list[str] = []
    records = [_record(document, rank_fields) for document in documents]
    memories = [_read(record, f"{field}.{position}", warnings) for position, record in enumerate(records)]
    for position, memory in enumerate(memories):
        check_document(memory.text, f"{field}.{position}", settings)
    is_full = pipeline == "full" or (pipeline == "auto" and any(memory.date for memory in memories))
    texts = [memory.text for memory in memories]
    if is_full:
        for position, record in enumerate(records):
            if isinstance(record, dict):
                check_strings(record, f"{field}.{position}", None, settings)
        return Documents(texts, memories, True, warnings)
    warnings += _ignored_fields(records, field)
    return Documents(texts, [Memory(memory.text, id=memory.id) for memory in memories], False, warnings)


def _record(document: Document, rank_fields: Sequence[str]) -> Document:
    if isinstance(document, str):
        return _parse(document)
    present = [name for name in rank_fields if document.get(name) is not None]
    return {**document, "text": "\n".join(str(document[name]) for name in present)} if present else document


def _parse(text: str) -> Document:
    """Return the object of a JSON text with a `text` and a date, as clients send it that only take strings."""
    if not text.startswith("{"):
        return text
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return text
    is_memory = isinstance(record, dict) and isinstance(record.get("text"), str) and not _DATE_NAMES.isdisjoint(record)
    return record if is_memory else text


def _read(record: Document, path: str, warnings: list[str]) -> Memory:
    if isinstance(record, str):
        return Memory(record)
    try:
        memory = Memory.of(record, path=path, on_error="skip", report=warnings.append)
    except InputError:
        raise InputError("expected a string, or an object with a string `text`", field=path) from None
    if memory.id is not None and len(memory.id) > MAX_NAME_LENGTH:
        warnings.append(f"{path}.id: ignored, has {len(memory.id)} characters, more than {MAX_NAME_LENGTH}")
        memory = replace(memory, id=None)
    return memory


def _ignored_fields(records: Sequence[Document], field: str) -> list[str]:
    read = {"text", *ALIASES["id"]}
    names = {name: None for record in records if isinstance(record, dict) for name in record if name not in read}
    shown = ", ".join(f"{name!s:.40}" for name in list(names)[:_MAX_IGNORED_NAMES])
    more = ", …" if len(names) > _MAX_IGNORED_NAMES else ""
    return [f"{field}: only the texts are read, not {shown}{more}; ?pipeline=full uses all fields"] if names else []
