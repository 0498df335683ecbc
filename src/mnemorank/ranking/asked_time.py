"""The time that a query names: "last Saturday", "two weeks ago", "in March", "on May 5th, 2023".

A model that reads one memory cannot know what day "last Saturday" was; the request knows its present and the pool its
dates. So a memory of about that time gains over the others. English expressions only. Where a query names a border
("before March", "since last year") it does not name the time itself, and nothing is gained.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta

import numpy as np
from numpy.typing import NDArray

from mnemorank.memory import Memory
from mnemorank.moment import MONTHS, Moment

Floats = NDArray[np.float64]

_NUMBERS = {
    word: number
    for number, word in enumerate("one two three four five six seven eight nine ten eleven twelve".split(), 1)
} | {"a": 1, "an": 1, "a couple of": 2, "couple of": 2, "a few": 3, "few": 3, "several": 4}
_DAYS = {"day": 1.0, "week": 7.0, "month": 30.4, "year": 365.25}
_WEEKDAYS = tuple(name.lower() for name in calendar.day_name)
_SEASONS = {"spring": 3, "summer": 6, "autumn": 9, "fall": 9, "winter": 12}

_NUMBER = rf"(?P<number>\d{{1,3}}|{'|'.join(sorted(_NUMBERS, key=len, reverse=True))})"
_UNIT = r"(?P<unit>day|week|month|year)s?"
_MONTH = rf"(?P<month>{'|'.join(MONTHS)})"
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
_YEAR = r"(?P<year>(?:19|20)\d\d)"
# A time that only bounds the one asked for, and how long something took.
_BORDER = re.compile(r"\b(?:after|before|by|from|prior to|since|than|till|until|up to)\s+(?:the\s+)?$", re.IGNORECASE)
_AGO = re.compile(rf"\b{_NUMBER}\s+{_UNIT}\s+(?:ago|back)\b", re.IGNORECASE)
_LATEST = re.compile(rf"\b(?:last|past)\s+{_NUMBER}\s+{_UNIT}\b", re.IGNORECASE)
_YESTERDAY = re.compile(r"\b(?P<before>(?:the )?day before )?(?:yesterday|last night)\b", re.IGNORECASE)
_LAST = re.compile(
    rf"\b(?P<which>last|past|this)\s+(?P<what>week(?:end)?|month|year|{'|'.join((*_WEEKDAYS, *_SEASONS, *MONTHS))})\b",
    re.IGNORECASE,
)
_ISO = re.compile(r"\b(?P<year>(?:19|20)\d\d)-(?P<month>\d\d)(?:-(?P<day>\d\d))?\b")
# Months with a capital: "may" and "march" are verbs.
_DATES = (
    re.compile(rf"\b{_MONTH} {_DAY}(?:,? {_YEAR})?\b"),
    re.compile(rf"\b{_DAY} (?:of )?{_MONTH}(?:,? {_YEAR})?\b"),
    re.compile(rf"\b{_MONTH},? (?:of )?{_YEAR}\b"),
    re.compile(rf"\b(?:[Ii]n|[Dd]uring|[Oo]f|[Tt]hroughout)(?: early| late| mid)? {_MONTH}\b"),
    re.compile(rf"\b(?:[Ii]n|[Dd]uring) {_YEAR}\b"),
)


@dataclass(frozen=True, slots=True)
class AskedTime:
    """Days since 0001-01-01, first and last (exclusive), and how many days beside them still count for something."""

    start: float
    end: float
    slack: float

    def nearness(self, memory: Memory) -> float:
        """1 for a memory of that time, falling towards 0 with the days between; 0 where nothing is to be known.

        What is still true counts by its beginning. What went on for much longer than the time asked for says nothing of
        that time in particular.
        """
        if memory.date is None:
            return 0.0
        first = memory.date.start
        last = (memory.occurred_end if memory.occurred_start and memory.occurred_end else memory.date).end
        if last - first > 4 * (self.end - self.start + self.slack):
            return 0.0
        apart = max(self.start - last, first - self.end, 0.0)
        return float(np.exp(-apart / self.slack))


def asked_times(query: str, now: Moment, years: Sequence[int] = ()) -> list[AskedTime]:
    """The times that a query names, seen from `now`.

    :param years: those of the pool's memories: a month without its year may be of any of them.
    """
    today = date.fromordinal(int(now.start))
    return [*_relative(query, today), *_named(query, years or (today.year,))]


def time_evidence(query: str, memories: Sequence[Memory], now: Moment, weight: float) -> Floats:
    """The log-odds that a named time is worth to each memory: up to `weight`, less what the pool gets on average."""
    times = asked_times(query, now, sorted({memory.date.year for memory in memories if memory.date is not None}))
    if not times or not memories:
        return np.zeros(len(memories))
    near = np.array([max(time.nearness(memory) for time in times) for memory in memories])
    return np.asarray(weight * (near - near.mean()), dtype=np.float64)


def _found(pattern: re.Pattern[str], query: str) -> Iterator[re.Match[str]]:
    return (match for match in pattern.finditer(query) if not _BORDER.search(query[: match.start()]))


def _relative(query: str, today: date) -> Iterator[AskedTime]:
    now = float(today.toordinal())
    for match in _found(_AGO, query):
        age = _count(match) * _DAYS[match["unit"].lower()]
        # Who says "two months ago" does not count the days.
        yield AskedTime(now - age, now - age + 1, 1 + 0.15 * age)
    for match in _found(_LATEST, query):
        yield AskedTime(now - _count(match) * _DAYS[match["unit"].lower()], now + 1, 1.0)
    for match in _found(_YESTERDAY, query):
        day = now - (2 if match["before"] else 1)
        yield AskedTime(day, day + 1, 1.0)
    for match in _found(_LAST, query):
        first, end = _period(match["what"].lower(), match["which"].lower() == "this", today)
        yield AskedTime(float(first.toordinal()), float(end.toordinal()), max(1.0, (end - first).days / 7))


def _count(match: re.Match[str]) -> int:
    text = match["number"].lower()
    return int(text) if text.isdigit() else _NUMBERS[text]


def _period(what: str, this: bool, today: date) -> tuple[date, date]:
    """First day and the day after the last of a named period: the one that is under way, or the last that is over."""
    if what in _WEEKDAYS:
        back = (today.weekday() - _WEEKDAYS.index(what)) % 7 or 7
        return today - timedelta(back), today - timedelta(back - 1)
    monday = today - timedelta(today.weekday())
    if what == "week":
        return (monday, today + timedelta(1)) if this else (monday - timedelta(7), monday)
    if what == "weekend":
        return monday - timedelta(2), monday
    if what == "year":
        return _month(today.year, 1) if this else _month(today.year - 1, 1), _month(today.year + this, 1)
    if what == "month":
        return _month(today.year, today.month - (not this)), _month(today.year, today.month + this)
    length = 3 if what in _SEASONS else 1
    number = _SEASONS.get(what) or [name.lower() for name in MONTHS].index(what) + 1
    begun = _month(today.year, number) <= today if this else _month(today.year, number + length) <= today
    year = today.year if begun else today.year - 1
    return _month(year, number), _month(year, number + length)


def _named(query: str, years: Sequence[int]) -> Iterator[AskedTime]:
    """Times that the calendar names; each part of a query is read once, the most exact way first."""
    taken: list[tuple[int, int]] = []
    for pattern in (_ISO, *_DATES):
        for match in _found(pattern, query):
            if any(match.start() < end and start < match.end() for start, end in taken):
                continue
            taken.append(match.span())
            parts = match.groupdict()
            month, day = _month_number(parts.get("month")), parts.get("day")
            for year in [int(parts["year"])] if parts.get("year") else years:
                try:
                    moment = Moment(year, month, int(day) if day else None)
                except ValueError:
                    continue  # no such day, or none in that year
                yield AskedTime(moment.start, moment.end, max(1.0, (moment.end - moment.start) / 7))


def _month_number(text: str | None) -> int | None:
    if text is None:
        return None
    return int(text) if text.isdigit() else MONTHS.index(text) + 1


def _month(year: int, month: int) -> date:
    """The first of a month; months may run over the year's ends."""
    return date(year + (month - 1) // 12, (month - 1) % 12 + 1, 1)
