"""Numbers that a caller sets: what is none, or is out of range, is an error that names the option."""

from __future__ import annotations

import math
from numbers import Integral, Real

from mnemorank.errors import InputError


def check_number(name: str, value: object, low: float, high: float = math.inf, *, whole: bool = False) -> None:
    """:param whole: 3 and 3.0 are numbers, only 3 is a whole one."""
    is_number = isinstance(value, Integral if whole else Real) and not isinstance(value, bool)
    if is_number and low <= value <= high and value != math.inf:  # type: ignore[operator]
        return
    kind = "a whole number" if whole else "a number"
    extent = f"from {low:g}" if high == math.inf else f"from {low:g} to {high:g}"
    raise InputError(f"expected {kind} {extent}, got {value!r:.60}", field=name)
