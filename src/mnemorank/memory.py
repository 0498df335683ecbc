"""Memory: one thing an agent remembers, read from a string, a dict or a record of a memory store."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypeAlias

from mnemorank.errors import InputError
from mnemorank.moment import Moment

logger = logging.getLogger(__name__)

OnError: TypeAlias = Literal["raise", "skip"]
Report: TypeAlias = Callable[[str], None]

# The names that memory stores give to our fields, in order of preference.
ALIASES: Mapping[str, tuple[str, ...]] = {
    "text": ("text", "content", "memory", "page_content", "document"),
    "id": ("id", "memory_id", "doc_id"),
    "type": ("type", "fact_type", "memory_type"),
    "context": ("context",),
    "occurred_start": ("occurred_start", "valid_from", "start_date"),
    "occurred_end": ("occurred_end", "valid_to", "end_date"),
    "mentioned_at": ("mentioned_at", "created_at", "timestamp", "date"),
    "speaker": ("speaker", "role"),
    "entities": ("entities",),
    "confidence": ("confidence",),
    "proof_count": ("proof_count",),
    "trust": ("trust",),
    "first_stage_score": ("first_stage_score", "score", "similarity"),
}
_DATES = ("occurred_start", "occurred_end", "mentioned_at")
_WORDS = ("id", "type", "context", "speaker")
# What retrieval libraries put into a document's `metadata`; read from there where the record itself does not say it.
_IN_METADATA = (*_DATES, "first_stage_score")


@dataclass(frozen=True, slots=True)
class Memory:
    """One remembered fact, event, turn or session.

    :param type: what kind of memory: `world` (enduring fact), `event`, `observation`, or a word of your own.
    :param occurred_start: when it began to be true; with no `occurred_end` it is still true.
    :param mentioned_at: when it was said or stored; used where it has no `occurred_*` dates.
    :param proof_count: how many sources support it.
    :param trust: how far its source is trusted, 0 to 1.
    :param first_stage_score: the retriever's score, on any scale; higher is better.
    """

    text: str
    id: str | None = None
    type: str | None = None
    context: str | None = None
    occurred_start: Moment | None = None
    occurred_end: Moment | None = None
    mentioned_at: Moment | None = None
    speaker: str | None = None
    entities: tuple[str, ...] = ()
    confidence: float | None = None
    proof_count: int | None = None
    trust: float | None = None
    first_stage_score: float | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def date(self) -> Moment | None:
        """The date that tells how recent the memory is: its start, else its end, else when it was mentioned."""
        return self.occurred_start or self.occurred_end or self.mentioned_at

    @property
    def is_ongoing(self) -> bool:
        return self.occurred_start is not None and self.occurred_end is None

    @property
    def is_event(self) -> bool:
        return self.type is not None and self.type.casefold() == "event"

    @property
    def is_state(self) -> bool:
        """An enduring fact, or a memory of no stated type."""
        return self.type is None or self.type.casefold() == "world"

    def is_newer_than(self, other: Memory) -> bool:
        """True only where both are dated and the dates do not overlap."""
        return self.date is not None and other.date is not None and other.date.is_before(self.date)

    @classmethod
    def of(
        cls,
        value: str | Mapping[str, Any] | Memory,
        *,
        field: str | None = None,
        where: str = "memory",
        on_error: OnError = "raise",
        report: Report = logger.warning,
    ) -> Memory:
        """Read a memory from whatever a caller has.

        Dates and the score are also looked for in a dict's `metadata`, where a bad one is reported, never an error.

        :param field: the dict key that holds the text; by default the first of text, content, memory, page_content,
            document that is present.
        :param where: how errors name this record.
        :param on_error: `raise` an InputError on a bad date, score or number, or `skip` the bad value and report it.
        """
        if isinstance(value, Memory):
            return _checked(value, _Reader(where, on_error, report))
        if isinstance(value, str):
            return cls(value)
        if isinstance(value, Mapping):
            return _from_mapping(value, field, _Reader(where, on_error, report))
        if isinstance(getattr(value, "page_content", None), str):
            return _from_mapping(_document(value), field, _Reader(where, on_error, report))
        raise InputError(
            f"{where}: expected a string, a dict, a Memory or a LangChain Document, got {type(value).__name__}; "
            "give its text, or a dict with `text` and what else is known"
        )

    def to_dict(self) -> dict[str, Any]:
        """The fields that are set, as JSON values; `Memory.of` reads them back."""
        record: dict[str, Any] = {}
        for name in FIELDS:
            value = getattr(self, name)
            if value is None or value == () or value == {}:
                continue
            record[name] = str(value) if isinstance(value, Moment) else value
        return {**record, **({"entities": list(self.entities)} if self.entities else {})}

    def with_score(self, first_stage_score: float | None) -> Memory:
        return replace(self, first_stage_score=first_stage_score)


def as_pool(values: Iterable[str | Mapping[str, Any] | Memory]) -> tuple[str | Mapping[str, Any] | Memory, ...]:
    """The values as a tuple; a single memory or something that is no collection is an error."""
    if isinstance(values, (str, Mapping)):
        raise InputError(f"memories: expected a list of memories, got a single {type(values).__name__}")
    if not isinstance(values, Iterable):
        raise InputError(f"memories: expected a list of memories, got {type(values).__name__}")
    return tuple(values)


def read_memories(
    values: Iterable[str | Mapping[str, Any] | Memory],
    *,
    field: str | None = None,
    on_error: OnError = "raise",
    report: Report = logger.warning,
) -> list[Memory]:
    """`Memory.of` for a whole pool; errors name the position."""
    if on_error not in ("raise", "skip"):
        raise InputError(f"on_error: expected 'raise' or 'skip', got {on_error!r}")
    return [
        Memory.of(value, field=field, where=f"memory {index}", on_error=on_error, report=report)
        for index, value in enumerate(as_pool(values))
    ]


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads one record's values, raising or reporting what is wrong with them."""

    where: str
    on_error: OnError
    report: Report

    def problem(self, message: str) -> None:
        text = f"{self.where}: {message}"
        if self.on_error == "raise":
            raise InputError(text)
        self.report(text)

    def word(self, key: str, value: object) -> str | None:
        if value is None or value == "":
            return None
        if isinstance(value, (str, int)) and not isinstance(value, bool):
            return str(value)
        self.problem(f"{key}: expected a string, got {type(value).__name__}")
        return None

    def moment(self, key: str, value: object) -> Moment | None:
        if value is None or value == "":
            return None
        try:
            return Moment.parse(value)
        except InputError as error:
            self.problem(f"{key}: {error}")
            return None

    def number(self, key: str, value: object, low: float = -math.inf, high: float = math.inf) -> float | None:
        if value is None or value == "":
            return None
        try:
            number = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            self.problem(f"{key}: expected a number, got {value!r:.60}")
            return None
        if not math.isfinite(number) and key == "first_stage_score":
            shown = "NaN" if math.isnan(number) else "infinite"
            self.report(f"{self.where}: first_stage_score is {shown} and counts as missing")
            return None
        if not low <= number <= high:
            self.problem(f"{key}: expected a number from {low:g} to {high:g}, got {number:g}")
            return None
        return number

    def entities(self, value: object) -> tuple[str, ...]:
        if value is None or value == "":
            return ()
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        if isinstance(value, Sequence) and all(isinstance(part, str) for part in value):
            return tuple(value)
        self.problem(f"entities: expected a list of strings, got {value!r:.60}")
        return ()


