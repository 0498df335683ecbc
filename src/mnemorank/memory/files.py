"""Load memories from files: JSON Lines, a JSON array, or CSV; plain, .gz or .zst; `-` is standard input."""

from __future__ import annotations

import csv
import io
import json
import logging
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from mnemorank._internal.jsonio import open_text, parse_json, read_errors
from mnemorank.errors import InputError
from mnemorank.memory.memory import Memory, OnError, Report, read_located

logger = logging.getLogger(__name__)

# The path of a record in a JSON array, its location in the file, and the record.
_Located = tuple[str, str, Any]


def load_memories(
    path: str | Path, *, field: str | None = None, on_error: OnError = "raise", report: Report = logger.warning
) -> list[Memory]:
    """Read the memories of a file. The format follows from the suffix, else from the first character.

    Errors have the location in the file, such as `memories.jsonl:12`, and the field.

    :param field: the key or column of the text.
    :param on_error: `skip` reports bad dates and numbers instead of raising.
    """
    name = "standard input" if str(path) == "-" else str(path)
    if str(path) == "-" and isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="strict")  # whatever the terminal's encoding
    stream = sys.stdin if str(path) == "-" else open_text(Path(path))
    with stream:
        try:
            content = stream.read()
        except read_errors() as error:
            raise InputError(f"not readable as UTF-8 text: {error}", location=name, code="unreadable") from None
    return parse_memories(content, name, field=field, on_error=on_error, report=report)


def parse_memories(
    content: str,
    name: str,
    *,
    field: str | None = None,
    on_error: OnError = "raise",
    report: Report = logger.warning,
    max_count: int | None = None,
) -> list[Memory]:
    """Read the memories of a file's content; see `load_memories`.

    :param name: of the file, for its suffix and for errors.
    :param max_count: raise an error if there are more memories, without reading them.
    """
    content = content.removeprefix("\ufeff")
    file_format = _format(name, content)
    records = list(islice(_READERS[file_format](content, name), None if max_count is None else max_count + 1))
    if max_count is not None and len(records) > max_count:
        raise InputError(f"has more than {max_count} memories", location=name, code="limit")
    if file_format == "csv" and not records:
        raise InputError("expected JSON Lines, a JSON array or CSV with a header and rows", location=name)
    return read_located(records, field=field, on_error=on_error, report=report)


def _format(path: str, content: str) -> str:
    for suffix in (".gz", ".zst"):
        path = path.removesuffix(suffix)
    by_suffix = {".jsonl": "lines", ".ndjson": "lines", ".csv": "csv"}.get(Path(path).suffix)
    if by_suffix:
        return by_suffix
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


def _read_lines(content: str, name: str) -> Iterator[_Located]:
    # Not `splitlines`: U+2028 is not escaped in JSON. Not `split`: a hostile content has millions of lines.
    for number, line in enumerate(io.StringIO(content, newline="\n"), 1):
        if line.strip():
            yield "", f"{name}:{number}", parse_json(line, name, number)


def _read_array(content: str, name: str) -> Iterator[_Located]:
    values = parse_json(content, name)
    if not isinstance(values, list):
        raise InputError(f"expected a JSON array of memories, got {type(values).__name__}", location=name)
    for index, value in enumerate(values):
        yield f"memories.{index}", name, value


def _read_csv(content: str, name: str) -> Iterator[_Located]:
    csv.field_size_limit(sys.maxsize)
    rows = csv.DictReader(io.StringIO(content, newline=""), strict=True)
    try:
        columns = list(rows.fieldnames or ())
        if len(set(columns)) < len(columns):
            raise InputError(f"duplicate column in the header {', '.join(columns)}", location=f"{name}:1")
        for row in rows:
            if None in row or None in row.values():
                raise InputError(
                    f"expected {len(columns)} columns, as in the header", location=f"{name}:{rows.line_num}"
                )
            yield "", f"{name}:{rows.line_num}", row
    except csv.Error as error:
        raise InputError(f"invalid CSV: {error}", location=f"{name}:{rows.line_num}") from None


_READERS = {"lines": _read_lines, "array": _read_array, "csv": _read_csv}
