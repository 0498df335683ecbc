"""Read the objects of data files one at a time, with checked access to their fields."""

from __future__ import annotations

import codecs
import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from mnemorank._internal.jsonio import open_binary, open_text, read_errors, read_json_lines
from mnemorank.errors import InputError, MissingExtraError
from mnemorank.memory.moment import Moment

T = TypeVar("T")

_TYPE_NAMES: Mapping[type, str] = {
    str: "a string",
    list: "a list",
    dict: "an object",
    int: "a whole number",
    bool: "true or false",
}


@dataclass(frozen=True, slots=True)
class Record:
    """A JSON object of a file. Its methods return fields, or raise an `InputError` with the field and the location.

    :param location: the file with line or index, such as `data.jsonl:3`.
    :param path: where the object is inside the outermost object, such as `questions.2`.
    """

    values: Mapping[str, Any]
    location: str
    path: str = ""

    def field(self, key: str) -> str:
        """Return the full path of a key."""
        return f"{self.path}.{key}" if self.path else key

    def error(self, message: str, key: str = "", *, code: str = "invalid") -> InputError:
        """Return an error about a field, or about the object itself."""
        field = self.field(key) if key else self.path
        return InputError(message, field=field or None, code=code, location=self.location)

    def get(self, key: str, kind: type[T]) -> T:
        """Return a required field of the given type."""
        if key not in self.values:
            raise self.error(f"is missing; the object has {', '.join(self.values) or 'no keys'}", key)
        value = self.values[key]
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise self.error(f"expected {_TYPE_NAMES.get(kind, kind.__name__)}, got {value!r:.60}", key)
        return value

    def text(self, key: str) -> str:
        """Return a required string that is not empty."""
        value = self.values.get(key)
        if not isinstance(value, str) or not value.strip():
            raise self.error(f"expected a string that is not empty, got {value!r:.60}", key)
        return value

    def optional_text(self, key: str) -> str | None:
        """Return a string, or None if the key is missing or null."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, str):
            raise self.error(f"expected a string or null, got {value!r:.60}", key)
        return value

    def optional_list(self, key: str) -> list[Any]:
        """Return a list, empty if the key is missing or null."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, list):
            raise self.error(f"expected a list, got {value!r:.60}", key)
        return value or []

    def number(self, key: str, default: float, maximum: float) -> float:
        """Return a number from 0 to the maximum."""
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= maximum:
            raise self.error(f"expected a number from 0 to {maximum:g}, got {value!r:.60}", key)
        return float(value)

    def moment(self, key: str, parse: Callable[[object], Moment] = Moment.parse) -> Moment | None:
        """Return a date or time, or None if the key is missing or empty.

        :param parse: reads the date format of the benchmark; raises an `InputError`.
        """
        value = self.values.get(key)
        if not value:
            return None
        try:
            return parse(value)
        except InputError as error:
            raise self.error(error.message, key) from None

    def objects(self, key: str) -> list[Record]:
        """Return a required list of objects."""
        records = []
        for index, value in enumerate(self.get(key, list)):
            record = Record(value, self.location, self.field(f"{key}.{index}"))
            if not isinstance(value, dict):
                raise record.error(f"expected an object, got {value!r:.60}")
            records.append(record)
        return records

    def object(self, key: str) -> Record:
        """Return a required object."""
        return Record(self.get(key, dict), self.location, self.field(key))


def read_records(path: Path) -> Iterator[Record]:
    """Yield the objects of a JSON array or a JSON Lines file, one at a time.

    A location is `file:line` in JSON Lines and `file[index]` in an array.
    """
    return _read_array(path) if _first_character(path) == "[" else read_lines(path)


def read_lines(path: Path) -> Iterator[Record]:
    """Yield the objects of a JSON Lines file."""
    return (Record(value, location) for location, value in read_json_lines(path))


def _first_character(path: Path) -> str:
    with open_text(path) as stream:
        try:
            while character := stream.read(1):
                if not character.isspace():
                    return character
        except read_errors() as error:
            raise InputError(f"cannot read the file: {error}", location=str(path), code="unreadable") from None
    return ""


def _read_array(path: Path) -> Iterator[Record]:
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
                yield Record(value, f"{path}[{index}]")
                index += 1  # of the next object, in case it is invalid
        except ijson.JSONError as error:
            summary = str(error).partition("\n")[0]
            raise InputError(f"invalid JSON: {summary}", location=f"{path}[{index}]") from None
        except read_errors() as error:
            raise InputError(f"cannot read the file: {error}", location=str(path), code="unreadable") from None
