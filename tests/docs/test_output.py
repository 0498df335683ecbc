"""The comparison of outputs: strict about words, lenient about the last digits."""

from __future__ import annotations

import pytest

from tests.docs.output import matches, matches_json


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        ("1 0.85 Ruby\n", "1 0.853 Ruby  \n"),
        ("raw 5.78", "raw 5.90"),
        ("█████▏ 0.85", "█████▎ 0.86"),
        ("first\n…\nlast", "first\na\nb\nlast"),
    ],
)
def test_equal_outputs(expected: str, actual: str):
    assert matches(expected, actual)


@pytest.mark.parametrize(
    ("expected", "actual"),
    [("1 0.85 Ruby", "2 0.85 Ruby"), ("0.85", "0.95"), ("Ruby", "Ada"), ("a", "a\nb"), ("a\nb", "a")],
)
def test_different_outputs(expected: str, actual: str):
    assert not matches(expected, actual)


def test_json():
    assert matches_json(
        '{"id": "…", "results": [{"score": 0.84}, "…"]}', '{"id": 7, "results": [{"score": 0.8401}, 1, 2]}'
    )
    assert not matches_json('{"score": 0.84}', '{"score": 0.5}')
    assert not matches_json('{"a": 1}', '{"a": 1, "b": 2}')
    assert not matches_json("[1, 2]", "[1]")
