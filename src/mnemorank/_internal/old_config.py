"""From TOML tables to dataclasses: every unknown key, wrong type or missing value is an error that names the key."""

from __future__ import annotations

import difflib
import math
import os
import re
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from mnemorank.errors import InputError

T = TypeVar("T")
_VARIABLE = re.compile(r"\$\{(\w+)\}")


def read_table(kind: type[T], table: object, where: str) -> T:
    """Build the dataclass from a table.

    :param where: file and table, for errors, such as `hindsight.toml: model`.
    """
    if not isinstance(table, Mapping):
        raise InputError(f"{where}: expected a table, got {table!r:.60}")
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(kind)
    for key in table:
        if key not in known:
            raise InputError(f"{join(where, key)}: unknown key{_nearest(key, known)}; there are: {', '.join(known)}")
    for name, field in known.items():
        if name not in table and field.default is MISSING and field.default_factory is MISSING:
            raise InputError(f"{join(where, name)}: is required")
    try:
        return kind(**{key: _value(hints[key], value, join(where, key)) for key, value in table.items()})
    except ValueError as error:
        if isinstance(error, InputError) and str(error).startswith(where):
            raise
        raise InputError(f"{join(where, '')}{error}") from None


def join(where: str, key: str) -> str:
    """`file: table` and a key of it make `file: table.key`."""
    return f"{where}: {key}" if where.endswith((".toml", "recipe")) else f"{where}.{key}"


def expand(text: str, where: str) -> str:
    """Put environment variables in the place of `${NAME}`; `${mnemorank}` is the package's own folder."""

    def value(match: re.Match[str]) -> str:
        if match[1] == "mnemorank":
            return str(Path(__file__).parents[1])
        if match[1] not in os.environ:
            raise InputError(f"{where}: the environment variable {match[1]} is not set")
        return os.environ[match[1]]

    return _VARIABLE.sub(value, text)


def _value(hint: Any, value: object, where: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return None if value is None else _value(next(a for a in arguments if a is not type(None)), value, where)
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise InputError(f"{where}: expected a list, got {value!r:.60}")
        return tuple(_value(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if isinstance(hint, type) and is_dataclass(hint):
        return value if isinstance(value, hint) else read_table(hint, value, where)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint is float and isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{where}: expected a finite number, got {value}")
    if hint is Path and isinstance(value, (str, Path)):
        return Path(expand(str(value), where)).expanduser()
    if hint is str and isinstance(value, str):
        return expand(value, where)
    plain = dict if origin in (dict, Mapping) else hint
    if not isinstance(value, plain) or (isinstance(value, bool) and plain is not bool):
        raise InputError(f"{where}: expected {_NAMES.get(plain, 'a value')}, got {value!r:.60}")
    if isinstance(value, dict):
        for key, number in value.items():
            if isinstance(number, float) and not math.isfinite(number):
                raise InputError(f"{where}.{key}: expected a finite number, got {number}")
    return value


_NAMES = {int: "a whole number", float: "a number", str: "a string", bool: "true or false", dict: "a table"}


def _nearest(key: str, known: Mapping[str, object]) -> str:
    near = difflib.get_close_matches(key, list(known), 1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def one_of(table: Any, key: str, allowed: Sequence[object]) -> None:
    if getattr(table, key) not in allowed:
        names = ", ".join(str(value) for value in allowed if value is not None)
        raise InputError(f"expected one of {names}, got {getattr(table, key)!r}", field=key)


def file_name(table: Any, key: str) -> None:
    """A name that files are called by."""
    value = getattr(table, key)
    if not value.strip() or value in (".", "..") or any(mark in value for mark in "/\\\0"):
        raise InputError(f"expected a name that a file can have, without / or \\, got {value!r:.60}", field=key)


def at_least(table: Any, key: str, low: float) -> None:
    value = getattr(table, key)
    if value is not None and value < low:
        raise InputError(f"expected a number from {low}, got {value}", field=key)


def positive(table: Any, key: str) -> None:
    if not getattr(table, key) > 0:
        raise InputError(f"expected a number above 0, got {getattr(table, key)}", field=key)


def between(table: Any, key: str, low: float, high: float) -> None:
    if not low <= getattr(table, key) <= high:
        raise InputError(f"expected a number from {low} to {high}, got {getattr(table, key)}", field=key)
