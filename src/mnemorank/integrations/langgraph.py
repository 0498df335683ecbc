"""LangGraph and LangMem: a store whose searches are reranked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from langgraph.store.base import BaseStore, GetOp, Op, SearchItem, SearchOp
from langgraph.store.base import Result as StoreResult

from mnemorank.errors import InputError
from mnemorank.integrations.adapter import Adapter, logger
from mnemorank.memory.memory import Memory
from mnemorank.memory.moment import Moment
from mnemorank.reranker import Reranker


class RerankedStore(BaseStore):
    """A store that asks another one for many items and returns the best of them.

        store = RerankedStore(InMemoryStore(index={...}))
        store.search(("memories", "ruby"), query="Where does Ruby work now?", limit=5)

    Only searches with a query are reranked. The text of an item is the `text`, `content`, `memory` or `data` of its
    value, or the whole value as JSON. The date of its last update is read unless its value has dates.

    :param pool: how many items to ask the other store for.
    :param key: the field of the values that says what an item is about: the newest of equal ones replaces the others.
    :param field: the field of the values that holds the text.
    :param arguments: further arguments of `Reranker.rerank`, such as `options` and `deadline_ms`.
    """

    def __init__(
        self,
        store: BaseStore,
        model: str | Reranker = "mini",
        *,
        pool: int = 100,
        key: str | None = None,
        field: str | None = None,
        **arguments: Any,
    ) -> None:
        self.store = store
        self.pool = pool
        self.field = None if field is None else f"value.{field}"
        self.supports_ttl = store.supports_ttl
        self.ttl_config = store.ttl_config
        self._adapter = Adapter(model, key=key, **arguments)

    def batch(self, ops: Iterable[Op]) -> list[StoreResult]:
        ops = list(ops)
        results = self.store.batch([self._widened(op) for op in ops])
        results = [self._reranked(op, found) for op, found in zip(ops, results, strict=True)]
        if touched := self._touched(ops, results):
            self.store.batch(touched)
        return results

    async def abatch(self, ops: Iterable[Op]) -> list[StoreResult]:
        ops = list(ops)
        found = await self.store.abatch([self._widened(op) for op in ops])
        results = [await asyncio.to_thread(self._reranked, op, each) for op, each in zip(ops, found, strict=True)]
        if touched := self._touched(ops, results):
            await self.store.abatch(touched)
        return results

    def _widened(self, op: Op) -> Op:
        """Return a search for the whole pool, without prolonging the life of all it finds."""
        if not _has_query(op):
            return op
        return op._replace(limit=max(self.pool, op.limit + op.offset), offset=0, refresh_ttl=False)

    def _reranked(self, op: Op, found: Any) -> Any:
        if not _has_query(op):
            return found
        ranking = self._adapter.rank(op.query, [self._memory(item) for item in found], op.offset + op.limit)
        return [
            SearchItem(
                namespace=item.namespace,
                key=item.key,
                value=item.value,
                created_at=item.created_at,
                updated_at=item.updated_at,
                score=item.score if ranked.score is None else ranked.score,
            )
            for ranked in ranking[op.offset :]
            for item in (found[ranked.index],)
        ]

    def _touched(self, ops: Sequence[Op], results: Sequence[Any]) -> list[GetOp]:
        """Return the reads that prolong the life of the items that are returned."""
        if not self.supports_ttl:
            return []
        searches = [(op, items) for op, items in zip(ops, results, strict=True) if _has_query(op) and op.refresh_ttl]
        return [GetOp(item.namespace, item.key, refresh_ttl=True) for _, items in searches for item in items]

    def _memory(self, item: SearchItem) -> Memory:
        record = {"id": "/".join((*item.namespace, item.key)), "score": item.score, "value": item.value}
        try:
            memory = Memory.of(record, field=self.field, on_error="skip", report=logger.warning)
        except InputError as error:
            if error.code != "missing":
                raise
            memory = Memory(json.dumps(item.value, ensure_ascii=False, default=str), record["id"])
        return memory if memory.mentioned_at else replace(memory, mentioned_at=Moment.parse(item.updated_at))


def _has_query(op: Op) -> bool:
    return isinstance(op, SearchOp) and bool(op.query)
