"""Reading JSON and JSON Lines, plain or compressed, with errors that name file and line."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from mnemorank.errors import InputError, MissingExtraError


def open_text(path: Path) -> IO[str]:
    """Open a file for reading as UTF-8, unpacking `.gz` and `.zst`."""
    try:
        if path.suffix == ".gz":
            return gzip.open(path, "rt", encoding="utf-8")
        if path.suffix == ".zst":
            return _open_zst(path)
        return path.open(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None


def _open_zst(path: Path) -> IO[str]:
    try:
        import zstandard
    except ImportError as error:
        raise MissingExtraError(f"{path}: reading .zst needs `pip install 'mnemorank[eval]'` ({error})") from error
    return io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader(path.open("rb")), encoding="utf-8")


def read_json_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each object of a JSON Lines file with where it stands (`file:line`), for errors. Blank lines are passed over."""
    with open_text(path) as stream:
        number = 0
        try:
            for number, line in enumerate(stream, 1):
                if not line.strip():
                    continue
                record = json.loads(line)
                if not isinstance(record, dict):
                    raise InputError(f"{path}:{number}: expected a JSON object, got {type(record).__name__}")
                yield f"{path}:{number}", record
        except json.JSONDecodeError as error:
            raise InputError(f"{path}:{number}: not valid JSON: {error.msg} at column {error.colno}") from None
        except (UnicodeDecodeError, EOFError, gzip.BadGzipFile) as error:
            raise InputError(f"{path}:{number + 1}: cannot be read: {error}") from None


def read_json(path: Path) -> Any:
    """The value of a JSON file."""
    with open_text(path) as stream:
        try:
            return json.load(stream)
        except json.JSONDecodeError as error:
            raise InputError(f"{path}:{error.lineno}: not valid JSON: {error.msg} at column {error.colno}") from None
        except (UnicodeDecodeError, EOFError, gzip.BadGzipFile) as error:
            raise InputError(f"{path}: cannot be read: {error}") from None
