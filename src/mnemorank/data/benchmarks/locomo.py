"""LoCoMo: questions about long conversations between two people; the turns are the candidates."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from mnemorank.data.benchmarks.loader import Loader, label_candidates, loaders
from mnemorank.data.examples import Example
from mnemorank.data.records import Record, read_records
from mnemorank.errors import InputError
from mnemorank.memory.memory import Memory
from mnemorank.memory.moment import Moment

CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 5: "adversarial"}
_SESSION = re.compile(r"session_(\d+)")
_EVIDENCE = re.compile(r"D0*(\d+):0*(\d+)")


def read(path: Path) -> Iterator[Example]:
    """Yield the questions of all conversations. Adversarial ones, about things never said, are unanswerable."""
    for record in read_records(path):
        conversation = str(record.values.get("sample_id", record.location))
        memories = _turns(record.object("conversation"))
        names = [_turn_name(memory.id or "") for memory in memories]
        for number, question in enumerate(record.objects("qa")):
            category = question.get("category", int)
            answerable = CATEGORIES.get(category) != "adversarial"
            evidence = _evidence(question)
            yield Example(
                id=f"{conversation}:{number}",
                query=question.text("question"),
                candidates=label_candidates(memories, (answerable and name in evidence for name in names)),
                group=conversation,
                source="locomo",
                kind=CATEGORIES.get(category, f"category {category}"),
                answerable=answerable,
                missing=(1.0,) * len(evidence - set(names)) if answerable else (),
            )


def _turns(conversation: Record) -> list[Memory]:
    memories = []
    for key in sorted(filter(_SESSION.fullmatch, conversation.values), key=lambda key: int(key.split("_")[1])):
        turns = conversation.objects(key)
        if not turns:
            continue
        date_key = f"{key}_date_time"
        date = conversation.moment(date_key, _parse_date)
        if date is None:
            raise conversation.error("is missing", date_key)
        memories += [_turn(turn, date) for turn in turns]
    if not memories:
        raise conversation.error("expected session_1, session_2, … with turns, found none", code="empty")
    return memories


def _turn(turn: Record, date: Moment) -> Memory:
    """Format a turn as `speaker: words [photo: caption]`. Questions name the speakers, so the text must too."""
    speaker = turn.text("speaker")
    caption = turn.values.get("blip_caption")
    text = f"{speaker}: {turn.get('text', str)}" + (f" [photo: {caption}]" if caption else "")
    return Memory(text, id=turn.text("dia_id"), mentioned_at=date)


def _evidence(question: Record) -> set[str]:
    """Return the turns named as evidence. Some entries name several (`D8:6; D9:17`), a few are malformed."""
    entries = question.get("evidence", list)
    matches = (match for entry in entries if isinstance(entry, str) for match in _EVIDENCE.finditer(entry))
    return {_turn_name(match[0]) for match in matches}


def _turn_name(text: str) -> str:
    """Return the id of a turn without the leading zeros of some evidence entries (`D1:02`)."""
    return _EVIDENCE.sub(r"D\1:\2", text)


def _parse_date(value: object) -> Moment:
    """Parse LoCoMo's dates, such as `1:56 pm on 8 May, 2023`."""
    try:
        moment = datetime.strptime(str(value), "%I:%M %p on %d %B, %Y")
    except ValueError:
        raise InputError(f"expected a date such as '1:56 pm on 8 May, 2023', got {value!r:.60}") from None
    return Moment.parse(moment)


loaders.add(Loader("locomo", "LoCoMo, turns as candidates", read))
