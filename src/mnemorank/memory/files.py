"""Memories from files: JSON Lines, a JSON array, or CSV; plain, .gz or .zst; `-` is standard input."""

from __future__ import annotations

import csv
import io
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mnemorank._internal.jsonio import open_text, unreadable
from mnemorank.errors import InputError
from mnemorank.memory.memory import Memory, OnError, Report

logger = logging.getLogger(__name__)


def load_memories(
    path: str | Path, *, field: str | None = None, on_error: OnError = "raise", report: Report = logger.warning
) -> list[Memory]:
    """Read the memories of a file. The kind is told by the name's ending, else by the first character.

    :param field: the key or column that holds the text.
    :param on_error: `skip` reports bad dates and numbers instead of raising.
    """
    name = "standard input" if str(path) == "-" else str(path)
    if str(path) == "-" and isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="strict")  # not the terminal's encoding
    stream = sys.stdin if str(path) == "-" else open_text(Path(path))
    with stream:
        try:
            content = stream.read().removeprefix("\ufeff")
        except unreadable() as error:
            raise InputError(f"cannot be read as UTF-8 text: {error}", field=name) from None
    kind = _kind(str(path), content)
    records = list(_READERS[kind](content, name))
    if kind == "csv" and not records:
        raise InputError("expected memories as JSON Lines, a JSON array or CSV with a header and rows", field=name)
    return [Memory.of(value, field=field, where=where, on_error=on_error, report=report) for where, value in records]


def _kind(path: str, content: str) -> str:
    for suffix in (".gz", ".zst"):
        path = path.removesuffix(suffix)
    by_name = {".jsonl": "lines", ".ndjson": "lines", ".csv": "csv"}.get(Path(path).suffix)
    if by_name:
        return by_name
    first = content.lstrip()[:1]
    if first == "{" or (first == '"' and _is_json(content.lstrip().partition("\n")[0])):
        return "lines"
    return "array" if first == "[" or path.endswith(".json") else "csv"


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _lines(content: str, name: str) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(content.split("\n"), 1):
        if not line.strip():
            continue
        yield f"{name}:{number}", _parsed(line, name, number)


def _array(content: str, name: str) -> Iterator[tuple[str, Any]]:
    values = _parsed(content, name)
    if not isinstance(values, list):
        raise InputError(f"expected a JSON array of memories, got {type(values).__name__}", field=name)
    yield from ((f"{name}: memory {index}", value) for index, value in enumerate(values))


def _parsed(text: str, name: str, line: int | None = None) -> Any:
    """:param line: where the text stands in its file; None for a whole file."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{name}:{line or error.lineno}: not valid JSON: {error.msg} at column {error.colno}"
        ) from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, thousands of nested brackets
        raise InputError(f"{name}:{line or 1}: not usable JSON: {error}") from None


def _csv(content: str, name: str) -> Iterator[tuple[str, Any]]:
    csv.field_size_limit(sys.maxsize)
    rows = csv.DictReader(io.StringIO(content, newline=""), strict=True)
    try:
        columns = list(rows.fieldnames or ())
        if len(set(columns)) < len(columns):
            raise InputError(f"{name}:1: the header names a column twice: {', '.join(columns)}")
        for row in rows:
            if None in row or None in row.values():
                raise InputError(f"{name}:{rows.line_num}: the row does not have the header's {len(columns)} columns")
            yield f"{name}:{rows.line_num}", row
    except csv.Error as error:
        raise InputError(f"{name}:{rows.line_num}: not valid CSV: {error}") from None


_READERS = {"lines": _lines, "array": _array, "csv": _csv}
