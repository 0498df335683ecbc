"""The tables of plugins."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from mnemorank import InputError
from mnemorank._internal.plugins import PluginTable


def test_plugins_are_found_by_name_and_listed_in_order():
    table = PluginTable("format")
    second, first = (table.add(SimpleNamespace(name=name)) for name in ("b", "a"))
    assert (table["a"], table["b"]) == (first, second)
    assert list(table) == ["a", "b"]
    assert "a" in table
    assert "c" not in table


@pytest.mark.parametrize("name", ["c", None, []])
def test_an_unknown_name_is_an_error_that_lists_the_known_ones(name):
    table = PluginTable("format")
    table.add(SimpleNamespace(name="a"))
    with pytest.raises(InputError, match=r"a$") as caught:
        table[name]
    assert caught.value.code == "unknown"


def test_a_name_is_taken_once():
    table = PluginTable("format")
    table.add(SimpleNamespace(name="a"))
    with pytest.raises(ValueError, match="a"):
        table.add(SimpleNamespace(name="a"))
