"""The time that a query names: "last Saturday", "two weeks ago", "in March", "on May 5th, 2023".

A model that reads one memory cannot know what day "last Saturday" was; the request knows its present and the pool its
dates. So a memory of about that time gains. English expressions only. Where a query names a border ("before March",
"since last year", "between May and July") it does not name the time itself, and nothing is gained.
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

# A longer query is no question; a turn of a chat asks at its end.
_READ = 2000
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
    """A pattern for any of the words, the longest that fits first."""
    return "|".join(sorted((word.replace(" ", "[ -]") for word in words), key=len, reverse=True))


_AMOUNT = rf"(?P<number>\d{{1,3}}|{_any(list(_NUMBERS))})\s+(?P<unit>{_any(list(_DAYS))})s?"
_MONTH = _any(MONTHS)  # with a capital where it stands alone: "may" and "march" are verbs
_DATED_MONTH = f"(?i:{_MONTH})"
_YEAR = r"(?P<year>(?:19|20)\d\d)\b"
_DAY = r"(?P<day>\d{1,2})"
_IGNORING_CASE = re.ASCII | re.IGNORECASE
_NAME = rf"(?:\d\w*|{_any([*MONTHS, *_WEEKDAYS, *_SEASONS])}|yesterday|today|now|(?:last|this)\b)"
_BORDER = re.compile(
    rf"\b(?:after|before|between(?:\s+\S+){{0,4}}|by|prior to|since|than|through|till|until|up to"
    rf"|from(?:\s+\S+){{1,6}}\s+to|{_NAME}(?:\s+\w+)?\s+to)\s+(?:and\s+)?"
    r"(?:(?:about|around|at least|the|early|late|mid|(?:beginning|start|middle|end) of)[\s-]+)*$",
    _IGNORING_CASE,
)
# Verbs that end in such a word: "who did I look after last weekend".
_OF_A_VERB = re.compile(
    r"\b(?:(?:look|ask|tak|nam)\w*\s+after|(?:stop|drop|com|cam|sw[iu]ng|pass|driv|drov|walk|go|went|stood|stand)\w*\s+by"
    r"|(?:go|went|gone|going|g[eo]t|look\w*|read\w*|flick\w*|walk\w*|work\w*|liv\w*)\s+through)\s+$",
    _IGNORING_CASE,
)
_UP_TO_ANOTHER = re.compile(
    rf"\s*(?:[-–]\s*\d|(?:to|through)\s+(?:about\s+|around\s+|the\s+|early\s+|late\s+|mid[\s-]+)*{_NAME}|(?:until|till|onwards?)\b)",
    _IGNORING_CASE,
)
# What makes the number before a unit a part of a longer one.
_LONGER_NUMBER = re.compile(
    rf"(?:[\d.,-]|\b(?:half|hundred|and|{_any([*_SMALL, *_TENS])})[ -]|\b(?:{_any(list(_DAYS))})s?(?:,| and|, and) )$",
    _IGNORING_CASE,
)
# The most exact first: what one has read, none after it reads again.
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
class AskedTime:
    """Days since 0001-01-01, first and last (exclusive), and how many days beside them still count for something."""

    start: int
    end: int
    slack: float

    @classmethod
    def of(cls, first: date, end: date) -> AskedTime:
        """A period of the calendar."""
        return cls.of_days(first.toordinal(), end.toordinal())

    @classmethod
    def of_days(cls, first: int, end: int) -> AskedTime:
        return cls(first, end, max(1.0, (end - first) / 7))

    def nearness(self, memory: Memory, zone: tzinfo | None = None) -> float:
        """1 for a memory of that time, falling towards 0 with the days between; 0 where nothing is to be known.

        What is still true counts by its beginning. What went on for much longer than the time asked for, or is dated
        much less exactly, says nothing of that time in particular.

        :param zone: of the person who asks; a memory with a zone of its own is of the day that it was there.
        """
        if memory.date is None:
            return 0.0
        first, end = _days(memory.date, zone)
        if memory.occurred_start and memory.occurred_end:
            end = max(end, _days(memory.occurred_end, zone)[1])
        apart = max(self.start - end + 1, first - self.end + 1, 0)
        if memory.is_ongoing and memory.is_state and self.end - self.start >= 28 and first >= self.end:
            return 0.0  # had not begun in that month or year
        if end - first > 4 * (self.end - self.start + self.slack):
            return 0.0
        return float(np.exp(-apart / self.slack))


def asked_times(query: str, now: Moment, years: Sequence[int] = ()) -> list[AskedTime]:
    """The times that a query names, seen from the day of `now`; where that is no day, only those of the calendar.

    :param years: those of the pool's memories: a month without its year may be of any of them.
    """
    found: list[AskedTime] = []
    for kind, match in _matches(query[-_READ:]):
        # No such day, or one beyond the calendar's ends.
        with suppress(ValueError, OverflowError):
            if kind in _READERS:
                found += [_READERS[kind](match, date(now.year, now.month, now.day))] if now.month and now.day else []
            else:
                found += _named(match, now.year, years or (now.year,))
    return list(dict.fromkeys(found))


class QueryDates:
    """Raises memories of the time that the query names, unless the caller gave a `time_range`."""

    name = "query_dates"

    def adjust(self, context: RankingContext) -> Floats:
        result = np.zeros(len(context.pool))
        weight, candidates, times = context.weight(self.name), context.candidates, context.times
        if weight and candidates and times.time_range is None:
            memories = [context.pool[i] for i in candidates]
            result[candidates] = time_evidence(context.query, memories, times.as_of or times.now, weight)
        return result


def time_evidence(query: str, memories: Sequence[Memory], now: Moment, weight: float) -> Floats:
    """The log-odds that the time a query names is worth to each memory, 0 to `weight`."""
    times = asked_times(query, now, sorted({memory.date.year for memory in memories if memory.date is not None}))
    zone = now.time.tzinfo if now.time else None
    near = [max((time.nearness(memory, zone) for time in times), default=0.0) for memory in memories]
    return weight * np.array(near, dtype=np.float64)


def _matches(query: str) -> Iterator[tuple[str, re.Match[str]]]:
    """What names a time, by kind. What only bounds one is passed over, and not read another way."""
    taken: list[tuple[int, int]] = []
    for kind, pattern in _PATTERNS.items():
        for match in pattern.finditer(query):
            if any(match.start() < end and start < match.end() for start, end in taken):
                continue
            taken.append(match.span())
            before = query[max(0, match.start() - 80) : match.start()]
            is_border = _BORDER.search(before) and not _OF_A_VERB.search(before)
            if is_border or _UP_TO_ANOTHER.match(query, match.end()):
                continue
            if not (kind == "ago" and _LONGER_NUMBER.search(before)):
                yield kind, match


def _ago(match: re.Match[str], today: date) -> AskedTime:
    age = round(_amount(match))
    day = today.toordinal() - age
    # Who says "two months ago" does not count the days.
    return AskedTime(day, day + 1, 1 + 0.15 * age)


def _latest(match: re.Match[str], today: date) -> AskedTime:
    days = _DAYS[match["only"].lower()] if match["only"] else _amount(match)
    return AskedTime(today.toordinal() - round(days), today.toordinal() + 1, 1.0)


def _amount(match: re.Match[str]) -> float:
    text = re.sub(r"[\s-]+", " ", match["number"].lower())
    return (int(text) if text.isdigit() else _NUMBERS[text]) * _DAYS[match["unit"].lower()]


def _yesterday(match: re.Match[str], today: date) -> AskedTime:
    day = today - timedelta(2 if match["before"] else 1)
    return AskedTime.of(day, day + timedelta(1))


def _last(match: re.Match[str], today: date) -> AskedTime:
    """The last that is over."""
    what = match["what"].lower()
    monday = today - timedelta(today.weekday())
    if what in _WEEKDAYS:
        day = today - timedelta((today.weekday() - _WEEKDAYS.index(what)) % 7 or 7)
        return AskedTime.of(day, day + timedelta(1))
    if what == "week":
        return AskedTime.of(monday - timedelta(7), monday)
    if what == "weekend":
        return AskedTime.of(monday - timedelta(2), monday)
    if what == "month":
        return AskedTime.of(_month(today.year, today.month - 1), _month(today.year, today.month))
    if what == "year":
        return AskedTime.of(_month(today.year - 1, 1), _month(today.year, 1))
    number = _SEASONS.get(what) or [name.lower() for name in MONTHS].index(what) + 1
    length = 3 if what in _SEASONS else 1
    year = next(year for year in (today.year, today.year - 1, today.year - 2) if _month(year, number + length) <= today)
    return AskedTime.of(_month(year, number), _month(year, number + length))


def _this(match: re.Match[str], today: date) -> AskedTime:
    """The one that is under way."""
    what = match["what"].lower()
    if what == "week":
        return AskedTime.of(today - timedelta(today.weekday()), today + timedelta(1))
    if what == "month":
        return AskedTime.of(_month(today.year, today.month), _month(today.year, today.month + 1))
    return AskedTime.of(_month(today.year, 1), _month(today.year + 1, 1))


_READERS = {"ago": _ago, "latest": _latest, "yesterday": _yesterday, "last": _last, "this": _this}


def _named(match: re.Match[str], present: int, years: Sequence[int]) -> Iterator[AskedTime]:
    """Times that the calendar names, each of every year that it may be of.

    :param present: this year, for "in March last year".
    """
    parts = match.groupdict()
    if parts.get("years"):
        for year in re.findall(r"\d{4}", parts["years"]):
            yield AskedTime.of_days(*_days(Moment(int(year))))
        return
    if parts.get("year"):
        years = [int(parts["year"])]
    elif parts.get("which"):
        years = [present - (parts["which"] == "last")]
    months = re.findall(_MONTH, parts["months"]) if parts.get("months") else [parts.get("month") or parts["bare"]]
    day = parts.get("day") or parts.get("first")
    for month in months:
        for year in years:
            with suppress(ValueError):  # February 29th is not of every year
                moment = Moment(year, _month_number(month), None if day is None else int(day))
                yield AskedTime.of_days(*_days(moment))


def _days(moment: Moment, zone: tzinfo | None = None) -> tuple[int, int]:
    """First day and the day after the last; as written, unless both the moment and the asker have a zone."""
    if moment.month and moment.day:
        day = date(moment.year, moment.month, moment.day)
        if zone and moment.time and moment.time.tzinfo:
            with suppress(OverflowError):  # the calendar's first and last day
                day = datetime.combine(day, moment.time).astimezone(zone).date()
        return day.toordinal(), day.toordinal() + 1
    return int(moment.start), int(moment.end)


def _month_number(text: str) -> int:
    return int(text) if text.isdigit() else MONTHS.index(text.capitalize()) + 1


def _month(year: int, month: int) -> date:
    """The first of a month; months may run over the year's ends."""
    return date(year + (month - 1) // 12, (month - 1) % 12 + 1, 1)
