"""LongMemEval: questions about a user's dated chat sessions. Sessions or turns are the candidates."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from mnemorank.data.benchmarks.loader import Loader, label_candidates, loaders
from mnemorank.data.examples import Candidate, Example
from mnemorank.data.records import Record, read_records
from mnemorank.errors import InputError
from mnemorank.memory.memory import Memory
from mnemorank.memory.moment import Moment

_DATE = re.compile(r"(\d{4})/(\d{2})/(\d{2})(?: \(\w+\))?(?: (\d{1,2}:\d{2}))?")

Pool = tuple[tuple[Candidate, ...], tuple[float, ...]]
"""Candidates, and labels of relevant memories that are missing among them."""

Splitter = Callable[[Sequence["ChatSession"], set[str], bool], Pool]


def read_sessions(path: Path) -> Iterator[Example]:
    """Yield questions with all sessions of the haystack; those of `answer_session_ids` are relevant."""
    return _read(path, _sessions)


def read_turns(path: Path) -> Iterator[Example]:
    """Yield questions with all turns of the haystack; those marked `has_answer` are relevant."""
    return _read(path, _turns)


class ChatSession:
    """A session of a haystack, with its date."""

    def __init__(self, name: str, date: Moment, turns: Sequence[Record]) -> None:
        self.name, self.date = name, date
        self.turns = [
            (_text(turn, "role"), _text(turn, "content"), turn.values.get("has_answer") is True) for turn in turns
        ]


def _read(path: Path, split: Splitter) -> Iterator[Example]:
    for record in read_records(path):
        name = record.text("question_id")
        answerable = not name.endswith("_abs")
        answers = {str(answer) for answer in record.get("answer_session_ids", list)}
        candidates, missing = split(_haystack(record), answers, answerable)
        yield Example(
            id=name,
            query=record.text("question"),
            candidates=candidates,
            query_time=record.moment("question_date", _parse_date),
            group=name.removesuffix("_abs"),
            source="longmemeval",
            kind=str(record.values.get("question_type")) + ("" if answerable else " (unanswerable)"),
            answerable=answerable,
            missing=missing,
        )


def _haystack(record: Record) -> list[ChatSession]:
    names, dates, sessions = (
        record.get(key, list) for key in ("haystack_session_ids", "haystack_dates", "haystack_sessions")
    )
    if not len(names) == len(dates) == len(sessions):
        message = f"got {len(sessions)} sessions, but {len(dates)} dates and {len(names)} ids"
        raise record.error(message, "haystack_sessions")
    if not sessions:
        raise record.error("is empty", "haystack_sessions", code="empty")
    result = []
    for index, (name, date, turns) in enumerate(zip(names, dates, sessions, strict=True)):
        if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
            raise record.error(f"expected a list of turns, got {turns!r:.60}", f"haystack_sessions.{index}")
        try:
            parsed_date = _parse_date(date)
        except InputError as error:
            raise record.error(error.message, f"haystack_dates.{index}") from None
        path = record.field(f"haystack_sessions.{index}")
        turn_records = [Record(turn, record.location, f"{path}.{i}") for i, turn in enumerate(turns)]
        result.append(ChatSession(str(name), parsed_date, turn_records))
    return result


def _text(record: Record, key: str) -> str:
    """Return a string that may be empty, as that of a few published turns is."""
    return record.get(key, str).strip()


def _sessions(haystack: Sequence[ChatSession], answers: set[str], answerable: bool) -> Pool:
    memories = [
        Memory(
            "\n".join(f"{role}: {content}" for role, content, _ in session.turns),
            id=session.name,
            mentioned_at=session.date,
        )
        for session in haystack
    ]
    missing = answers - {session.name for session in haystack} if answerable else set()
    return label_candidates(memories, (answerable and session.name in answers for session in haystack)), (1.0,) * len(
        missing
    )


def _turns(haystack: Sequence[ChatSession], answers: set[str], answerable: bool) -> Pool:
    memories = []
    relevant = []
    for session in haystack:
        for number, (role, content, has_answer) in enumerate(session.turns):
            if not content:
                continue
            name = f"{session.name}:{number}"
            memories.append(Memory(content, id=name, mentioned_at=session.date, speaker=role))
            relevant.append(answerable and has_answer)
    # Which turns of a missing session are relevant is unknown.
    return label_candidates(memories, relevant), ()


def _parse_date(value: object) -> Moment:
    """Parse LongMemEval's dates, such as `2023/05/20 (Sat) 02:21`, or ISO 8601."""
    match = _DATE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        return Moment.parse(value)
    year, month, day, clock = match.groups()
    return Moment.parse(f"{year}-{month}-{day}" + (f"T{clock:0>5}" if clock else ""))


loaders.add(Loader("longmemeval", "LongMemEval, sessions as candidates", read_sessions))
loaders.add(Loader("longmemeval-turns", "LongMemEval, turns as candidates", read_turns))
