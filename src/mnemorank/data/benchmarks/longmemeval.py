"""LongMemEval: questions over the dated chat sessions of one user. Sessions or turns are the candidates."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from mnemorank._internal.jsonio import read_json_records
from mnemorank.data.benchmarks.loader import Loader, field, labelled, loaders
from mnemorank.data.examples import Candidate, Example, text_of
from mnemorank.errors import InputError
from mnemorank.memory.memory import Memory
from mnemorank.memory.moment import Moment

_DATE = re.compile(r"(\d{4})/(\d{2})/(\d{2})(?: \(\w+\))?(?: (\d{1,2}:\d{2}))?")

# Candidates, and labels of what is missing among them.
Pool = tuple[tuple[Candidate, ...], tuple[float, ...]]
Cut = Callable[[Sequence["Session"], set[str], bool], Pool]


def read_sessions(path: Path) -> Iterator[Example]:
    """Every session of the question's haystack is a candidate; those of `answer_session_ids` are relevant."""
    return _read(path, _sessions)


def read_turns(path: Path) -> Iterator[Example]:
    """Every turn of the haystack is a candidate; those marked `has_answer` are relevant."""
    return _read(path, _turns)


class Session:
    """One session of a haystack, with its date."""

    def __init__(self, name: str, date: Moment, turns: list[dict[str, Any]], where: str) -> None:
        self.name, self.date = name, date
        self.turns = [
            (text_or_empty(turn, "role", where), text_or_empty(turn, "content", where), turn.get("has_answer") is True)
            for turn in turns
        ]


def _read(path: Path, cut: Cut) -> Iterator[Example]:
    for where, record in read_json_records(path):
        name = text_of(record, "question_id", where)
        answerable = not name.endswith("_abs")
        answers = {str(answer) for answer in field(record, "answer_session_ids", list, where)}
        candidates, missing = cut(_haystack(record, where), answers, answerable)
        asked_at = record.get("question_date")
        yield Example(
            id=name,
            query=text_of(record, "question", where),
            candidates=candidates,
            query_time=_moment(asked_at, f"{where}: question_date") if asked_at else None,
            group=name.removesuffix("_abs"),
            source="longmemeval",
            kind=str(record.get("question_type")) + ("" if answerable else " (unanswerable)"),
            answerable=answerable,
            missing=missing,
        )


def _haystack(record: dict[str, Any], where: str) -> list[Session]:
    names, dates, sessions = (
        field(record, key, list, where) for key in ("haystack_session_ids", "haystack_dates", "haystack_sessions")
    )
    if not len(names) == len(dates) == len(sessions):
        raise InputError(
            f"{where}: haystack_sessions: {len(sessions)} sessions, {len(dates)} dates, {len(names)} ids do not match"
        )
    if not sessions:
        raise InputError(f"{where}: haystack_sessions: is empty")
    result = []
    for index, (name, date, turns) in enumerate(zip(names, dates, sessions, strict=True)):
        here = f"{where}: haystack_sessions {index}"
        if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
            raise InputError(f"{here}: expected a list of turns, got {turns!r:.60}")
        result.append(Session(str(name), _moment(date, f"{where}: haystack_dates {index}"), turns, here))
    return result


def text_or_empty(record: dict[str, Any], key: str, where: str) -> str:
    """A string field that may be empty: a few published turns are."""
    value = field(record, key, str, where)
    return value.strip()


def _sessions(haystack: Sequence[Session], answers: set[str], answerable: bool) -> Pool:
    memories = [
        Memory(
            "\n".join(f"{role}: {content}" for role, content, _ in session.turns),
            id=session.name,
            mentioned_at=session.date,
        )
        for session in haystack
    ]
    lost = answers - {session.name for session in haystack} if answerable else set()
    return labelled(memories, (answerable and session.name in answers for session in haystack)), (1.0,) * len(lost)


def _turns(haystack: Sequence[Session], answers: set[str], answerable: bool) -> Pool:
    memories = []
    relevant = []
    for session in haystack:
        for number, (role, content, has_answer) in enumerate(session.turns):
            if not content:
                continue
            name = f"{session.name}:{number}"
            memories.append(Memory(content, id=name, mentioned_at=session.date, speaker=role))
            relevant.append(answerable and has_answer)
    return labelled(memories, relevant), ()  # of a session that is not there, nobody says which turns answer


def _moment(value: object, where: str) -> Moment:
    """Their `2023/05/20 (Sat) 02:21`, or any ISO 8601 date."""
    found = _DATE.fullmatch(value.strip()) if isinstance(value, str) else None
    try:
        if found is None:
            return Moment.parse(value)
        year, month, day, clock = found.groups()
        return Moment.parse(f"{year}-{month}-{day}" + (f"T{clock:0>5}" if clock else ""))
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


loaders.add(Loader("longmemeval", "LongMemEval, sessions as candidates", read_sessions))
loaders.add(Loader("longmemeval-turns", "LongMemEval, turns as candidates", read_turns))