def _from_mapping(record: Mapping[str, Any], text_field: str | None, read: _Reader) -> Memory:
    found = {name: _first_present(record, keys) for name, keys in ALIASES.items()}
    found["text"] = text_field if text_field is not None else found["text"]
    key = found["text"]
    if key is None or key not in record:
        wanted = f"the field {text_field!r}" if text_field else "a text: one of " + ", ".join(ALIASES["text"])
        raise InputError(
            f"{read.where}: expected {wanted}; the record has {', '.join(map(str, record)) or 'no fields'}"
        )
    _check_text(record[key], read.where, key)

    # The field that serves as the text is not also another field.
    raw = {name: record[source] for name, source in found.items() if source is not None and source != key}
    used = {source for source in found.values() if source is not None}
    nested = record.get("metadata")
    if isinstance(nested, Mapping):
        used.add("metadata")
        _add_from_metadata(raw, nested, read)
    dates = {name: read.moment(_as_written(name, found), raw.get(name)) for name in _DATES}
    start, end = _checked_range(raw, dates, read)
    proof = read.number("proof_count", raw.get("proof_count"), 0, 1e9)
    return Memory(
        text=record[key],
        **{name: read.word(name, raw.get(name)) for name in _WORDS},
        occurred_start=start,
        occurred_end=end,
        mentioned_at=dates["mentioned_at"],
        entities=read.entities(raw.get("entities")),
        confidence=read.number("confidence", raw.get("confidence"), 0, 1),
        proof_count=None if proof is None else int(proof),
        trust=read.number("trust", raw.get("trust"), 0, 1),
        first_stage_score=read.number("first_stage_score", raw.get("first_stage_score")),
        metadata={
            **(nested if isinstance(nested, Mapping) else {}),
            **{k: v for k, v in record.items() if k not in used},
        },
    )


