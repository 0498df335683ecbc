"""The tools that an agent sees, and the feedback log behind them."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, ParamSpec, TypeVar

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.exc import SQLAlchemyError

from mnemorank._version import __version__
from mnemorank.errors import MnemorankError, NotFoundError
from mnemorank.learning.events import DEFAULT_TENANT, RerankEvent
from mnemorank.learning.signals import Signal
from mnemorank.learning.store.deletion import delete_memory
from mnemorank.learning.store.events import EventStore
from mnemorank.mcp.memories import Memories
from mnemorank.memory.memory import Memory
from mnemorank.model.model import Model
from mnemorank.reranker import Reranker
from mnemorank.results import Ranking

logger = logging.getLogger(__name__)

INSTRUCTIONS = """Long-term memory. Search it before you answer questions about the user, their work or earlier
conversations; add facts that will matter later, one per memory. A result with `stale` was replaced by a newer memory.
With `abstained`, nothing relevant is remembered. After you answered, report which memories helped with `feedback`."""
ACTOR = "agent"
MAX_TEXT = 20_000

Text = Annotated[str, Field(min_length=1, max_length=MAX_TEXT)]
TopK = Annotated[int, Field(ge=1, le=50, description="How many to return")]
Date = Annotated[str, Field(description="ISO 8601: 2024, 2024-03, 2024-03-05 or 2024-03-05T10:00:00Z")]
P = ParamSpec("P")
T = TypeVar("T")


class NewMemory(BaseModel):
    """A fact to remember."""

    model_config = ConfigDict(extra="forbid")

    text: Text
    key: str | None = Field(
        default=None, description="What it is about, such as `ruby/job`: the newest memory of a key replaces the others"
    )
    occurred_start: Date | None = Field(default=None, description="Since when it is true")
    occurred_end: Date | None = Field(default=None, description="Until when it was true")
    context: str | None = Field(default=None, description="A topic, such as `work`")
    type: Literal["world", "event", "observation"] | None = Field(default=None, description="`world` is a lasting fact")
    supersedes: list[str] = Field(default_factory=list, description="Ids of memories that are no longer true")

    def to_memory(self) -> Memory:
        metadata: dict[str, Any] = {"supersedes": self.supersedes} if self.supersedes else {}
        if self.key is not None:
            metadata["key"] = self.key
        return Memory.of(
            {
                **self.model_dump(exclude={"key", "supersedes"}, exclude_none=True),
                "mentioned_at": datetime.now(UTC).replace(microsecond=0),
                **metadata,
            }
        )


class FoundMemory(BaseModel):
    """A memory that was found."""

    id: str | None
    text: str
    relevance: float | None = Field(description="The probability that it answers the query")
    stale: bool = Field(description="A newer memory replaces it")


class SearchResult(BaseModel):
    """Memories, best first."""

    event_id: str | None = Field(description="For `feedback`; null if the log failed")
    abstained: bool = Field(description="No memory is relevant enough")
    memories: list[FoundMemory]


class Added(BaseModel):
    ids: list[str]


class Forgotten(BaseModel):
    forgotten: list[str]
    unknown: list[str]


class Stored(BaseModel):
    stored: bool


def create_server(collection: Memories, reranker: Reranker, store: EventStore) -> MCPServer[Any]:
    """Create the server.

    :param collection: the agent's memories.
    :param reranker: for the tool `rerank`, which ranks memories from elsewhere.
    :param store: receives the rankings and the feedback.
    """
    server: MCPServer[Any] = MCPServer("mnemorank", title="Memory", instructions=INSTRUCTIONS, version=__version__)

    def answer(query: str, ranking: Ranking) -> SearchResult:
        event = RerankEvent.from_ranking(query, ranking, _label(reranker))
        event_id: str | None = event.id
        try:
            store.record(event)
        except Exception as error:  # the log must not keep the agent from its memories
            logger.warning("event lost: %s", error)
            event_id = None
        found = [
            FoundMemory(
                id=result.id,
                text=result.text,
                relevance=None if result.relevance is None else round(result.relevance, 3),
                stale=result.stale,
            )
            for result in ranking
        ]
        return SearchResult(event_id=event_id, abstained=ranking.abstained, memories=found)

    @server.tool(title="Search memories", annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False))
    @_readable
    def search_memories(query: Text, top_k: TopK = 5, as_of: Date | None = None) -> SearchResult:
        """Find what is remembered about a question, best first. `as_of` asks for what was true on that date."""
        return answer(query, collection.search(query, top_k=top_k, as_of=as_of))

    @server.tool(title="Add memories", annotations=ToolAnnotations(destructive_hint=False, open_world_hint=False))
    @_readable
    def add_memories(memories: Annotated[list[str | NewMemory], Field(min_length=1, max_length=100)]) -> Added:
        """Remember facts, one per memory: complete sentences that can be understood alone."""
        values = [NewMemory(text=value) if isinstance(value, str) else value for value in memories]
        return Added(ids=collection.add([value.to_memory() for value in values]))

    @server.tool(title="Rerank", annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False))
    @_readable
    def rerank(
        query: Text,
        memories: Annotated[
            list[str | dict[str, Any]],
            Field(min_length=1, max_length=1000, description="Texts, or objects with a text and dates, id, score"),
        ],
        top_k: TopK = 5,
        as_of: Date | None = None,
    ) -> SearchResult:
        """Put texts or memories from elsewhere in order for a question. Nothing of them is remembered."""
        return answer(query, reranker.rerank(query, memories, top_k=top_k, as_of=as_of, on_error="skip"))

    @server.tool(
        title="Feedback",
        annotations=ToolAnnotations(destructive_hint=False, idempotent_hint=True, open_world_hint=False),
    )
    @_readable
    def feedback(
        event_id: Annotated[str, Field(description="From `search_memories` or `rerank`")],
        kind: Literal["cited", "used", "ignored", "contradicted", "thumbs_up", "thumbs_down"],
        memory_id: str | None = None,
        rank: Annotated[int, Field(ge=1)] | None = None,
    ) -> Stored:
        """Report whether a memory helped, by its id or its rank, so that ranking improves.

        `cited` and `used`: it helped. `ignored`: it did not matter. `contradicted`: it is wrong.
        """
        if store.event(event_id) is None:
            raise NotFoundError(f"no event {event_id!r}", field="event_id")
        place = rank if memory_id is None else store.rank_of(event_id, memory_id, rank)
        if place is None:
            raise ToolError("give the memory_id or the rank of the memory")
        return Stored(stored=bool(store.add_signals([Signal(event_id, kind, place, actor=ACTOR)])))

    @server.tool(
        title="Forget memories",
        annotations=ToolAnnotations(destructive_hint=True, idempotent_hint=True, open_world_hint=False),
    )
    @_readable
    def forget(ids: Annotated[list[str], Field(min_length=1, max_length=100)]) -> Forgotten:
        """Delete memories, also from the log of searches. To correct a fact, add the new one instead."""
        forgotten = [name for name in dict.fromkeys(ids) if collection.get(name) is not None]
        collection.delete(forgotten)
        for memory_id in forgotten:
            delete_memory(store, memory_id, DEFAULT_TENANT)
        return Forgotten(forgotten=forgotten, unknown=[name for name in ids if name not in forgotten])

    return server


def _readable(tool: Callable[P, T]) -> Callable[P, T]:
    """Let the agent read our errors; the SDK hides those of foreign types."""

    @functools.wraps(tool)
    def call(*arguments: P.args, **named: P.kwargs) -> T:
        try:
            return tool(*arguments, **named)
        except (MnemorankError, OSError) as error:
            raise ToolError(str(error)) from error
        except SQLAlchemyError as error:
            raise ToolError("the feedback log failed; try again later") from error

    return call


def _label(reranker: Reranker) -> str:
    model = reranker.model
    if isinstance(model, Model):
        return f"{model.manifest.name}@{model.manifest.version}+{model.fingerprint}"
    return "unknown"
