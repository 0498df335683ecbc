"""Memory: one thing an agent remembers, read from a string, a dict or whatever a memory store gives."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeAlias

from mnemorank._internal.validation import check_number
from mnemorank.errors import InputError
from mnemorank.memory.moment import Moment
from mnemorank.memory.records import ALIASES as ALIASES
from mnemorank.memory.records import as_mapping, as_pair, check_pool, check_text, fields_of
from mnemorank.memory.values import DATES, Reader, as_id
from mnemorank.memory.values import OnError as OnError
from mnemorank.memory.values import Report as Report

logger = logging.getLogger(__name__)


_NO_STATES = frozenset(("event", "episode", "episodic", "experience", "observation"))


@dataclass(frozen=True, slots=True)
class Memory:
    """One remembered fact, event, turn or session.

    :param type: what kind of memory: `world` (enduring fact), `event`, `observation`, or a word of your own.
    :param occurred_start: when it began to be true; with no `occurred_end` it is still true. Dates may be given as
        whatever `Moment.parse` reads.
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

    def __post_init__(self) -> None:
        if self.id is not None and not isinstance(self.id, str):
            object.__setattr__(self, "id", as_id(self.id))
        for name in DATES:
            value = getattr(self, name)
            if value is None or isinstance(value, Moment):
                continue
            try:
                object.__setattr__(self, name, Moment.parse(value))
            except InputError as error:
                raise InputError(f"{error}", field=name) from None
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

    @property
    def date(self) -> Moment | None:
        """The date that tells how recent the memory is: its start, else its end, else when it was mentioned."""
        return self.occurred_start or self.occurred_end or self.mentioned_at

    @property
    def begun(self) -> Moment | None:
        """When it began to be true, or was said; None where only its end is known."""
        return self.occurred_start or (self.mentioned_at if self.occurred_end is None else None)

    @property
    def is_ongoing(self) -> bool:
        return self.occurred_start is not None and self.occurred_end is None

    @property
    def is_event(self) -> bool:
        return self.type is not None and self.type.casefold() == "event"

    @property
    def is_state(self) -> bool:
        """Whether it may be an enduring fact: of any type (`world`, a store's own `fact`, `preference` …) or none, but
        for what happened or was concluded."""
        return self.type is None or self.type.casefold() not in _NO_STATES

    def is_newer_than(self, other: Memory) -> bool:
        """True only where both are dated and the dates do not overlap."""
        return self.date is not None and other.date is not None and other.date.is_before(self.date)

    @classmethod
    def of(
        cls,
        value: MemoryLike,
        *,
        field: str | None = None,
        where: str = "memory",
        on_error: OnError = "raise",
        report: Report = logger.warning,
    ) -> Memory:
        """Read a memory from whatever a caller has.

        What the record itself does not say is looked for in its `metadata` and `payload`: dates and score, or all
        fields if the text is there too. A bad value there is reported, never an error.

        :param value: a string, a dict, a row, a LangChain Document, a hit of a vector store, or `(record, score)`.
        :param field: the key that holds the text, or a path such as `payload.text`; by default the first of text,
            content, memory, page_content, document, fact that is present.
        :param where: how errors name this record.
        :param on_error: `raise` an InputError on a bad date, score or number, or `skip` the bad value and report it.
        """
        read = Reader(where, on_error, report)
        # A result of another ranking has its memory.
        made = value if isinstance(value, Memory) else getattr(value, "memory", None)
        if isinstance(made, Memory):
            return _checked(made, read)
        if isinstance(value, str):
            return cls(value)
        if (pair := as_pair(value)) is not None:
            record, name, score = pair
            memory = cls.of(record, field=field, where=where, on_error=on_error, report=report)
            return memory if score is None else memory.with_score(read.score(name, score))
        if (found := as_mapping(value, field)) is not None:
            return cls(**fields_of(found, field, read))
        raise InputError(
            f"{where}: expected a string, a dict, a Memory, a LangChain Document, a hit of a vector store or "
            f"(record, score), got {type(value).__name__}; give its text, or a dict with `text` and what else is known"
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


# Any: rows, documents and hits are told by their attributes, whatever their class.
MemoryLike: TypeAlias = str | Mapping[str, Any] | Memory | tuple[Any, float | None] | Any


def as_pool(values: Iterable[MemoryLike]) -> tuple[MemoryLike, ...]:
    """The values as a tuple; a single memory or something that is no collection is an error."""
    check_pool(values)
    return tuple(values)


def read_memories(
    values: Iterable[MemoryLike],
    *,
    field: str | None = None,
    on_error: OnError = "raise",
    report: Report = logger.warning,
) -> list[Memory]:
    """`Memory.of` for a whole pool; errors name the position."""
    if on_error not in ("raise", "skip"):
        raise InputError(f"expected 'raise' or 'skip', got {on_error!r}", field="on_error")
    return [
        Memory.of(value, field=field, where=f"memory {index}", on_error=on_error, report=report)
        for index, value in enumerate(as_pool(values))
    ]


def _checked(memory: Memory, read: Reader) -> Memory:
    """A record that the caller made: its text must be one, and its score a number."""
    check_text(memory.text, read.where, "text")
    score = memory.first_stage_score
    if score is None or (isinstance(score, float) and math.isfinite(score)):
        return memory
    return memory.with_score(read.score("first_stage_score", score))


FIELDS = tuple(f.name for f in fields(Memory))