def _document(value: object) -> dict[str, Any]:
    """A LangChain Document, or whatever has its attributes, as a record."""
    stated = {name: getattr(value, name, None) for name in ("id", "page_content", "metadata")}
    return {name: each for name, each in stated.items() if each is not None}


def _add_from_metadata(raw: dict[str, Any], nested: Mapping[str, Any], read: _Reader) -> None:
    """Add dates and score that only the metadata has. What is no date there is somebody else's word: reported, left."""
    lenient = replace(read, on_error="skip")
    for name in _IN_METADATA:
        source = _first_present(nested, ALIASES[name])
        if source is None or raw.get(name) not in (None, ""):
            continue
        label = f"metadata.{source}"
        read_as = lenient.number if name == "first_stage_score" else lenient.moment
        value = read_as(label, nested[source])
        if value is not None:
            raw[name] = value


def _as_written(name: str, found: Mapping[str, str | None]) -> str:
    """How an error calls a field: by our name, and by the caller's where that is another."""
    source = found.get(name)
    return name if source in (None, name) else f"{source} ({name})"


def _checked_range(
    raw: Mapping[str, Any], dates: Mapping[str, Moment | None], read: _Reader
) -> tuple[Moment | None, Moment | None]:
    """A range with a bad half is no range: half of it would say `ongoing` of something that ended."""
    start, end = dates["occurred_start"], dates["occurred_end"]
    was_given = [raw.get(name) not in (None, "") for name in ("occurred_start", "occurred_end")]
    if was_given != [start is not None, end is not None]:
        return None, None
    if start and end and end.is_before(start):
        read.problem(f"occurred_end: {end} is before occurred_start {start}")
        return None, None
    return start, end


def _checked(memory: Memory, read: _Reader) -> Memory:
    """A record that the caller made: its text and dates must be what they say, and its score a number."""
    _check_text(memory.text, read.where, "text")
    for name in _DATES:
        value = getattr(memory, name)
        if value is not None and not isinstance(value, Moment):
            raise InputError(f"{read.where}: {name}: expected a Moment, got {value!r:.60}; see Moment.parse")
    if memory.first_stage_score is not None and not math.isfinite(memory.first_stage_score):
        return memory.with_score(read.number("first_stage_score", memory.first_stage_score))
    return memory


def _first_present(record: Mapping[str, Any], keys: Iterable[str]) -> str | None:
    return next(
        (key for key in keys if record.get(key) is not None), next((key for key in keys if key in record), None)
    )


def _check_text(text: object, where: str, key: str) -> None:
    if not isinstance(text, str):
        raise InputError(
            f"{where}: {key}: expected a string, got {'nothing (null)' if text is None else type(text).__name__}"
        )


FIELDS = tuple(f.name for f in fields(Memory))
