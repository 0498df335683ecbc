"""The adapter for CrewAI, with the real package and its LanceDB storage."""

from __future__ import annotations

import asyncio
import hashlib
from datetime import datetime

import pytest
from crewai import Agent, Crew, Task
from crewai.memory.types import MemoryRecord

from mnemorank import Memory
from mnemorank.integrations.crewai import RerankedMemory
from shared import CAT, CURRENT, OLD, QUERY, STARTED, TEXTS, Recorder


def _embed(texts):
    """Vectors without meaning, close to each other, so that all records are found."""
    return [[1 + byte / 2550 for byte in hashlib.sha256(text.encode()).digest()] for text in texts]


@pytest.fixture
def memory(tmp_path):
    memory = RerankedMemory(storage=str(tmp_path / "memory"), embedder=_embed, key="topic", reranker=Recorder())
    records = [
        MemoryRecord(
            content=text,
            embedding=vector,
            metadata={"topic": "job"} if text in STARTED else {},
            **({"created_at": datetime.fromisoformat(STARTED[text] + "-01")} if text in STARTED else {}),
        )
        for text, vector in zip(TEXTS, _embed(TEXTS), strict=True)
    ]
    memory._storage.save(records)
    return memory


def test_the_current_job_comes_first_by_created_at_alone(memory):
    matches = memory.recall(QUERY, depth="shallow")

    assert matches[0].record.content == CURRENT
    assert {match.record.content for match in matches} == {CURRENT, OLD, CAT}
    assert matches[0].score > matches[1].score > matches[2].score
    assert [match.record.content for match in matches if "stale" in match.match_reasons] == [OLD]


@pytest.mark.parametrize("is_async", [False, True])
def test_the_wide_pool_goes_in(memory, is_async):
    recall = memory.arecall(QUERY, limit=1, depth="shallow") if is_async else None
    matches = asyncio.run(recall) if is_async else memory.recall(QUERY, limit=1, depth="shallow")

    assert [match.record.content for match in matches] == [CURRENT]
    assert memory.reranker.sizes == [3]
    assert memory.reranker.was_blocking is not is_async


def test_in_a_scope_and_a_crew(memory):
    assert [match.record.content for match in memory.scope("/").recall(QUERY, limit=1, depth="shallow")] == [CURRENT]
    agent = Agent(role="r", goal="g", backstory="b", llm="gpt-4o-mini")
    crew = Crew(agents=[agent], tasks=[Task(description="d", expected_output="e", agent=agent)], memory=memory)

    assert crew._memory is memory


def test_matches_are_read_with_their_dates(memory):
    match = next(m for m in super(RerankedMemory, memory).recall(QUERY, depth="shallow") if m.record.content == OLD)
    read = Memory.of(match)

    assert (read.text, read.id, read.first_stage_score) == (OLD, match.record.id, match.score)
    assert str(read.mentioned_at).startswith("2023-01-01")


def test_empty_inputs(tmp_path):
    empty = RerankedMemory(storage=str(tmp_path / "empty"), embedder=_embed)
    assert empty.recall(QUERY, depth="shallow") == []
