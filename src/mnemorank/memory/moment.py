"""Moment: a date with the precision it was given in."""

from __future__ import annotations

import calendar
import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from numbers import Real
from typing import TypeAlias

from mnemorank.errors import InputError

MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip

# The smallest number that counts nano-, micro-, milliseconds or seconds since 1970, and how many make a second.
_EPOCHS = ((1e18, 1e9), (1e15, 1e6), (1e11, 1e3), (1e8, 1.0))
_EPOCH_TEXT = re.compile(r"\d{10}(\d{3})?(\.\d+)?")
_PATTERN = re.compile(r"(\d{4})(?:([-/])(\d{2})(?:\2(\d{2})(?:[T ](\S.*))?)?)?")


@dataclass(frozen=True, slots=True)
class Moment:
    """A year, a month, a day, or a point in time.

    `start` and `end` are its bounds in days since 0001-01-01 in UTC, so that `2024` covers the whole year instead of
    being January 1st. A time without a time zone is taken as UTC.
    """

    year: int
    month: int | None = None
    day: int | None = None
    time: time | None = None

    def __post_init__(self) -> None:
        try:
            date(self.year, 1 if self.month is None else self.month, 1 if self.day is None else self.day)
        except ValueError as error:
            raise InputError(f"expected a valid date, got {self} ({error})") from None
        if (self.month is None and self.day is not None) or (self.day is None and self.time is not None):
            raise InputError(f"expected a month with a day, and a day with a time, got {self!r}")

    @classmethod
    def parse(cls, value: object) -> Moment:
        """Read an ISO 8601 string (`2024`, `2024-03`, `2024-03-05`, `2024-03-05T10:00+01:00`), a date or a number.

        Midnight without a time zone is read as a day, since many stores write days that way. A number up to 9999 is a
        year; one from 1e8 is seconds since 1970 in UTC, from 1e11 milliseconds, from 1e15 micro- and from 1e18
        nanoseconds.
        """
        match value:
            case Moment():
                return value
            case datetime() if value == value:  # excludes pandas' NaT, which is a datetime
                offset = value.utcoffset()  # of a named zone (ZoneInfo), only known together with the date
                clock = value.time() if offset is None else value.time().replace(tzinfo=timezone(offset))
                return cls(value.year, value.month, value.day, _unless_midnight(clock))
            case date() if value == value:
                return cls(value.year, value.month, value.day)
            case bool():
                pass
            case Real() | Decimal():
                return cls._parse_number(value)
            case str():
                return cls._parse_text(value.strip())
            case _ if type(value).__name__ == "datetime64":  # numpy's, whose text has its precision
                return cls._parse_text(str(value))
        raise _not_a_date(value)

    @classmethod
    def _parse_number(cls, value: Real | Decimal) -> Moment:
        try:
            number = float(value)
            if 1 <= number <= 9999 and number.is_integer():
                return cls(int(number))
            unit = next(unit for smallest, unit in _EPOCHS if number >= smallest)
            return cls.parse(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=round(number / unit * 1e6)))
        except (StopIteration, OverflowError):
            raise InputError(
                f"expected an ISO 8601 string, a year, or seconds or milliseconds since 1970, got {_shorten(value)}"
            ) from None

    @classmethod
    def _parse_text(cls, text: str) -> Moment:
        if _EPOCH_TEXT.fullmatch(text):
            return cls._parse_number(Decimal(text))
        match = _PATTERN.fullmatch(text)
        if not match:
            raise _not_a_date(text)
        year, _, month, day, clock_text = match.groups()
        clock = None
        if clock_text is not None:
            try:
                clock = _unless_midnight(time.fromisoformat(clock_text.strip()))
            except ValueError:
                raise InputError(f"expected a time such as 10:00:00Z after the date, got {_shorten(text)}") from None
        return cls(int(year), int(month) if month else None, int(day) if day else None, clock)

    @property
    def start(self) -> float:
        """The first instant, in days."""
        days = float(date(self.year, self.month or 1, self.day or 1).toordinal())
        return days + _fraction_of_day(self.time) if self.time else days

    @property
    def end(self) -> float:
        """The instant after the last, in days; equal to `start` for a point in time."""
        if self.time:
            return self.start
        if self.month is None:
            return float(date(self.year, 12, 31).toordinal() + 1)
        last = self.day or calendar.monthrange(self.year, self.month)[1]
        return float(date(self.year, self.month, last).toordinal() + 1)

    @property
    def middle(self) -> float:
        return (self.start + self.end) / 2

    def is_before(self, other: Moment) -> bool:
        """Return whether this ends before the other begins: 2024 is not before 2024-03."""
        return self.end <= other.start and self.start < other.start

    def words(self) -> str:
        """Return `March 05, 2024 (2024-03-05)`, `March 2024 (2024-03)` or `2024 (2024)`."""
        if self.month is None:
            return f"{self.year:04d} ({self.year:04d})"
        name = MONTHS[self.month - 1]
        if self.day is None:
            return f"{name} {self.year:04d} ({self.year:04d}-{self.month:02d})"
        return f"{name} {self.day:02d}, {self.year:04d} ({self.year:04d}-{self.month:02d}-{self.day:02d})"

    def __str__(self) -> str:
        parts = [f"{self.year:04d}"] + [f"{part:02d}" for part in (self.month, self.day) if part is not None]
        return "-".join(parts) + (f"T{self.time.isoformat()}" if self.time else "")


When: TypeAlias = Moment | str | date | datetime | int | float
"""What `Moment.parse` accepts: a Moment, an ISO 8601 string, a date or datetime, a year or a Unix time."""


def now() -> Moment:
    """Return the current time, to the second."""
    return Moment.parse(datetime.now().astimezone().replace(microsecond=0))


def _unless_midnight(clock: time) -> time | None:
    return None if clock == time(0) and clock.tzinfo is None else clock


def _fraction_of_day(clock: time) -> float:
    seconds = clock.hour * 3600 + clock.minute * 60 + clock.second + clock.microsecond / 1e6
    offset = clock.utcoffset() or timedelta()
    return (seconds - offset.total_seconds()) / 86400


def _not_a_date(value: object) -> InputError:
    return InputError(f"expected an ISO 8601 date such as 2024, 2024-03 or 2024-03-05T10:00:00Z, got {_shorten(value)}")


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…'"
