"""Moment: a date that remembers how precisely it was given."""

from __future__ import annotations

import calendar
import re
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone

from mnemorank.errors import InputError

MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip

_PATTERN = re.compile(r"(\d{4})(?:([-/])(\d{2})(?:\2(\d{2})(?:[T ](\S.*))?)?)?")


@dataclass(frozen=True, slots=True)
class Moment:
    """A year, a month, a day, or a point in time.

    `start` and `end` are its bounds as days since 0001-01-01 in UTC (a moment without a zone counts as UTC), so that
    `2024` covers the whole year and never pretends to be January 1st.
    """

    year: int
    month: int | None = None
    day: int | None = None
    time: time | None = None

    def __post_init__(self) -> None:
        try:
            date(self.year, self.month or 1, self.day or 1)
        except ValueError as error:
            raise InputError(f"no such date: {self} ({error})") from None
        if (self.month is None and self.day is not None) or (self.day is None and self.time is not None):
            raise InputError(f"a moment with a finer part needs the coarser ones too: {self}")

    @classmethod
    def parse(cls, value: object) -> Moment:
        """Read an ISO 8601 string (`2024`, `2024-03`, `2024-03-05`, `2024-03-05T10:00+01:00`), date or datetime.

        Midnight without a zone is how many stores write a plain day, and is read as that day.
        """
        match value:
            case Moment():
                return value
            case datetime():
                # A zone by name (ZoneInfo) gives its offset only with the date.
                offset = value.utcoffset()
                at = value.time() if offset is None else value.time().replace(tzinfo=timezone(offset))
                return cls(value.year, value.month, value.day, _unless_plain_midnight(at))
            case date():
                return cls(value.year, value.month, value.day)
            case bool():
                pass
            case int() if 1 <= value <= 9999:
                return cls(value)
            case str():
                return cls._parse_text(value.strip())
        raise InputError(
            f"not a date: {_shown(value)}; expected ISO 8601 such as 2024, 2024-03 or 2024-03-05T10:00:00Z"
        )

    @classmethod
    def _parse_text(cls, text: str) -> Moment:
        found = _PATTERN.fullmatch(text)
        if not found:
            raise InputError(
                f"not a date: {_shown(text)}; expected ISO 8601 such as 2024, 2024-03 or 2024-03-05T10:00:00Z"
            )
        year, _, month, day, clock = found.groups()
        at = None
        if clock is not None:
            try:
                at = _unless_plain_midnight(time.fromisoformat(clock.strip()))
            except ValueError:
                raise InputError(f"not a time of day: {_shown(clock)} in {_shown(text)}") from None
        return cls(int(year), int(month) if month else None, int(day) if day else None, at)

    @property
    def start(self) -> float:
        """First instant, in days."""
        days = float(date(self.year, self.month or 1, self.day or 1).toordinal())
        return days + _fraction_of_day(self.time) if self.time else days

    @property
    def end(self) -> float:
        """Last instant (exclusive), in days; equal to `start` for a point in time."""
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
        """True only where the two do not overlap: 2024 is not before 2024-03."""
        return self.end <= other.start and self.start < other.start

    def words(self) -> str:
        """`March 05, 2024 (2024-03-05)`, `March 2024 (2024-03)` or `2024 (2024)`."""
        if self.month is None:
            return f"{self.year:04d} ({self.year:04d})"
        name = MONTHS[self.month - 1]
        if self.day is None:
            return f"{name} {self.year:04d} ({self.year:04d}-{self.month:02d})"
        return f"{name} {self.day:02d}, {self.year:04d} ({self.year:04d}-{self.month:02d}-{self.day:02d})"

    def __str__(self) -> str:
        parts = [f"{self.year:04d}"] + [f"{part:02d}" for part in (self.month, self.day) if part is not None]
        return "-".join(parts) + (f"T{self.time.isoformat()}" if self.time else "")


def now() -> Moment:
    """The present, to the second."""
    return Moment.parse(datetime.now().astimezone().replace(microsecond=0))


def _unless_plain_midnight(at: time) -> time | None:
    return None if at == time(0) and at.tzinfo is None else at


def _fraction_of_day(at: time) -> float:
    seconds = at.hour * 3600 + at.minute * 60 + at.second + at.microsecond / 1e6
    offset = at.utcoffset() or timedelta()
    return (seconds - offset.total_seconds()) / 86400


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…'"
