"""How a memory is written down for a model. A format is versioned and named in the model's manifest.

To add one: write a function from Memory to Formatted and register it. A format never changes once a model was trained
with it; a better one gets a new name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mnemorank._internal.plugins import PluginTable
from mnemorank.memory.memory import Memory
from mnemorank.memory.moment import Moment


@dataclass(frozen=True, slots=True)
class Formatted:
    """A written memory. `body` is the part that may be cut into windows; each window keeps `before` and `after`."""

    before: str
    body: str
    after: str = ""

    @property
    def text(self) -> str:
        return self.before + self.body + self.after


@dataclass(frozen=True, slots=True)
class Format:
    name: str
    description: str
    write: Callable[[Memory], Formatted]


formats: PluginTable[Format] = PluginTable("format")


def format_memory(memory: Memory, name: str = "hindsight-2") -> str:
    """The memory's text in the named format, whole."""
    return formats[name].write(memory).text


def _range_in_brackets(start: Moment | None, end: Moment | None) -> str:
    if start and end:
        return f"[Start: {start.words()}] [End: {end.words()}] "
    if start:
        return f"[Start: {start.words()}] [End: ongoing] "
    return f"[End: {end.words()}] " if end else ""


def _context(memory: Memory) -> str:
    return f"{memory.context}: " if memory.context else ""


def _hindsight_2(memory: Memory) -> Formatted:
    dates = _range_in_brackets(memory.occurred_start, memory.occurred_end)
    kind = f"[{memory.type[:1].upper()}{memory.type[1:]}] " if memory.type else ""
    return Formatted(dates + kind + _context(memory), memory.text)


def _hindsight_1(memory: Memory) -> Formatted:
    dated = f"[Date: {memory.date.words()}] " if memory.date else ""
    return Formatted(dated + _context(memory), memory.text)


def _plain(memory: Memory) -> Formatted:
    return Formatted("", memory.text)


def _dialogue(memory: Memory) -> Formatted:
    dated = f"[{memory.date.words()}] " if memory.date else ""
    speaker = f"{memory.speaker}: " if memory.speaker else ""
    return Formatted(dated + speaker, memory.text)


def _keyed(memory: Memory) -> Formatted:
    """R1's key-value document: the text first, then what is known about it, a line each."""
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


formats.add(Format("hindsight-2", "[Start: …] [End: …] [Type] context: text (R0's format 2)", _hindsight_2))
formats.add(Format("hindsight-1", "[Date: …] context: text (R0's format 1)", _hindsight_1))
formats.add(Format("plain", "the text alone", _plain))
formats.add(Format("dialogue", "[session date] speaker: text", _dialogue))
formats.add(Format("keyed", "Text: …, then a line each for source, type, time, entities (R1)", _keyed))
