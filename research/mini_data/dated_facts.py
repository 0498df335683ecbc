"""Dated facts from templates: successive states of a person, an event, and a similar fact about someone else.

Any of the memories may be the relevant one, so that neither "the newest" nor "the one without an end" is a shortcut.
The templates are in `facts.json`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from lists import MONTHS, Fields, TrainingList

_TEMPLATES = json.loads((Path(__file__).parent / "facts.json").read_text(encoding="utf-8"))
_DATE_LENGTH = {"year": 4, "month": 7, "day": 10}
_FIRST = ["at first", "originally", "at the very beginning", "in the early days"]
_BEFORE = ["right before {}", "just before it was {}", "before switching to {}"]


@dataclass(frozen=True, slots=True)
class _Story:
    """The successive states of a person, and how their dates and texts are written."""

    topic: dict[str, Any]
    person: str
    team: str
    values: Sequence[str]
    periods: Sequence[tuple[date, date]]
    precision: str
    last_is_open: bool
    kind: str | None
    context: str | None
    has_tail: bool

    def write(self, template: str, value: str) -> str:
        return template.format(N=self.person, v=value, t=self.team)

    def memory(
        self, text: str, start: date, end: date | None, kind: str | None, who: str, rng: random.Random
    ) -> Fields:
        if self.has_tail:
            since = rng.choice(["Since", "From"])
            text += f" | When: {since} {MONTHS[start.month - 1]} {start.year} | Involving: {who}"
        else:
            text += "."
        size = _DATE_LENGTH[self.precision]
        fields = {"text": text, "occurred_start": start.isoformat()[:size], "type": kind, "context": self.context}
        return {**fields, "occurred_end": end.isoformat()[:size] if end else None}


def make(count: int, rng: random.Random) -> list[TrainingList]:
    lists: list[TrainingList] = []
    while len(lists) < count:
        made = _make_list(rng)
        if made is not None:
            lists.append(made)
    return lists


def _make_list(rng: random.Random) -> TrainingList | None:
    other_name = _name(rng)
    story = _story(rng)
    if other_name.split()[0] == story.person.split()[0]:
        return None
    states = _states(story, rng)
    other = _similar_fact(story, other_name, rng)
    event, value = _event(story, rng)
    if rng.random() < 0.12:
        return TrainingList(story.write(rng.choice(story.topic["about_event"]), value), [event], [*states[:3], other])
    relevant = rng.randrange(len(states))
    query = _question(story, relevant, rng)
    if query is None:
        return None
    if rng.random() < 0.15:
        query = query.lower().rstrip("?")
    negatives = [state for position, state in enumerate(states) if position != relevant]
    rng.shuffle(negatives)
    return TrainingList(query, [states[relevant]], [*negatives, other, *([event] if rng.random() < 0.5 else [])][:4])


def _name(rng: random.Random) -> str:
    first = rng.choice(_TEMPLATES["first_names"])
    return f"{first} {rng.choice(_TEMPLATES['last_names'])}" if rng.random() < 0.6 else first


def _story(rng: random.Random) -> _Story:
    topic = rng.choice(_TEMPLATES["topics"])
    count = rng.choice([2, 2, 3, 3, 4])
    values = rng.sample(topic["values"], count)
    if count >= 3 and rng.random() < 0.25:
        values[2] = values[0]  # back to the first value
    precision = rng.choice(["day"] * 5 + ["month"] * 2 + ["year"])
    return _Story(
        topic,
        _name(rng),
        rng.choice(_TEMPLATES["teams"]),
        values,
        _periods(count, precision, rng),
        precision,
        rng.random() < 0.75,
        rng.choice(["world", "world", "world", None, "observation"]),
        topic["context"] if rng.random() < 0.5 else None,
        rng.random() < 0.2,
    )


def _periods(count: int, precision: str, rng: random.Random) -> list[tuple[date, date]]:
    start = date(rng.randint(2009, 2022), rng.randint(1, 12), rng.randint(1, 28))
    periods = []
    for _ in range(count):
        days = 366 * rng.randint(2, 3) if precision == "year" else rng.randint(200, 1100)
        end = start + timedelta(days=days)
        periods.append((start, end))
        gap = {"day": rng.choice([1, 1, 12, 40]), "month": 32, "year": 366}[precision]
        start = end + timedelta(days=gap)
    return periods


def _states(story: _Story, rng: random.Random) -> list[Fields]:
    shared = rng.choice(story.topic["states"]) if rng.random() < 0.5 else None
    last = len(story.values) - 1
    return [
        story.memory(
            story.write(shared or rng.choice(story.topic["states"]), value),
            start,
            None if position == last and story.last_is_open else end,
            story.kind,
            story.person,
            rng,
        )
        for position, (value, (start, end)) in enumerate(zip(story.values, story.periods, strict=True))
    ]


def _similar_fact(story: _Story, name: str, rng: random.Random) -> Fields:
    """A fact on the same topic about someone else."""
    text = rng.choice(story.topic["states"]).format(N=name, v=rng.choice(story.topic["values"]), t=story.team)
    start = rng.choice(story.periods)[0]
    end = None if rng.random() < 0.5 else story.periods[-1][1]
    return story.memory(text, start, end, story.kind, name, rng)


def _event(story: _Story, rng: random.Random) -> tuple[Fields, str]:
    value = rng.choice(story.values)
    day = rng.choice(story.periods)[0] + timedelta(days=rng.randint(-60, 60))
    kind = rng.choice(["event", "event", story.kind])
    return story.memory(story.write(story.topic["event"], value), day, day, kind, story.person, rng), value


def _question(story: _Story, relevant: int, rng: random.Random) -> str | None:
    """A question that only the relevant state answers, or None."""
    last = len(story.values) - 1
    if relevant == last and story.last_is_open and rng.random() < 0.8:
        return story.write(rng.choice(story.topic["now"]), "")
    when = _when(story, relevant, rng)
    if when is None:
        return None
    return str(rng.choice(story.topic["then"])).format(N=story.person, t=story.team, T=when)


def _when(story: _Story, relevant: int, rng: random.Random) -> str | None:
    last = len(story.values) - 1
    returns = len(set(story.values)) < len(story.values)
    if last == 1 and relevant == 0 and rng.random() < 0.2:
        return rng.choice(["before", "previously", "earlier", "in the past"])
    if returns or rng.random() < 0.64:
        return _date_in(story, relevant, rng)
    if relevant == 0 and rng.random() < 0.5:
        return rng.choice(_FIRST)
    if relevant < last and rng.random() < 0.6:
        return rng.choice(_BEFORE).format(story.values[relevant + 1])
    if relevant > 0:
        return rng.choice(["right after {}", "after {}"]).format(story.values[relevant - 1])
    return None


def _date_in(story: _Story, relevant: int, rng: random.Random) -> str:
    """A date in the relevant period, as people say it, that is in no other period."""
    start, end = story.periods[relevant]
    if story.precision == "year":
        year = rng.randint(start.year + (rng.random() >= 0.3), max(start.year + 1, end.year - 1))
        return rng.choice(["in {}", "back in {}", "during {}"]).format(year)
    day = start + timedelta(days=rng.randint(40, (end - start).days - 35))
    month = f"{MONTHS[day.month - 1]} {day.year}"
    exact = [f"in {month}", f"in {month}", f"on {day.day} {month}", f"as of {day.isoformat()}", f"around {month}"]
    is_unambiguous = sum(a.year <= day.year <= b.year for a, b in story.periods) == 1
    return rng.choice([*exact, f"in {day.year}", f"back in {day.year}"] if is_unambiguous else exact)
