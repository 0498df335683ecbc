"""Reading JSON and JSON Lines, plain or compressed, with errors that name file and line."""

from __future__ import annotations

import gzip
import io
import json
import re
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from mnemorank.errors import InputError, MissingExtraError


def open_text(path: str | Path) -> IO[str]:
    """Open a file for reading as UTF-8, with or without a byte-order mark, unpacking `.gz` and `.zst`."""
    path = Path(path)
    try:
        if path.suffix == ".gz":
            return gzip.open(path, "rt", encoding="utf-8-sig")
        if path.suffix == ".zst":
            return _open_zst(path)
        return path.open(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None


def unreadable() -> tuple[type[Exception], ...]:
    """What reading a file may raise: it is no text, or its compressed bytes are damaged."""
    zstandard = sys.modules.get("zstandard")
    return UnicodeDecodeError, EOFError, OSError, zlib.error, *([zstandard.ZstdError] if zstandard else [])


def _open_zst(path: Path) -> IO[str]:
    try:
        import zstandard
    except ImportError as error:
        raise MissingExtraError(f"{path}: reading .zst needs `pip install 'mnemorank[eval]'` ({error})") from error
    return io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader(path.open("rb")), encoding="utf-8-sig")


def read_json_lines(path: str | Path) -> Iterator[tuple[str, dict[str, Any]]]:
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
        except unreadable() as error:
            raise InputError(f"{path}:{number + 1}: cannot be read: {error}") from None
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}:{number}: not usable JSON: {error}") from None


def read_json(path: Path) -> Any:
    """The value of a JSON file."""
    with open_text(path) as stream:
        try:
            return json.load(stream)
        except json.JSONDecodeError as error:
            raise InputError(f"{path}:{error.lineno}: not valid JSON: {error.msg} at column {error.colno}") from None
        except unreadable() as error:
            raise InputError(f"{path}: cannot be read: {error}") from None


def read_json_records(path: Path, chunk: int = 1 << 20) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each object of a JSON array or of JSON Lines, whichever the file is, with where it stands (`file:line`).

    Holds one object at a time, so that a file may be larger than memory.
    """
    with open_text(path) as stream:
        try:
            yield from _Objects(path, stream, chunk)
        except unreadable() as error:
            raise InputError(f"{path}: cannot be read: {error}") from None


_SPACE = re.compile(r"[ \t\r\n\ufeff]*")


class _Objects:
    """Decodes objects one after the other from a stream of text."""

    def __init__(self, path: Path, stream: IO[str], chunk: int) -> None:
        self._path, self._stream, self._chunk = path, stream, chunk
        self._buffer = ""
        self._position = 0
        self._line = 1
        self._at_end = False
        self._decode = json.JSONDecoder().raw_decode

    def __iter__(self) -> Iterator[tuple[str, dict[str, Any]]]:
        if self._next_character() != "[":
            while self._next_character():
                yield self._object()
            return
        self._advance(self._position + 1)
        if self._next_character() != "]":
            yield self._object()
            while self._next_character() == ",":
                self._advance(self._position + 1)
                self._next_character()
                yield self._object()
        character = self._next_character()
        if character != "]":
            got = f"got {character!r}" if character else "the file is cut off"
            raise InputError(f"{self._path}:{self._line}: expected , or ] after an object of the array, {got}")
        self._advance(self._position + 1)
        if self._next_character():
            raise InputError(f"{self._path}:{self._line}: something follows the array")

    def _object(self) -> tuple[str, dict[str, Any]]:
        where = f"{self._path}:{self._line}"
        size = self._chunk
        while True:
            try:
                value, end = self._decode(self._buffer, self._position)
            except json.JSONDecodeError as error:
                if self._at_end or not self._may_be_cut(error):
                    line = self._line + self._buffer.count("\n", self._position, error.pos)
                    raise InputError(f"{self._path}:{line}: not valid JSON: {error.msg}") from None
                self._read(size)
                size *= 2
                continue
            except (ValueError, RecursionError) as error:
                raise InputError(f"{where}: not usable JSON: {error}") from None
            if not isinstance(value, dict):
                raise InputError(f"{where}: expected a JSON object, got {type(value).__name__}")
            self._advance(end)
            return where, value

    def _may_be_cut(self, error: json.JSONDecodeError) -> bool:
        """Whether more text may mend the error: it lies at the buffer's end, or in a string that has not ended."""
        return error.msg.startswith("Unterminated string") or error.pos >= len(self._buffer) - 12

    def _next_character(self) -> str:
        """The next that is not white space, which is passed over; empty at the end of the file."""
        while True:
            match = _SPACE.match(self._buffer, self._position)
            self._advance(match.end() if match else self._position)
            if self._position < len(self._buffer) or self._at_end:
                return self._buffer[self._position : self._position + 1]
            self._read(self._chunk)

    def _read(self, size: int) -> None:
        text = self._stream.read(size)
        self._buffer = self._buffer[self._position :] + text
        self._position = 0
        self._at_end = not text

    def _advance(self, position: int) -> None:
        self._line += self._buffer.count("\n", self._position, position)
        self._position = position
