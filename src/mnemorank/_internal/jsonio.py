"""Read JSON and JSON Lines files, plain or compressed, with errors that have a location."""

from __future__ import annotations

import gzip
import io
import json
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

from mnemorank.errors import InputError, MissingExtraError


def open_binary(path: str | Path) -> IO[bytes]:
    """Open a file for reading, decompressing `.gz` and `.zst`."""
    path = Path(path)
    try:
        if path.suffix == ".gz":
            return cast(IO[bytes], gzip.open(path, "rb"))
        if path.suffix == ".zst":
            return _open_zst(path)
        return path.open("rb")
    except OSError as error:
        message = f"cannot open the file: {error.strerror or error}"
        raise InputError(message, location=str(path), code="unreadable") from None


def open_text(path: str | Path) -> IO[str]:
    """Open a UTF-8 file for reading, with or without a byte-order mark, decompressing `.gz` and `.zst`."""
    return io.TextIOWrapper(open_binary(path), encoding="utf-8-sig")


def read_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions of reading a file that is not text or whose compressed data is damaged."""
    zstandard = sys.modules.get("zstandard")
    return UnicodeDecodeError, EOFError, OSError, zlib.error, *([zstandard.ZstdError] if zstandard else [])


def _open_zst(path: Path) -> IO[bytes]:
    try:
        import zstandard
    except ImportError as error:
        raise MissingExtraError(f"{path}: .zst files need `pip install 'mnemorank[eval]'` ({error})") from error
    return cast(IO[bytes], zstandard.ZstdDecompressor().stream_reader(path.open("rb")))


def read_json_lines(path: str | Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the location (`file:line`) and value of each object of a JSON Lines file. Blank lines are skipped."""
    with open_text(path) as stream:
        number = 0
        try:
            for number, line in enumerate(stream, 1):
                if not line.strip():
                    continue
                record = parse_json(line, str(path), number)
                location = f"{path}:{number}"
                if not isinstance(record, dict):
                    raise InputError(f"expected a JSON object, got {type(record).__name__}", location=location)
                yield location, record
        except read_errors() as error:
            raise _unreadable(f"{path}:{number + 1}", error) from None


def read_json(path: Path) -> Any:
    """Return the value of a JSON file."""
    with open_text(path) as stream:
        try:
            content = stream.read()
        except read_errors() as error:
            raise _unreadable(str(path), error) from None
    return parse_json(content, str(path))


def parse_json(text: str, name: str, line: int | None = None) -> Any:
    """Parse JSON that was read from a file.

    :param name: the name of the file, for errors.
    :param line: the number of the line in its file; None for a whole file.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        location = f"{name}:{line or error.lineno}"
        raise InputError(f"invalid JSON: {error.msg} at column {error.colno}", location=location) from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, thousands of nested brackets
        raise InputError(f"unsupported JSON: {error}", location=f"{name}:{line or 1}") from None


def _unreadable(location: str, error: Exception) -> InputError:
    return InputError(f"cannot read the file: {error}", location=location, code="unreadable")
