"""LoCoMo: questions over long conversations of two people; the turns are the candidates."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from mnemorank._internal.jsonio import read_json_records
from mnemorank.data.benchmarks.loader import Loader, field, labelled, loaders, objects
from mnemorank.data.examples import Example, text_of
from mnemorank.errors import InputError
from mnemorank.memory.memory import Memory
from mnemorank.memory.moment import Moment

CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 5: "adversarial"}
_SESSION = re.compile(r"session_(\d+)")
_EVIDENCE = re.compile(r"D0*(\d+):0*(\d+)")


def read(path: Path) -> Iterator[Example]:
    """Questions by category; the adversarial ones ask for what was never said, and count as unanswerable."""
    for where, record in read_json_records(path):
        conversation = str(record.get("sample_id", where))
        memories = _turns(field(record, "conversation", dict, where), where)
        names = [_turn_name(memory.id or "") for memory in memories]
        for number, question in enumerate(objects(record, "qa", where)):
            here = f"{where}: qa {number}"
            category = field(question, "category", int, here)
            answerable = CATEGORIES.get(category) != "adversarial"
            evidence = _evidence(question, here)
            yield Example(
                id=f"{conversation}:{number}",
                query=text_of(question, "question", here),
                candidates=labelled(memories, (answerable and name in evidence for name in names)),
                group=conversation,
                source="locomo",
                kind=CATEGORIES.get(category, f"category {category}"),
                answerable=answerable,
                missing=(1.0,) * len(evidence - set(names)) if answerable else (),
            )


def _turns(conversation: dict[str, Any], where: str) -> list[Memory]:
    memories = []
    for key in sorted(filter(_SESSION.fullmatch, conversation), key=lambda key: int(key.split("_")[1])):
        turns = objects(conversation, key, f"{where}: conversation")
        if not turns:
            continue
        date = _moment(conversation.get(f"{key}_date_time"), f"{where}: conversation: {key}_date_time")
        memories += [_turn(turn, date, f"{where}: conversation: {key} {i}") for i, turn in enumerate(turns)]
    if not memories:
        raise InputError(f"{where}: conversation: has no session_1, session_2, … with turns")
    return memories


def _turn(turn: dict[str, Any], date: Moment, where: str) -> Memory:
    """`speaker: words [photo: caption]`; questions name the speakers, so the name is part of the text."""
    speaker = text_of(turn, "speaker", where)
    caption = turn.get("blip_caption")
    text = f"{speaker}: {field(turn, 'text', str, where)}" + (f" [photo: {caption}]" if caption else "")
    return Memory(text, id=text_of(turn, "dia_id", where), mentioned_at=date)


def _evidence(question: dict[str, Any], where: str) -> set[str]:
    """The turns named as evidence. Some entries name several (`D8:6; D9:17`), a few are damaged and name none."""
    entries = field(question, "evidence", list, where)
    found = (match for entry in entries if isinstance(entry, str) for match in _EVIDENCE.finditer(entry))
    return {_turn_name(match[0]) for match in found}


def _turn_name(written: str) -> str:
    """A turn's name without the zeros that some entries of evidence put before its numbers (`D1:02`)."""
    return _EVIDENCE.sub(r"D\1:\2", written)


def _moment(value: object, where: str) -> Moment:
    """Their `1:56 pm on 8 May, 2023`."""
    try:
        moment = datetime.strptime(str(value), "%I:%M %p on %d %B, %Y")
    except ValueError:
        raise InputError(f"{where}: expected a date such as '1:56 pm on 8 May, 2023', got {value!r:.60}") from None
    return Moment.parse(moment)


loaders.add(Loader("locomo", "LoCoMo, turns of the conversation as candidates", read))
