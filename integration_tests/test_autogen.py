"""The adapter for AutoGen, with the real package."""

from __future__ import annotations

import asyncio

from autogen_core import ComponentModel
from autogen_core.memory import ListMemory, Memory, MemoryContent, MemoryMimeType
from autogen_core.model_context import UnboundedChatCompletionContext
from autogen_core.models import UserMessage

import mnemorank
from mnemorank import Options
from mnemorank.integrations.autogen import RerankedMemory
from shared import CAT, CURRENT, OLD, QUERY, TEXTS, Recorder, dates

ENTRIES = [
    MemoryContent(content=text, mime_type=MemoryMimeType.TEXT, metadata={**dates(text), "id": f"m{number}"})
    for number, text in enumerate(TEXTS)
]


def _memory(entries=ENTRIES, **arguments):
    return RerankedMemory(ListMemory(memory_contents=list(entries)), **arguments)


def test_the_current_job_comes_first_and_everything_travels():
    results = asyncio.run(_memory().query(QUERY)).results

    assert [entry.content for entry in results] == [CURRENT, OLD, CAT]
    assert [entry.metadata["id"] for entry in results] == ["m2", "m0", "m1"]
    assert results[0].metadata["score"] > results[1].metadata["score"] > results[2].metadata["score"]
    assert results[0].metadata["relevance"] > 0.5
    assert "score" not in ENTRIES[0].metadata  # copies are returned


def test_the_wide_pool_goes_in_and_the_event_loop_stays_free():
    reranker = Recorder()
    results = asyncio.run(_memory(model=reranker, top_k=1).query(ENTRIES[2])).results

    assert [entry.content for entry in results] == [CURRENT]
    assert reranker.sizes == [3]
    assert not reranker.was_blocking


def test_the_last_message_decides_what_is_added_to_the_context():
    async def update():
        context = UnboundedChatCompletionContext()
        await context.add_message(UserMessage(content=QUERY, source="user"))
        result = await _memory(top_k=1).update_context(context)
        return result.memories.results, await context.get_messages()

    results, messages = asyncio.run(update())
    assert [entry.content for entry in results] == [CURRENT]
    assert CURRENT in messages[-1].content
    assert OLD not in messages[-1].content


def test_entries_that_are_not_text():
    entries = [
        MemoryContent(content=b"x", mime_type=MemoryMimeType.BINARY),
        MemoryContent(content={"cat": "Miso"}, mime_type=MemoryMimeType.JSON),
    ]
    results = asyncio.run(_memory(entries).query("What is the cat called?")).results

    assert [entry.content for entry in results] == [{"cat": "Miso"}, b"x"]


def test_empty_inputs():
    assert asyncio.run(_memory([]).query(QUERY)).results == []
    assert asyncio.run(_memory().query("")).results == ENTRIES

    async def update():
        return await _memory([]).update_context(UnboundedChatCompletionContext())

    assert asyncio.run(update()).memories.results == []


def test_other_operations_reach_the_memory():
    async def run():
        memory = _memory([])
        await memory.add(ENTRIES[2])
        found = (await memory.query(QUERY)).results
        await memory.clear()
        await memory.close()
        return found, memory.memory.content

    found, rest = asyncio.run(run())
    assert [entry.content for entry in found] == [CURRENT]
    assert rest == []


def test_configuration_survives():
    component = _memory(top_k=2, options=Options(floor=0.5)).dump_component()
    memory = Memory.load_component(ComponentModel.model_validate_json(component.model_dump_json()))

    assert isinstance(memory, RerankedMemory)
    assert [entry.content for entry in asyncio.run(memory.query(QUERY)).results] == [CURRENT]


def test_entries_are_read_with_their_dates():
    assert str(mnemorank.Memory.of(ENTRIES[2]).occurred_start) == "2024-03"
