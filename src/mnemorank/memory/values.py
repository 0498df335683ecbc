"""Read the values of a record's fields. A bad value is raised, or reported and left out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from numbers import Real
from typing import Any, Literal, TypeAlias

from mnemorank.errors import InputError
from mnemorank.memory.moment import Moment

OnError: TypeAlias = Literal["raise", "skip"]
Report: TypeAlias = Callable[[str], None]

DATE_FIELDS = ("occurred_start", "occurred_end", "mentioned_at")
_ENTITY_NAME_KEYS = ("name", "text", "entity")


@dataclass(frozen=True, slots=True)
class ValueReader:
    """Reads the values of one record.

    :param path: the dotted path of the record, such as `memories.3`; empty for a record on its own.
    :param location: the file and line of the record, if it comes from a file.
    :param reported_once: problems that are reported once for a whole pool.
    """

    path: str
    location: str | None
    on_error: OnError
    report: Report
    reported_once: set[str] = field(default_factory=set)

    def error(self, message: str, name: str = "", *, code: str = "invalid") -> InputError:
        """Return the error for a field of the record, or for the record itself."""
        path = ".".join(part for part in (self.path, name) if part)
        return InputError(message, field=path or None, code=code, location=self.location)

    def problem(self, name: str, message: str) -> None:
        """Raise or report a bad value."""
        error = self.error(message, name)
        if self.on_error == "raise":
            raise error
        self.report(str(error))

    def warn(self, name: str, message: str) -> None:
        self.report(str(self.error(message, name)))

    def warn_once(self, name: str, message: str) -> None:
        """Report a problem of a field only for the first record of the pool that has it."""
        if name not in self.reported_once:
            self.reported_once.add(name)
            self.warn(name, message)

    def value(self, field: str, name: str, value: object) -> Any:
        """Return the value of a field of Memory, None if it is missing or bad.

        :param name: the name of the field in the record, for errors.
        """
        if field == "first_stage_score":
            return self.score(name, value)
        if is_missing(value):
            return None
        if field in DATE_FIELDS:
            return self.moment(name, value)
        match field:
            case "id":
                return self.id(name, value)
            case "context":
                return self.joined_text(name, value)
            case "entities":
                return self.entities(name, value)
            case "trust":
                return self.number_or_nan(name, value, 0, 1)
            case "confidence":
                return finite_number(value)
            case "proof_count":
                number = self.number_or_nan(name, value, 0, 1e9)
                return None if number is None else int(number)
        return self.text(name, value)

    def id(self, name: str, value: object) -> str | None:
        """Return an id of any scalar type (int, UUID, ObjectId, ...) as text."""
        if isinstance(value, (Mapping, list, tuple, set, frozenset)):
            self.problem(name, f"expected an id, got {type(value).__name__}")
            return None
        return as_id(_enum_value(value))

    def text(self, name: str, value: object) -> str | None:
        value = _enum_value(value)
        if isinstance(value, (str, int)) and not isinstance(value, bool):
            return str(value)
        self.problem(name, f"expected a string, got {type(value).__name__}")
        return None

    def joined_text(self, name: str, value: object) -> str | None:
        """Return a string, or a list of strings joined by commas."""
        items = _list_items(value)
        if items is None:
            return self.text(name, value)
        texts = [self.text(name, item) for item in items]
        return ", ".join(text for text in texts if text) or None

    def moment(self, name: str, value: object) -> Moment | None:
        try:
            return Moment.parse(value)
        except InputError as error:
            self.problem(name, error.message)
            return None

    def score(self, name: str, value: object) -> float | None:
        """Return a first-stage score, on any scale; NaN and infinity are reported and count as missing."""
        if value is None or (isinstance(value, str) and not value):
            return None
        number = self.number(name, value)
        if number is None or math.isfinite(number):
            return number
        self.warn(name, f"{'NaN' if math.isnan(number) else 'infinity'} counts as missing")
        return None

    def number(self, name: str, value: object, low: float = -math.inf, high: float = math.inf) -> float | None:
        try:
            number = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            self.problem(name, f"expected a number, got {value!r:.60}")
            return None
        if number < low or number > high:
            self.problem(name, f"expected a number from {low:g} to {high:g}, got {number:g}")
            return None
        return number

    def number_or_nan(self, name: str, value: object, low: float, high: float) -> float | None:
        """Return a number in a range; NaN, which tables use for empty cells, is missing."""
        number = self.number(name, value, low, high)
        return None if number is None or math.isnan(number) else number

    def entities(self, name: str, value: object) -> tuple[str, ...]:
        """Return names from a list, a comma-separated string, or a list of dicts with a `name`, `text` or `entity`."""
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        items = _list_items(value)
        if items is None:
            self.problem(name, f"expected a list of names, got {value!r:.60}")
            return ()
        names = [_entity_name(item) for item in items]
        if not all(isinstance(entity, str) for entity in names):
            self.problem(name, f"expected a list of names or of dicts with a `name`, got {value!r:.60}")
        return tuple(entity for entity in names if isinstance(entity, str))


def is_missing(value: object) -> bool:
    """Return whether a value is None, an empty string, or NaN, NaT or NA of numpy and pandas."""
    if value is None or isinstance(value, str):
        return not value
    if isinstance(value, int):  # most values; what follows is slow
        return False
    if type(value).__name__ in ("NaTType", "NAType", "datetime64"):
        return str(value) in ("NaT", "<NA>")
    if isinstance(value, Decimal):
        return value.is_nan()
    return isinstance(value, Real) and math.isnan(value)


def as_id(value: object) -> str:
    """Return an id as text. Tables with gaps turn whole numbers into floats, so 2.0 becomes `2`."""
    if isinstance(value, (str, int)):  # most ids; what follows is slow
        return str(value)
    is_whole = isinstance(value, Real) and float(value).is_integer()
    return str(int(value)) if is_whole else str(value)  # type: ignore[call-overload]


def is_number(value: object) -> bool:
    return isinstance(value, (Real, Decimal)) and not isinstance(value, bool)


def finite_number(value: object) -> float | None:
    """Return a value as a number, None if it is not a finite one."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _enum_value(value: object) -> object:
    return value.value if isinstance(value, Enum) else value


def _entity_name(value: object) -> object:
    if isinstance(value, Mapping):
        return next((value[key] for key in _ENTITY_NAME_KEYS if value.get(key)), None)
    return value


def _list_items(value: object) -> list[Any] | None:
    """Return the items of a list, tuple, set or array without missing ones; None for anything else."""
    if not isinstance(value, Iterable) or isinstance(value, (str, bytes, Mapping)):
        return None
    items = [item for item in value if not is_missing(item)]
    return sorted(items, key=str) if isinstance(value, (set, frozenset)) else items
