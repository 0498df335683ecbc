"""Formats: how a memory becomes text for a model. The manifest names the format that a model was trained with.

To add a format, write a function from `Memory` to `Formatted` and register it. A format never changes once a model was
trained with it; an improvement gets a new name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mnemorank._internal.plugins import PluginTable
from mnemorank.memory.memory import Memory
from mnemorank.memory.moment import Moment


@dataclass(frozen=True, slots=True)
class Formatted:
    """A memory as text.

    :param body: the memory's own text, which may be cut into windows; each window keeps `before` and `after`.
    """

    before: str
    body: str
    after: str = ""

    @property
    def text(self) -> str:
        return self.before + self.body + self.after


@dataclass(frozen=True, slots=True)
class Format:
    """A named way to write memories as text."""

    name: str
    description: str
    write: Callable[[Memory], Formatted]


formats: PluginTable[Format] = PluginTable("format")


def format_memory(memory: Memory, name: str = "hindsight-2") -> str:
    """Return the text of a memory in the named format."""
    return formats[name].write(memory).text


def _date_range(start: Moment | None, end: Moment | None) -> str:
    if start and end:
        return f"[Start: {start.words()}] [End: {end.words()}] "
    if start:
        return f"[Start: {start.words()}] [End: ongoing] "
    return f"[End: {end.words()}] " if end else ""


def _context(memory: Memory) -> str:
    return f"{memory.context}: " if memory.context else ""


def _kind(memory: Memory) -> str:
    return f"[{memory.type[:1].upper()}{memory.type[1:]}] " if memory.type else ""


def _hindsight_2(memory: Memory) -> Formatted:
    dates = _date_range(memory.occurred_start, memory.occurred_end)
    return Formatted(dates + _kind(memory) + _context(memory), memory.text)


def _facts(memory: Memory) -> Formatted:
    start, end = memory.occurred_start, memory.occurred_end
    dates = (f"[Start: {start.words()}] " if start else "") + (f"[End: {end.words()}] " if end else "")
    if memory.mentioned_at and not start:
        dates += f"[Noted: {memory.mentioned_at.words()}] "
    return Formatted(dates + _kind(memory) + _context(memory), memory.text)


def _hindsight_1(memory: Memory) -> Formatted:
    date = f"[Date: {memory.date.words()}] " if memory.date else ""
    return Formatted(date + _context(memory), memory.text)


def _plain(memory: Memory) -> Formatted:
    return Formatted("", memory.text)


def _dialogue(memory: Memory) -> Formatted:
    date = f"[{memory.date.words()}] " if memory.date else ""
    speaker = f"{memory.speaker}: " if memory.speaker else ""
    return Formatted(date + speaker, memory.text)


def _keyed(memory: Memory) -> Formatted:
    """Write the text first, then a line for each known field, as LycheeMem does."""
    lines: Iterable[tuple[str, object]] = (
        ("Source", memory.context),
        ("Memory type", memory.type),
        ("Speaker", memory.speaker),
        ("Dialogue time", memory.mentioned_at),
        ("Start", memory.occurred_start),
        ("End", memory.occurred_end),
        ("Entities", ", ".join(memory.entities)),
    )
    return Formatted("Text: ", memory.text, "".join(f"\n{key}: {value}" for key, value in lines if value))


formats.add(
    Format("hindsight-2", "[Start: …] [End: …] [Type] context: text (Hindsight reranker, format 2)", _hindsight_2)
)
formats.add(Format("hindsight-1", "[Date: …] context: text (Hindsight reranker, format 1)", _hindsight_1))
formats.add(
    Format("facts", "[Start: …] [End: …] [Noted: …] [Type] context: text, with the dates that are known", _facts)
)
formats.add(Format("plain", "the text alone", _plain))
formats.add(Format("dialogue", "[session date] speaker: text", _dialogue))
formats.add(Format("keyed", "Text: …, then a line each for source, type, time, entities (LycheeMem)", _keyed))
