"""AutoGen: a memory that reranks what another memory returns."""

from __future__ import annotations

import json
from typing import Any

from autogen_core import CancellationToken, Component, ComponentModel
from autogen_core.memory import Memory, MemoryContent, MemoryQueryResult, UpdateContextResult
from autogen_core.model_context import ChatCompletionContext
from autogen_core.models import SystemMessage
from pydantic import BaseModel, Field

from mnemorank.integrations.adapter import Adapter
from mnemorank.reranker import Reranker


class RerankedMemoryConfig(BaseModel):
    """The configuration of a `RerankedMemory`."""

    memory: ComponentModel
    model: str = "mini"
    top_k: int = 5
    key: str | None = None
    arguments: dict[str, Any] = Field(default_factory=dict)


class RerankedMemory(Memory, Component[RerankedMemoryConfig]):
    """Asks another memory, and returns the best of its answer: `AssistantAgent(memory=[RerankedMemory(memory)])`.

    Let the other memory return many entries (`ListMemory` returns all). The entries returned are copies with
    `score`, which decreases along the list, and `relevance` in their metadata, and `stale: True` if a newer entry
    replaces them.

    :param key: the metadata field that says what an entry is about: the newest of equal ones replaces the others.
    :param arguments: further arguments of `Reranker.rerank`, such as `options` and `deadline_ms`.
    """

    component_config_schema = RerankedMemoryConfig
    component_provider_override = "mnemorank.integrations.autogen.RerankedMemory"

    def __init__(
        self,
        memory: Memory,
        model: str | Reranker = "mini",
        *,
        top_k: int = 5,
        key: str | None = None,
        **arguments: Any,
    ) -> None:
        self.memory = memory
        self.top_k = top_k
        self._adapter = Adapter(model, key=key, **arguments)

    async def query(
        self, query: str | MemoryContent, cancellation_token: CancellationToken | None = None, **kwargs: Any
    ) -> MemoryQueryResult:
        found = (await self.memory.query(query, cancellation_token, **kwargs)).results
        text = query if isinstance(query, str) else _text(query)
        ranking = await self._adapter.arank(text, [_record(entry) for entry in found], self.top_k)
        return MemoryQueryResult(
            results=[
                found[ranked.index]
                if ranked.score is None
                else found[ranked.index].model_copy(
                    update={
                        "metadata": {**(found[ranked.index].metadata or {}), "score": ranked.score, **ranked.fields}
                    }
                )
                for ranked in ranking
            ]
        )

    async def update_context(self, model_context: ChatCompletionContext) -> UpdateContextResult:
        """Add the entries that matter for the last message to the context, as a system message."""
        messages = await model_context.get_messages()
        last = messages[-1].content if messages else ""
        result = await self.query(last if isinstance(last, str) else str(last))
        if result.results:
            lines = [f"{number}. {_text(entry)}" for number, entry in enumerate(result.results, 1)]
            content = "\nRelevant memory content:\n" + "\n".join(lines) + "\n"
            await model_context.add_message(SystemMessage(content=content))
        return UpdateContextResult(memories=result)

    async def add(self, content: MemoryContent, cancellation_token: CancellationToken | None = None) -> None:
        await self.memory.add(content, cancellation_token)

    async def clear(self) -> None:
        await self.memory.clear()

    async def close(self) -> None:
        await self.memory.close()

    def _to_config(self) -> RerankedMemoryConfig:
        adapter = self._adapter
        return RerankedMemoryConfig(
            memory=self.memory.dump_component(),
            model=adapter.model,  # type: ignore[arg-type]  # pydantic refuses a Reranker, which is no data
            top_k=self.top_k,
            key=adapter.key,
            arguments=adapter.arguments,
        )

    @classmethod
    def _from_config(cls, config: RerankedMemoryConfig) -> RerankedMemory:
        memory = Memory.load_component(config.memory)
        return cls(memory, config.model, top_k=config.top_k, key=config.key, **config.arguments)


def _record(entry: MemoryContent) -> dict[str, Any]:
    return {"content": _text(entry), "metadata": entry.metadata}


def _text(entry: MemoryContent) -> str:
    """Return the text of an entry, JSON for a dict, and nothing for images and bytes, which rank last."""
    if isinstance(entry.content, dict):
        return json.dumps(entry.content, ensure_ascii=False, default=str)
    return entry.content if isinstance(entry.content, str) else ""
