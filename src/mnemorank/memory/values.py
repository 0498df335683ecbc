"""The values of a record's fields, read one by one: what is wrong with one is raised, or reported and left out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from numbers import Real
from typing import Any, Literal, TypeAlias

from mnemorank.errors import InputError
from mnemorank.memory.moment import Moment

OnError: TypeAlias = Literal["raise", "skip"]
Report: TypeAlias = Callable[[str], None]

DATES = ("occurred_start", "occurred_end", "mentioned_at")
_ENTITY_NAMES = ("name", "text", "entity")


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads one record's values, raising or reporting what is wrong with them.

    :param where: how errors name the record.
    """

    where: str
    on_error: OnError
    report: Report

    def problem(self, message: str) -> None:
        text = f"{self.where}: {message}"
        if self.on_error == "raise":
            raise InputError(text)
        self.report(text)

    def value(self, name: str, label: str, value: object) -> Any:
        """The value of a field of Memory; None where there is none.

        :param label: how errors name it.
        """
        if name == "first_stage_score":
            return self.score(label, value)
        if is_missing(value):
            return None
        if name in DATES:
            return self.moment(label, value)
        match name:
            case "id":
                return self.id(label, value)
            case "context":
                return self.words(label, value)
            case "entities":
                return self.entities(label, value)
            case "trust":
                return self.known_number(label, value, 0, 1)
            case "confidence":
                return carried_number(value)
            case "proof_count":
                number = self.known_number(label, value, 0, 1e9)
                return None if number is None else int(number)
        return self.word(label, value)

    def id(self, label: str, value: object) -> str | None:
        """Ids are of many types (UUID, ObjectId); what holds several values is none."""
        if isinstance(value, (Mapping, list, tuple, set, frozenset)):
            self.problem(f"{label}: expected an id, got {type(value).__name__}")
            return None
        return as_id(_plain(value))

    def word(self, label: str, value: object) -> str | None:
        value = _plain(value)
        if isinstance(value, (str, int)) and not isinstance(value, bool):
            return str(value)
        self.problem(f"{label}: expected a string, got {type(value).__name__}")
        return None

    def words(self, label: str, value: object) -> str | None:
        """A word, or several with commas."""
        parts = _parts(value)
        if parts is None:
            return self.word(label, value)
        found = [self.word(label, part) for part in parts]
        return ", ".join(part for part in found if part) or None

    def moment(self, label: str, value: object) -> Moment | None:
        try:
            return Moment.parse(value)
        except InputError as error:
            self.problem(f"{label}: {error}")
            return None

    def score(self, label: str, value: object) -> float | None:
        """A first-stage score, on any scale; one that is no finite number is reported."""
        is_absent = value is None or (isinstance(value, str) and not value)
        number = None if is_absent else self.number(label, value)
        if number is None or math.isfinite(number):
            return number
        shown = "NaN" if math.isnan(number) else "infinite"
        self.report(f"{self.where}: {label} is {shown} and counts as missing")
        return None

    def number(self, label: str, value: object, low: float = -math.inf, high: float = math.inf) -> float | None:
        try:
            number = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            self.problem(f"{label}: expected a number, got {value!r:.60}")
            return None
        if number < low or number > high:
            self.problem(f"{label}: expected a number from {low:g} to {high:g}, got {number:g}")
            return None
        return number

    def known_number(self, label: str, value: object, low: float, high: float) -> float | None:
        """A number in its range; one that is none (`nan` in a table) is missing."""
        number = self.number(label, value, low, high)
        return None if number is None or math.isnan(number) else number

    def entities(self, label: str, value: object) -> tuple[str, ...]:
        """Names in a list or with commas; of a dict in the list its `name`, `text` or `entity`."""
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        parts = _parts(value)
        if parts is None:
            self.problem(f"{label}: expected a list of names, got {value!r:.60}")
            return ()
        names = [_entity(part) for part in parts]
        if not all(isinstance(name, str) for name in names):
            self.problem(f"{label}: expected a list of names or of dicts with a `name`, got {value!r:.60}")
        return tuple(name for name in names if isinstance(name, str))


def is_missing(value: object) -> bool:
    """None, an empty string, or what numpy and pandas have for nothing: NaN, NaT, NA."""
    if value is None or isinstance(value, str):
        return not value
    if type(value).__name__ in ("NaTType", "NAType", "datetime64"):
        return str(value) in ("NaT", "<NA>")
    if isinstance(value, Decimal):
        return value.is_nan()
    return isinstance(value, Real) and not isinstance(value, int) and math.isnan(value)


def as_id(value: object) -> str:
    """An id as text. A table with gaps makes floats of whole numbers: 2.0 is the id 2."""
    is_whole = isinstance(value, Real) and not isinstance(value, int) and float(value).is_integer()
    return str(int(value)) if is_whole else str(value)  # type: ignore[call-overload]


def is_number(value: object) -> bool:
    return isinstance(value, (Real, Decimal)) and not isinstance(value, bool)


def carried_number(value: object) -> float | None:
    """The number that a value is, of any size; None where it is none."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _plain(value: object) -> object:
    return value.value if isinstance(value, Enum) else value


def _entity(value: object) -> object:
    if isinstance(value, Mapping):
        return next((value[key] for key in _ENTITY_NAMES if value.get(key)), None)
    return value


def _parts(value: object) -> list[Any] | None:
    """What a list, a tuple, a set or an array holds; None for anything else."""
    if not isinstance(value, Iterable) or isinstance(value, (str, bytes, Mapping)):
        return None
    parts = [part for part in value if not is_missing(part)]
    return sorted(parts, key=str) if isinstance(value, (set, frozenset)) else parts
