"""Read the objects of benchmark files that may be larger than memory."""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mnemorank._internal.jsonio import open_binary, open_text, read_errors, read_json_lines
from mnemorank.errors import InputError, MissingExtraError


def read_json_records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the location and value of each object of a JSON array or a JSON Lines file, one at a time.

    A location is `file:line` in JSON Lines and `file[index]` in an array.
    """
    return _read_array(path) if _first_character(path) == "[" else read_json_lines(path)


def _first_character(path: Path) -> str:
    with open_text(path) as stream:
        try:
            while character := stream.read(1):
                if not character.isspace():
                    return character
        except read_errors() as error:
            raise InputError(f"cannot read the file: {error}", location=str(path), code="unreadable") from None
    return ""


def _read_array(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        import ijson
    except ImportError as error:
        raise MissingExtraError(f"{path}: JSON arrays need `pip install 'mnemorank[eval]'` ({error})") from error
    index = 0
    with open_binary(path) as raw, io.BufferedReader(raw) as stream:  # type: ignore[type-var]
        try:
            if stream.peek(len(codecs.BOM_UTF8)).startswith(codecs.BOM_UTF8):
                stream.read(len(codecs.BOM_UTF8))
            for index, value in enumerate(ijson.items(stream, "item", use_float=True)):
                if not isinstance(value, dict):
                    raise InputError(f"expected a JSON object, got {type(value).__name__}", location=f"{path}[{index}]")
                yield f"{path}[{index}]", value
                index += 1  # of the next object, in case it is invalid
        except ijson.JSONError as error:
            summary = str(error).partition("\n")[0]
            raise InputError(f"invalid JSON: {summary}", location=f"{path}[{index}]") from None
        except read_errors() as error:
            raise InputError(f"cannot read the file: {error}", location=str(path), code="unreadable") from None
