"""Memory: a fact, event or message that an agent remembers, and how it is read from other records."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol, TypeAlias

from mnemorank._internal.validation import check_number
from mnemorank.errors import InputError
from mnemorank.memory.moment import Moment
from mnemorank.memory.records import ALIASES as ALIASES
from mnemorank.memory.records import as_mapping, as_pair, check_pool, check_text, read_fields
from mnemorank.memory.values import DATE_FIELDS, ValueReader, as_id
from mnemorank.memory.values import OnError as OnError
from mnemorank.memory.values import Report as Report

logger = logging.getLogger(__name__)

# Types of memories that record what happened or was concluded, not a fact that holds until it changes.
_EPISODIC_TYPES = frozenset(("event", "episode", "episodic", "experience", "observation"))


@dataclass(frozen=True, slots=True)
class Memory:
    """A remembered fact, event, chat turn or session.

    :param type: the kind of memory: `world` (a lasting fact), `event`, `observation`, or a word of your own.
    :param occurred_start: when it became true; without `occurred_end` it still is. Dates are anything that
        `Moment.parse` accepts.
    :param mentioned_at: when it was said or stored; used if there are no `occurred_*` dates.
    :param proof_count: the number of sources that support it.
    :param trust: how far its source is trusted, from 0 to 1.
    :param first_stage_score: the retriever's score, on any scale; higher is better.
    :param metadata: anything else. Supersession reads `key` (memories with the same key are about the same thing, and
        the newest replaces the others), `supersedes` and `superseded_by` (ids).
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

    def __post_init__(self) -> None:
        if self.id is not None and not isinstance(self.id, str):
            object.__setattr__(self, "id", as_id(self.id))
        for name in DATE_FIELDS:
            value = getattr(self, name)
            if value is None or isinstance(value, Moment):
                continue
            try:
                object.__setattr__(self, name, Moment.parse(value))
            except InputError as error:
                raise InputError(error.message, field=name) from None
        start, end = self.occurred_start, self.occurred_end
        if start and end and end.is_before(start):
            raise InputError(f"{end} is before occurred_start {start}", field="occurred_end")
        if self.trust is not None:
            check_number("trust", self.trust, 0, 1)
        if self.proof_count is not None:
            check_number("proof_count", self.proof_count, 0)
        for name in ("type", "context", "speaker"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise InputError(f"expected a string, got {type(value).__name__}", field=name)
        names = self.entities
        if not isinstance(names, Collection) or isinstance(names, str) or not all(isinstance(n, str) for n in names):
            raise InputError(f"expected a list of names, got {self.entities!r:.60}", field="entities")
        if not isinstance(self.metadata, Mapping):
            raise InputError(f"expected a dict, got {type(self.metadata).__name__}", field="metadata")

    def __repr__(self) -> str:
        set_fields = self.to_dict()
        text = repr(set_fields.pop("text"))
        return f"Memory({', '.join([text, *(f'{name}={value!r}' for name, value in set_fields.items())])})"

    @property
    def date(self) -> Moment | None:
        """The date that decides how recent the memory is: its start, else its end, else when it was mentioned."""
        return self.occurred_start or self.occurred_end or self.mentioned_at

    @property
    def started_at(self) -> Moment | None:
        """When it became true or was said; None if only its end is known."""
        return self.occurred_start or (self.mentioned_at if self.occurred_end is None else None)

    @property
    def is_ongoing(self) -> bool:
        return self.occurred_start is not None and self.occurred_end is None

    @property
    def is_event(self) -> bool:
        return self.type is not None and self.type.casefold() == "event"

    @property
    def is_state(self) -> bool:
        """Whether it may be a lasting fact: it has no type, or one that does not mean an episode or a conclusion."""
        return self.type is None or self.type.casefold() not in _EPISODIC_TYPES

    def is_newer_than(self, other: Memory) -> bool:
        """Return whether both have dates and this one is later, without overlap."""
        return self.date is not None and other.date is not None and other.date.is_before(self.date)

    @classmethod
    def of(
        cls,
        value: MemoryLike,
        *,
        field: str | None = None,
        path: str = "",
        location: str | None = None,
        on_error: OnError = "raise",
        report: Report = logger.warning,
    ) -> Memory:
        """Read a memory from a record.

        A record is a string, a dict, a row, a LangChain Document, a hit of a vector store, or `(record, score)`. Dates
        and score are also read from the record's `metadata` and `payload`, and all fields if the text is there,
        too. A bad value there is reported, never raised.

        :param field: the key of the text, or a path such as `payload.text`; by default the first of text, content,
            memory, page_content, document and fact that is present.
        :param path: the dotted path of the record for errors, such as `memories.3`.
        :param location: the file and line of the record for errors.
        :param on_error: `raise` an InputError for a bad date, score or number, or `skip` the value and report it.
        :param report: called with each warning.
        """
        return _read_memory(value, field, ValueReader(path, location, on_error, report))

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that are set as JSON values; `Memory.of` reads them back."""
        record: dict[str, Any] = {}
        for name in FIELDS:
            value = getattr(self, name)
            if value is None or value == () or value == {}:
                continue
            record[name] = str(value) if isinstance(value, Moment) else value
        return {**record, **({"entities": list(self.entities)} if self.entities else {})}

    def with_score(self, first_stage_score: float | None) -> Memory:
        return replace(self, first_stage_score=first_stage_score)


FIELDS = tuple(f.name for f in fields(Memory))


class _Row(Protocol):
    """A database row, such as sqlite3.Row."""

    def keys(self) -> Iterable[str]: ...
    def __getitem__(self, key: str, /) -> Any: ...


class _HasText(Protocol):
    @property
    def text(self) -> Any: ...


class _HasContent(Protocol):
    @property
    def content(self) -> Any: ...


class _HasMemory(Protocol):
    """A `Result` of another ranking, or an item of MemOS."""

    @property
    def memory(self) -> Any: ...


class _HasFact(Protocol):
    """An edge of Graphiti."""

    @property
    def fact(self) -> Any: ...


class _HasPageContent(Protocol):
    """A LangChain Document."""

    @property
    def page_content(self) -> str: ...


class _HasPayload(Protocol):
    """A point of Qdrant."""

    @property
    def payload(self) -> Any: ...


class _HasProperties(Protocol):
    """An object of Weaviate."""

    @property
    def properties(self) -> Any: ...


class _HasMetadata(Protocol):
    """A match of Pinecone."""

    @property
    def metadata(self) -> Any: ...


class _HasValue(Protocol):
    """An item of LangGraph's store."""

    @property
    def value(self) -> Any: ...


MemoryRecord: TypeAlias = (
    str
    | Mapping[str, Any]
    | Memory
    | _Row
    | _HasText
    | _HasContent
    | _HasMemory
    | _HasFact
    | _HasPageContent
    | _HasPayload
    | _HasProperties
    | _HasMetadata
    | _HasValue
)
"""What a memory can be read from."""

MemoryLike: TypeAlias = MemoryRecord | tuple[MemoryRecord, float | None]
"""A record, or a record with its first-stage score."""


def as_pool(values: Iterable[MemoryLike]) -> tuple[MemoryLike, ...]:
    """Return the memories as a tuple; a single memory is an InputError."""
    check_pool(values)
    return tuple(values)


def read_memories(
    values: Iterable[MemoryLike],
    *,
    field: str | None = None,
    on_error: OnError = "raise",
    report: Report = logger.warning,
) -> list[Memory]:
    """Read a pool of memories as `Memory.of` does; errors name the field, such as `memories.3.occurred_start`."""
    if on_error not in ("raise", "skip"):
        raise InputError(f"expected 'raise' or 'skip', got {on_error!r}", field="on_error")
    located = ((f"memories.{index}", None, value) for index, value in enumerate(as_pool(values)))
    return read_located(located, field=field, on_error=on_error, report=report)


def read_located(
    values: Iterable[tuple[str, str | None, MemoryLike]],
    *,
    field: str | None,
    on_error: OnError,
    report: Report,
) -> list[Memory]:
    """Read memories, each with its path and its location in a file for errors."""
    reported_once: set[str] = set()
    return [
        _read_memory(value, field, ValueReader(path, location, on_error, report, reported_once))
        for path, location, value in values
    ]


def _read_memory(value: Any, text_field: str | None, reader: ValueReader) -> Memory:
    memory = value if isinstance(value, Memory) else getattr(value, "memory", None)
    if isinstance(memory, Memory):
        return _check_memory(memory, reader)
    if isinstance(value, str):
        return Memory(value)
    if (pair := as_pair(value)) is not None:
        record, name, score = pair
        memory = _read_memory(record, text_field, reader)
        return memory if score is None else memory.with_score(reader.score(name, score))
    if (record := as_mapping(value, text_field)) is not None:
        return Memory(**read_fields(record, text_field, reader, is_dict=isinstance(value, Mapping)))
    raise reader.error(
        "expected a string, a dict, a Memory, a LangChain Document, a hit of a vector store or (record, score), got "
        f"{type(value).__name__}; pass its text, or a dict with `text` and other fields"
    )


def _check_memory(memory: Memory, reader: ValueReader) -> Memory:
    """Check what the constructor does not: the text, and that the score is finite."""
    check_text(memory.text, "text", reader)
    score = memory.first_stage_score
    if score is None or (isinstance(score, float) and math.isfinite(score)):
        return memory
    return memory.with_score(reader.score("first_stage_score", score))
