"""LoCoMo: questions about long conversations between two people; the turns are the candidates."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from mnemorank.data.benchmarks.loader import Loader, get_field, get_objects, label_candidates, loaders
from mnemorank.data.examples import Example
from mnemorank.data.formats import required_text
from mnemorank.data.json_records import read_json_records
from mnemorank.errors import InputError
from mnemorank.memory.memory import Memory
from mnemorank.memory.moment import Moment

CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 5: "adversarial"}
_SESSION = re.compile(r"session_(\d+)")
_EVIDENCE = re.compile(r"D0*(\d+):0*(\d+)")


def read(path: Path) -> Iterator[Example]:
    """Yield the questions of all conversations. Adversarial ones, about things never said, are unanswerable."""
    for where, record in read_json_records(path):
        conversation = str(record.get("sample_id", where))
        memories = _turns(get_field(record, "conversation", dict, where), where)
        names = [_turn_name(memory.id or "") for memory in memories]
        for number, question in enumerate(get_objects(record, "qa", where)):
            here = f"{where}: qa {number}"
            category = get_field(question, "category", int, here)
            answerable = CATEGORIES.get(category) != "adversarial"
            evidence = _evidence(question, here)
            yield Example(
                id=f"{conversation}:{number}",
                query=required_text(question, "question", here),
                candidates=label_candidates(memories, (answerable and name in evidence for name in names)),
                group=conversation,
                source="locomo",
                kind=CATEGORIES.get(category, f"category {category}"),
                answerable=answerable,
                missing=(1.0,) * len(evidence - set(names)) if answerable else (),
            )


def _turns(conversation: dict[str, Any], where: str) -> list[Memory]:
    memories = []
    for key in sorted(filter(_SESSION.fullmatch, conversation), key=lambda key: int(key.split("_")[1])):
        turns = get_objects(conversation, key, f"{where}: conversation")
        if not turns:
            continue
        date = _moment(conversation.get(f"{key}_date_time"), f"{where}: conversation: {key}_date_time")
        memories += [_turn(turn, date, f"{where}: conversation: {key} {i}") for i, turn in enumerate(turns)]
    if not memories:
        raise InputError(f"{where}: conversation: expected session_1, session_2, … with turns, found none")
    return memories


def _turn(turn: dict[str, Any], date: Moment, where: str) -> Memory:
    """Format a turn as `speaker: words [photo: caption]`. Questions name the speakers, so the text must too."""
    speaker = required_text(turn, "speaker", where)
    caption = turn.get("blip_caption")
    text = f"{speaker}: {get_field(turn, 'text', str, where)}" + (f" [photo: {caption}]" if caption else "")
    return Memory(text, id=required_text(turn, "dia_id", where), mentioned_at=date)


def _evidence(question: dict[str, Any], where: str) -> set[str]:
    """Return the turns named as evidence. Some entries name several (`D8:6; D9:17`), a few are malformed."""
    entries = get_field(question, "evidence", list, where)
    matches = (match for entry in entries if isinstance(entry, str) for match in _EVIDENCE.finditer(entry))
    return {_turn_name(match[0]) for match in matches}


def _turn_name(text: str) -> str:
    """Return the id of a turn without the leading zeros of some evidence entries (`D1:02`)."""
    return _EVIDENCE.sub(r"D\1:\2", text)


def _moment(value: object, where: str) -> Moment:
    """Parse LoCoMo's dates, such as `1:56 pm on 8 May, 2023`."""
    try:
        moment = datetime.strptime(str(value), "%I:%M %p on %d %B, %Y")
    except ValueError:
        raise InputError(f"{where}: expected a date such as '1:56 pm on 8 May, 2023', got {value!r:.60}") from None
    return Moment.parse(moment)


loaders.add(Loader("locomo", "LoCoMo, turns as candidates", read))
