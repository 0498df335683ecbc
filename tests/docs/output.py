"""Compare the output of an example with what its page shows."""

from __future__ import annotations

import json
import math
import re
from typing import Any

# Scores of the INT8 model differ in the last digits between processors, and so do the bars that show them.
TOLERANCE, RELATIVE_TOLERANCE = 0.011, 0.03
ELLIPSIS = "…"
_NUMBER = re.compile(r"-?\d+\.\d+")
_BAR = re.compile("[▏▎▍▌▋▊▉█]+ *")


def matches(expected: str, actual: str) -> bool:
    """Return whether two outputs agree, up to trailing spaces and small differences of decimal numbers.

    A line of the expected output that is only an ellipsis stands for any number of lines.
    """
    return _match_lines(_lines(expected), _lines(actual))


def matches_json(expected: str, actual: str) -> bool:
    """Return whether two JSON texts agree; an expected "…" stands for any value, or for the rest of a list."""
    return _match_values(json.loads(expected), json.loads(actual))


def _lines(text: str) -> list[str]:
    return [_BAR.sub("█ ", line).rstrip() for line in text.strip("\n").split("\n")]


def _match_lines(expected: list[str], actual: list[str]) -> bool:
    if not expected:
        return not actual
    if expected[0].strip() == ELLIPSIS:
        return any(_match_lines(expected[1:], actual[start:]) for start in range(len(actual) + 1))
    return bool(actual) and _match_line(expected[0], actual[0]) and _match_lines(expected[1:], actual[1:])


def _match_line(expected: str, actual: str) -> bool:
    if _NUMBER.split(expected) != _NUMBER.split(actual):
        return False
    numbers = zip(_NUMBER.findall(expected), _NUMBER.findall(actual), strict=True)
    return all(_is_close(float(one), float(other)) for one, other in numbers)


def _is_close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=RELATIVE_TOLERANCE, abs_tol=TOLERANCE)


def _match_values(expected: Any, actual: Any) -> bool:
    if expected == ELLIPSIS:
        return True
    if isinstance(expected, dict):
        return (
            isinstance(actual, dict)
            and expected.keys() == actual.keys()
            and all(_match_values(expected[key], actual[key]) for key in expected)
        )
    if isinstance(expected, list):
        if expected and expected[-1] == ELLIPSIS:
            expected, actual = expected[:-1], actual[: len(expected) - 1]
        return len(expected) == len(actual) and all(map(_match_values, expected, actual))
    if isinstance(expected, float) and isinstance(actual, (int, float)):
        return _is_close(expected, actual)
    return bool(expected == actual)
