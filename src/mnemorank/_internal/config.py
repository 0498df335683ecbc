"""Configuration files: pydantic models from TOML tables, environment variables, and `key=value` overrides.

Needs pydantic, which the extras that read configuration files install.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from mnemorank.errors import InputError

_VARIABLE = re.compile(r"\$\{(\w+)\}")
# The option of the command line that overrides a key.
_OVERRIDE = "--set"


class ConfigModel(BaseModel):
    """Base class of configuration tables: immutable, strict types, no unknown keys, no infinities."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


ModelT = TypeVar("ModelT", bound=BaseModel)


def read_toml(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"cannot read the file as TOML: {error}", location=str(path), code="unreadable") from None


def validate_config(model: type[ModelT], table: object, source: str, path: str = "") -> ModelT:
    """Build a model from a table; the first error is an `InputError` with the source as location, the key as field.

    :param source: where the table comes from, usually a file name.
    :param path: the key path of the table in its source, such as `loss.0.options`.
    """
    # Validated as JSON: types are strict, but a list may become a tuple and a string a path.
    text = json.dumps(table, default=str)
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        raise _input_error(error.errors(include_url=False)[0], model, source, path) from None


def input_error(error: ValidationError, model: type[BaseModel]) -> InputError:
    """Translate the first error of a validation; the field is the key path."""
    return _input_error(error.errors(include_url=False)[0], model, "", "")


def expand_variables(value: Any, source: str, path: str = "") -> Any:
    """Replace `${NAME}` in all strings of a table by environment variables; `${mnemorank}` is the package folder."""
    if isinstance(value, Mapping):
        return {key: expand_variables(item, source, f"{path}.{key}".lstrip(".")) for key, item in value.items()}
    if isinstance(value, list):
        return [expand_variables(item, source, f"{path}.{i}".lstrip(".")) for i, item in enumerate(value)]
    if not isinstance(value, str):
        return value

    def variable(match: re.Match[str]) -> str:
        if match[1] == "mnemorank":
            return str(Path(__file__).parents[1])
        if match[1] not in os.environ:
            message = f"environment variable {match[1]} is not set"
            raise InputError(message, field=path, code="missing", location=source)
        return os.environ[match[1]]

    return _VARIABLE.sub(variable, value)


def apply_override(table: Mapping[str, Any], override: str) -> dict[str, Any]:
    """Return a copy of the tables with one value set.

    :param override: `key=value`, such as `model.base=/models/minilm` or `stage.0.epochs=2`. The value is TOML, or a
        plain string. `key=` removes the key.
    """
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise InputError(f"expected key=value, got {override!r}", field=_OVERRIDE)
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text or None
    return _with_value(table, key.strip().split("."), value, key.strip())  # type: ignore[no-any-return]


def check_choice(value: str, choices: Sequence[str]) -> str:
    """Return the value if it is one of the choices; for validators of names that are only known at run time."""
    if value not in choices:
        raise InputError(f"expected one of {', '.join(choices)}, got {value!r:.60}")
    return value


def check_file_name(value: str) -> str:
    """Return the value if it can be the name of a file."""
    if not value.strip() or value in (".", "..") or any(mark in value for mark in "/\\\0"):
        raise InputError(f"expected a valid file name without / or \\, got {value!r:.60}")
    return value


def _with_value(node: Any, keys: list[str], value: object, field: str) -> Any:
    head, *rest = keys
    if isinstance(node, list):
        if not head.isdigit() or int(head) >= len(node):
            message = f"expected an index from 0 to {len(node) - 1}, got {head!r}"
            raise InputError(message, field=field, location=_OVERRIDE)
        index = int(head)
        if not rest and value is None:
            return [*node[:index], *node[index + 1 :]]
        item = _with_value(node[index], rest, value, field) if rest else value
        return [*node[:index], item, *node[index + 1 :]]
    if not isinstance(node, Mapping):
        raise InputError(f"{head!r} is inside a value, not inside a table", field=field, location=_OVERRIDE)
    if not rest and value is None:
        if head not in node:
            message = f"no such key to remove; expected one of {', '.join(node)}"
            raise InputError(message, field=field, code="unknown", location=_OVERRIDE)
        return {key: kept for key, kept in node.items() if key != head}
    return {**node, head: _with_value(node.get(head, {}), rest, value, field) if rest else value}


_EXPECTED = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "float_parsing": "a number",
    "bool_parsing": "true or false",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "a string",
    "path_type": "a path",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
    "dataclass_type": "a table",
}
_BOUNDS = ("greater_than", "greater_than_equal", "less_than", "less_than_equal")


def _input_error(error: Any, model: Any, source: str, path: str) -> InputError:
    """Translate an error of pydantic.

    :param path: the key path of the validated table.
    """
    kind, keys, value = error["type"], [str(part) for part in error["loc"]], error["input"]
    code = "invalid"
    if kind == "missing":
        message, code = "is required", "missing"
    elif kind in ("extra_forbidden", "unexpected_keyword_argument"):
        known = _keys(_type_at(model, keys[:-1]))
        near = difflib.get_close_matches(keys[-1], known, 1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        message, code = f"unknown key{hint}; expected one of {', '.join(known)}", "unknown"
    elif kind == "value_error" and isinstance(cause := error["ctx"]["error"], InputError):
        message, code = cause.message, cause.code
        keys += [cause.field] if cause.field else []
    elif kind == "value_error":
        message = str(error["ctx"]["error"])
    elif kind == "literal_error":
        message = f"expected {error['ctx']['expected']}, got {value!r:.60}"
    elif kind in _BOUNDS:
        message = f"expected a number {_range(_type_at(model, keys[:-1]), keys[-1])}, got {value!r:.60}"
    elif kind in _EXPECTED:
        message = f"expected {_EXPECTED[kind]}, got {value!r:.60}"
    else:
        message = error["msg"]
    key = ".".join([path, *keys] if path else keys)
    return InputError(message, field=key or None, code=code, location=source or None)


def _range(model: Any, key: str) -> str:
    """Return the allowed range of a number, such as `from 0 to 1` or `above 0`."""
    limits: dict[str, float] = {}
    for constraint in model.model_fields[key].metadata:
        limits |= {name: getattr(constraint, name) for name in ("gt", "ge", "lt", "le") if hasattr(constraint, name)}
    words = {"gt": "above {}", "ge": "from {}", "lt": "below {}", "le": "to {}" if "ge" in limits else "up to {}"}
    joint = " " if {"ge", "le"} <= limits.keys() else " and "
    return joint.join(text.format(f"{limits[name]:.10g}") for name, text in words.items() if name in limits)


def _type_at(model: Any, keys: Sequence[str]) -> Any:
    """Return the model or dataclass at a key path, with optional and list types unwrapped."""
    for key in keys:
        if key.isdigit():
            continue
        is_model = isinstance(model, type) and issubclass(model, BaseModel)
        model = model.model_fields[key].annotation if is_model else typing.get_type_hints(model)[key]
        while (origin := typing.get_origin(model)) is not None:
            inner = [each for each in typing.get_args(model) if each not in (type(None), Ellipsis)]
            if origin not in (tuple, list, types.UnionType, typing.Union, typing.Annotated):
                break
            model = inner[0]
    return model


def _keys(model: Any) -> list[str]:
    return [field.name for field in fields(model)] if is_dataclass(model) else list(model.model_fields)
