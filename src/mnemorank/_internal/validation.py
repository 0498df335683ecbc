"""Check numbers that a caller sets."""

from __future__ import annotations

import math
from numbers import Integral, Real

from mnemorank.errors import InputError


def check_number(name: str, value: object, low: float, high: float = math.inf, *, whole: bool = False) -> None:
    """Raise an InputError that names the option unless the value is a finite number from `low` to `high`.

    :param whole: accept integers only, so that 3 passes and 3.0 does not.
    """
    is_number = isinstance(value, Integral if whole else Real) and not isinstance(value, bool)
    if is_number and low <= value <= high and value != math.inf:  # type: ignore[operator]
        return
    kind = "a whole number" if whole else "a number"
    bounds = f"of at least {low:g}" if high == math.inf else f"from {low:g} to {high:g}"
    raise InputError(f"expected {kind} {bounds}, got {value!r:.60}", field=name)
