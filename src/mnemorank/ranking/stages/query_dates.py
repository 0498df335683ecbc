"""Dates in the query: "last Saturday", "two weeks ago", "in March", "on May 5th, 2023".

A model that reads one memory cannot know which day "last Saturday" was, but the request has a current date and the
memories have dates, so memories of about that time are raised. English expressions only. A bound ("before March",
"since last year", "between May and July") is not the time itself and raises nothing.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime, timedelta, tzinfo

import numpy as np

from mnemorank._internal.arrays import Floats
from mnemorank.memory.memory import Memory
from mnemorank.memory.moment import MONTHS, Moment
from mnemorank.ranking.stage import RankingContext

# Of a longer query only the end is searched: a chat message asks at its end.
_MAX_CHARACTERS = 2000
_SMALL = (
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_NUMBERS = (
    {word: number for number, word in enumerate(_SMALL, 1)}
    | {tens: 10 * number for number, tens in enumerate(_TENS, 2)}
    | {f"{tens} {ones}": 10 * n + m for n, tens in enumerate(_TENS, 2) for m, ones in enumerate(_SMALL[:9], 1)}
    | {"a": 1, "an": 1, "a couple": 2, "a couple of": 2, "a few": 3, "couple of": 2, "few": 3, "several": 4}
)
_DAYS = {"day": 1.0, "week": 7.0, "month": 30.4, "year": 365.25, "decade": 3652.5}
_WEEKDAYS = tuple(name.lower() for name in calendar.day_name)
_SEASONS = {"spring": 3, "summer": 6, "autumn": 9, "fall": 9, "winter": 12}


def _any(words: Sequence[str]) -> str:
    """Return a pattern that matches any of the words, longest first."""
    return "|".join(sorted((word.replace(" ", "[ -]") for word in words), key=len, reverse=True))


_AMOUNT = rf"(?P<number>\d{{1,3}}|{_any(list(_NUMBERS))})\s+(?P<unit>{_any(list(_DAYS))})s?"
_MONTH = _any(MONTHS)  # capitalized where it stands alone, because "may" and "march" are verbs
_DATED_MONTH = f"(?i:{_MONTH})"
_YEAR = r"(?P<year>(?:19|20)\d\d)\b"
_DAY = r"(?P<day>\d{1,2})"
_IGNORING_CASE = re.ASCII | re.IGNORECASE
_NAME = rf"(?:\d\w*|{_any([*MONTHS, *_WEEKDAYS, *_SEASONS])}|yesterday|today|now|(?:last|this)\b)"
_BOUND = re.compile(
    rf"\b(?:after|before|between(?:\s+\S+){{0,4}}|by|prior to|since|than|through|till|until|up to"
    rf"|from(?:\s+\S+){{1,6}}\s+to|{_NAME}(?:\s+\w+)?\s+to)\s+(?:and\s+)?"
    r"(?:(?:about|around|at least|the|early|late|mid|(?:beginning|start|middle|end) of)[\s-]+)*$",
    _IGNORING_CASE,
)
# Phrasal verbs that end in such a word: "who did I look after last weekend".
_PHRASAL_VERB = re.compile(
    r"\b(?:(?:look|ask|tak|nam)\w*\s+after|(?:stop|drop|com|cam|sw[iu]ng|pass|driv|drov|walk|go|went|stood|stand)\w*\s+by"
    r"|(?:go|went|gone|going|g[eo]t|look\w*|read\w*|flick\w*|walk\w*|work\w*|liv\w*)\s+through)\s+$",
    _IGNORING_CASE,
)
_RANGE_END = re.compile(
    rf"\s*(?:[-–]\s*\d|(?:to|through)\s+(?:about\s+|around\s+|the\s+|early\s+|late\s+|mid[\s-]+)*{_NAME}|(?:until|till|onwards?)\b)",
    _IGNORING_CASE,
)
# Text before a number that makes it part of a longer one.
_LONGER_NUMBER = re.compile(
    rf"(?:[\d.,-]|\b(?:half|hundred|and|{_any([*_SMALL, *_TENS])})[ -]|\b(?:{_any(list(_DAYS))})s?(?:,| and|, and) )$",
    _IGNORING_CASE,
)
# The most exact first: text that one pattern matched is not matched again.
_PATTERNS = {
    "date": re.compile(r"\b(?P<year>(?:19|20)\d\d)(?P<mark>[-/])(?P<month>\d\d)(?P=mark)(?P<day>\d\d)(?!\d)"),
    "day of month": re.compile(
        rf"\b(?P<month>{_DATED_MONTH}) (?:the )?{_DAY}(?:(?:st|nd|rd|th)?,? {_YEAR}|(?:st|nd|rd|th)\b(?!,? \d{{4}}))"
    ),
    "month of day": re.compile(
        rf"\b{_DAY}(?:(?:st|nd|rd|th)? (?:of )?(?P<month>{_DATED_MONTH}),? {_YEAR}"
        rf"|(?:st|nd|rd|th) (?:of )?(?P<bare>{_DATED_MONTH})\b(?!,? \d{{4}}))"
    ),
    "on a day": re.compile(
        rf"\b[Oo]n (?:(?P<month>{_MONTH}) {_DAY}|(?P<first>\d{{1,2}}) (?P<bare>{_MONTH}))\b(?!,? \d{{4}})"
    ),
    "month of year": re.compile(rf"\b(?P<month>{_DATED_MONTH}),? (?:of )?{_YEAR}"),
    "months": re.compile(
        rf"\b(?:[Ii]n|[Dd]uring|[Tt]hroughout) (?:early |late |mid[- ])?"
        rf"(?P<months>(?:{_MONTH})(?:(?:,|,? or|,? and) (?:{_MONTH}))*)\b(?: of)?(?: (?P<which>last|this) year)?"
        r"(?![’']|,? \d| [A-Z])"
    ),
    "years": re.compile(
        r"\b(?:[Ii]n|[Dd]uring) (?:early |late |mid[- ])?(?P<years>(?:19|20)\d\d(?:(?:,|,? or|,? and) (?:19|20)\d\d)*)"
        r"\b(?![-–/])"
    ),
    "ago": re.compile(rf"\b{_AMOUNT}\s+ago\b", _IGNORING_CASE),
    "latest": re.compile(
        rf"\b(?:last|past|previous)\s+{_AMOUNT}\b|\b(?:(?:the|this)\s+past|(?:in|over|during|within|for)\s+the\s+last)\s+(?P<only>week|month|year)\b",
        _IGNORING_CASE,
    ),
    "yesterday": re.compile(r"\b(?P<before>day before )?(?:yesterday|last night)\b", _IGNORING_CASE),
    "last": re.compile(
        rf"\b(?i:last)\s+(?P<what>(?i:week|weekend|month|year|{_any([*_WEEKDAYS, *_SEASONS])})|{_MONTH})\b", re.ASCII
    ),
    "this": re.compile(r"\bthis\s+(?P<what>week|month|year)\b", _IGNORING_CASE),
}


@dataclass(frozen=True, slots=True)
class QueryPeriod:
    """A period that a query names.

    :param start: first day, as a proleptic Gregorian ordinal.
    :param end: the day after the last.
    :param slack: how fast the boost falls off outside the period, in days.
    """

    start: int
    end: int
    slack: float

    @classmethod
    def of(cls, first: date, end: date) -> QueryPeriod:
        """Create a period from calendar dates."""
        return cls.of_days(first.toordinal(), end.toordinal())

    @classmethod
    def of_days(cls, first: int, end: int) -> QueryPeriod:
        return cls(first, end, max(1.0, (end - first) / 7))

    def nearness(self, memory: Memory, zone: tzinfo | None = None) -> float:
        """Return 1 for a memory of the period, falling toward 0 with the days between; 0 without a date.

        A memory that is still true counts by its start. One that lasted much longer than the period, or has a much
        coarser date, counts 0.

        :param zone: time zone of the user; a memory with its own zone counts by the user's local day.
        """
        if memory.date is None:
            return 0.0
        first, end = _days(memory.date, zone)
        if memory.occurred_start and memory.occurred_end:
            end = max(end, _days(memory.occurred_end, zone)[1])
        apart = max(self.start - end + 1, first - self.end + 1, 0)
        if memory.is_ongoing and memory.is_state and self.end - self.start >= 28 and first >= self.end:
            return 0.0  # started after that month or year
        if end - first > 4 * (self.end - self.start + self.slack):
            return 0.0
        return float(np.exp(-apart / self.slack))


def query_periods(query: str, now: Moment, years: Sequence[int] = ()) -> list[QueryPeriod]:
    """Return the periods that a query names. Relative ones need a `now` with a day.

    :param years: years of the pool's memories; a month without a year may be in any of them.
    """
    periods: list[QueryPeriod] = []
    for kind, match in _matches(query[-_MAX_CHARACTERS:]):
        # Skip days that do not exist, and those outside the calendar.
        with suppress(ValueError, OverflowError):
            if kind in _RELATIVE:
                periods += [_RELATIVE[kind](match, date(now.year, now.month, now.day))] if now.month and now.day else []
            else:
                periods += _calendar_periods(match, now.year, years or (now.year,))
    return list(dict.fromkeys(periods))


class QueryDates:
    """Raises memories of the period that the query names, unless the caller passed a `time_range`."""

    name = "query_dates"

    def adjust(self, context: RankingContext) -> Floats:
        result = np.zeros(len(context.pool))
        weight, candidates, times = context.weight(self.name), context.candidates, context.times
        if weight and candidates and times.time_range is None:
            memories = [context.pool[i] for i in candidates]
            result[candidates] = time_evidence(context.query, memories, times.as_of or times.now, weight)
        return result


def time_evidence(query: str, memories: Sequence[Memory], now: Moment, weight: float) -> Floats:
    """Return the log-odds to add for the periods in the query, from 0 to `weight` per memory."""
    periods = query_periods(query, now, sorted({memory.date.year for memory in memories if memory.date is not None}))
    zone = now.time.tzinfo if now.time else None
    near = [max((period.nearness(memory, zone) for period in periods), default=0.0) for memory in memories]
    return weight * np.array(near, dtype=np.float64)


def _matches(query: str) -> Iterator[tuple[str, re.Match[str]]]:
    """Yield the kind and match of each expression. Bounds are skipped, and not matched in another way."""
    taken: list[tuple[int, int]] = []
    for kind, pattern in _PATTERNS.items():
        for match in pattern.finditer(query):
            if any(match.start() < end and start < match.end() for start, end in taken):
                continue
            taken.append(match.span())
            before = query[max(0, match.start() - 80) : match.start()]
            is_bound = _BOUND.search(before) and not _PHRASAL_VERB.search(before)
            if is_bound or _RANGE_END.match(query, match.end()):
                continue
            if not (kind == "ago" and _LONGER_NUMBER.search(before)):
                yield kind, match


def _ago(match: re.Match[str], today: date) -> QueryPeriod:
    age = round(_amount(match))
    day = today.toordinal() - age
    # "Two months ago" is not exact to the day.
    return QueryPeriod(day, day + 1, 1 + 0.15 * age)


def _latest(match: re.Match[str], today: date) -> QueryPeriod:
    days = _DAYS[match["only"].lower()] if match["only"] else _amount(match)
    return QueryPeriod(today.toordinal() - round(days), today.toordinal() + 1, 1.0)


def _amount(match: re.Match[str]) -> float:
    text = re.sub(r"[\s-]+", " ", match["number"].lower())
    return (int(text) if text.isdigit() else _NUMBERS[text]) * _DAYS[match["unit"].lower()]


def _yesterday(match: re.Match[str], today: date) -> QueryPeriod:
    day = today - timedelta(2 if match["before"] else 1)
    return QueryPeriod.of(day, day + timedelta(1))


def _last(match: re.Match[str], today: date) -> QueryPeriod:
    """Return the last such period that has ended."""
    what = match["what"].lower()
    monday = today - timedelta(today.weekday())
    if what in _WEEKDAYS:
        day = today - timedelta((today.weekday() - _WEEKDAYS.index(what)) % 7 or 7)
        return QueryPeriod.of(day, day + timedelta(1))
    if what == "week":
        return QueryPeriod.of(monday - timedelta(7), monday)
    if what == "weekend":
        return QueryPeriod.of(monday - timedelta(2), monday)
    if what == "month":
        return QueryPeriod.of(_month(today.year, today.month - 1), _month(today.year, today.month))
    if what == "year":
        return QueryPeriod.of(_month(today.year - 1, 1), _month(today.year, 1))
    number = _SEASONS.get(what) or [name.lower() for name in MONTHS].index(what) + 1
    length = 3 if what in _SEASONS else 1
    year = next(year for year in (today.year, today.year - 1, today.year - 2) if _month(year, number + length) <= today)
    return QueryPeriod.of(_month(year, number), _month(year, number + length))


def _this(match: re.Match[str], today: date) -> QueryPeriod:
    """Return the current such period."""
    what = match["what"].lower()
    if what == "week":
        return QueryPeriod.of(today - timedelta(today.weekday()), today + timedelta(1))
    if what == "month":
        return QueryPeriod.of(_month(today.year, today.month), _month(today.year, today.month + 1))
    return QueryPeriod.of(_month(today.year, 1), _month(today.year + 1, 1))


_RELATIVE = {"ago": _ago, "latest": _latest, "yesterday": _yesterday, "last": _last, "this": _this}


def _calendar_periods(match: re.Match[str], this_year: int, years: Sequence[int]) -> Iterator[QueryPeriod]:
    """Yield the periods of a calendar expression, one for each year that it may be in.

    :param this_year: for "in March last year".
    """
    parts = match.groupdict()
    if parts.get("years"):
        for year in re.findall(r"\d{4}", parts["years"]):
            yield QueryPeriod.of_days(*_days(Moment(int(year))))
        return
    if parts.get("year"):
        years = [int(parts["year"])]
    elif parts.get("which"):
        years = [this_year - (parts["which"] == "last")]
    months = re.findall(_MONTH, parts["months"]) if parts.get("months") else [parts.get("month") or parts["bare"]]
    day = parts.get("day") or parts.get("first")
    for month in months:
        for year in years:
            with suppress(ValueError):  # February 29th does not exist in every year
                moment = Moment(year, _month_number(month), None if day is None else int(day))
                yield QueryPeriod.of_days(*_days(moment))


def _days(moment: Moment, zone: tzinfo | None = None) -> tuple[int, int]:
    """Return the first day and the day after the last, in `zone` if the moment has a time zone too."""
    if moment.month and moment.day:
        day = date(moment.year, moment.month, moment.day)
        if zone and moment.time and moment.time.tzinfo:
            with suppress(OverflowError):  # the first and last day of the calendar
                day = datetime.combine(day, moment.time).astimezone(zone).date()
        return day.toordinal(), day.toordinal() + 1
    return int(moment.start), int(moment.end)


def _month_number(text: str) -> int:
    return int(text) if text.isdigit() else MONTHS.index(text.capitalize()) + 1


def _month(year: int, month: int) -> date:
    """Return the first day of a month; `month` may be below 1 or above 12."""
    return date(year + (month - 1) // 12, (month - 1) % 12 + 1, 1)
