"""Configuration tables become models, and errors name the file and the key."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import AfterValidator, Field

from mnemorank._internal.config import (
    ConfigModel,
    apply_override,
    check_file_name,
    expand_variables,
    read_toml,
    validate_config,
)
from mnemorank.errors import InputError


@dataclass(frozen=True, slots=True)
class Part:
    path: Path
    count: int = 1

    def __post_init__(self) -> None:
        if self.count < 1:
            raise InputError("expected a whole number from 1", field="count")


class Table(ConfigModel):
    rate: float = Field(0.5, ge=0, le=1)
    size: int | None = Field(None, gt=0)
    kind: Literal["a", "b"] = "a"
    is_new: bool = False
    parts: tuple[Part, ...] = ()


class File(ConfigModel):
    name: Annotated[str, AfterValidator(check_file_name)]
    table: Table = Table()


def validate(**table):
    return validate_config(File, {"name": "x", **table}, "my.toml")


def test_lists_become_tuples_strings_paths_and_whole_numbers_floats():
    config = validate(table={"rate": 1, "parts": [{"path": "a/b", "count": 2}]})
    assert config.table.parts == (Part(Path("a/b"), 2),)
    assert config.table.rate == 1.0


@pytest.mark.parametrize(
    ("table", "field", "code"),
    [
        ({"name": ""}, "name", "invalid"),
        ({"name": "a/b"}, "name", "invalid"),
        ({"nmae": 1}, "nmae", "unknown"),
        ({"table": 5}, "table", "invalid"),
        ({"table": {"rate": 2}}, "table.rate", "invalid"),
        ({"table": {"rate": "1"}}, "table.rate", "invalid"),
        ({"table": {"rate": float("nan")}}, "table.rate", "invalid"),
        ({"table": {"size": True}}, "table.size", "invalid"),
        ({"table": {"size": 1.0}}, "table.size", "invalid"),
        ({"table": {"size": 0}}, "table.size", "invalid"),
        ({"table": {"kind": "c"}}, "table.kind", "invalid"),
        ({"table": {"is_new": 1}}, "table.is_new", "invalid"),
        ({"table": {"parts": {}}}, "table.parts", "invalid"),
        ({"table": {"parts": [{}]}}, "table.parts.0.path", "missing"),
        ({"table": {"parts": [{"path": "x"}, {"path": "x", "count": 0}]}}, "table.parts.1.count", "invalid"),
        ({"table": {"parts": [{"path": "x", "cuont": 0}]}}, "table.parts.0.cuont", "unknown"),
    ],
)
def test_an_error_names_the_file_and_the_key(table, field, code):
    with pytest.raises(InputError) as caught:
        validate(**table)
    assert (caught.value.location, caught.value.field) == ("my.toml", field)
    assert caught.value.code == code


def test_messages_say_what_was_expected():
    def message(**table):
        with pytest.raises(InputError) as caught:
            validate(**table)
        return caught.value.message

    assert message(table={"rate": 2}) == "expected a number from 0 to 1, got 2"
    assert message(table={"size": 0}) == "expected a number above 0, got 0"
    assert message(table={"parts": [{"path": "x", "cuont": 1}]}).startswith("unknown key (did you mean 'count'?)")


def test_variables_are_replaced_in_all_strings(monkeypatch):
    monkeypatch.setenv("MY_FOLDER", "/data")
    monkeypatch.delenv("OTHER", raising=False)
    assert expand_variables({"a": ["${MY_FOLDER}/x"], "n": 1}, "my.toml") == {"a": ["/data/x"], "n": 1}
    package = expand_variables("${mnemorank}", "my.toml")
    assert (Path(package) / "errors.py").is_file()
    with pytest.raises(InputError) as caught:
        expand_variables({"a": [{"b": "${OTHER}"}]}, "my.toml")
    assert (caught.value.location, caught.value.field) == ("my.toml", "a.0.b")
    assert caught.value.code == "missing"


def test_overrides_set_and_remove_values_without_changing_the_table():
    table = {"a": {"b": 1}, "list": [{"c": 1}, {"c": 2}]}
    assert apply_override(table, "a.b=[1, 2]")["a"] == {"b": [1, 2]}
    assert apply_override(table, "a.new.deep=plain text")["a"] == {"b": 1, "new": {"deep": "plain text"}}
    assert apply_override(table, "list.1.c=true")["list"][1] == {"c": True}
    assert apply_override(table, "list.0=")["list"] == [{"c": 2}]
    assert apply_override(table, "a.b=")["a"] == {}
    assert table == {"a": {"b": 1}, "list": [{"c": 1}, {"c": 2}]}


@pytest.mark.parametrize(
    ("override", "location", "field"),
    [
        ("a", None, "--set"),
        ("=1", None, "--set"),
        ("list.7.c=1", "--set", "list.7.c"),
        ("a.b.c=1", "--set", "a.b.c"),
        ("a.x=", "--set", "a.x"),
    ],
)
def test_invalid_overrides_are_named(override, location, field):
    with pytest.raises(InputError) as caught:
        apply_override({"a": {"b": 1}, "list": [{"c": 1}]}, override)
    assert (caught.value.location, caught.value.field) == (location, field)


def test_a_file_that_is_not_toml_is_named(tmp_path):
    path = tmp_path / "bad.toml"
    path.write_text("model = [", encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_toml(path)
    assert caught.value.location == str(path)
    assert caught.value.code == "unreadable"
