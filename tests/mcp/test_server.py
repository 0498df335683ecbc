"""The MCP server, through the SDK's own client: in memory, over stdio and over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from mcp.client import Client

from mcp import StdioServerParameters, stdio_client
from mnemorank import MemoryIndex, Reranker
from mnemorank.cli import main
from mnemorank.learning.settings import PrivacySettings
from mnemorank.learning.store.events import EventStore
from mnemorank.mcp.memories import MemoryFile
from mnemorank.mcp.server import create_server

QUERY = "Where does Ruby work now?"
OLD = {"text": "Ruby joined Zenith as a data engineer.", "key": "ruby/job", "occurred_start": "2019-09"}
CURRENT = {"text": "Ruby leads the memory team at Aurora Labs.", "key": "ruby/job", "occurred_start": "2024-03"}
CAT = "Ruby's cat is called Miso."


@pytest.fixture(scope="module")
def reranker():
    return Reranker()


@pytest.fixture
def store(tmp_path):
    with EventStore(tmp_path / "feedback.db", PrivacySettings(texts=True)) as store:
        yield store


@pytest.fixture
def server(tmp_path, reranker, store):
    return create_server(MemoryFile(tmp_path / "memories.jsonl", reranker), reranker, store)


def run(target, conversation):
    """Run a conversation with a server: a coroutine function of a client's `call(tool, **arguments)`."""

    async def converse():
        async with Client(target) as client:

            async def call(tool, **arguments):
                result = await client.call_tool(tool, arguments)
                if result.is_error:
                    return result.content[0].text
                assert json.loads(result.content[0].text) == result.structured_content
                return result.structured_content

            return await conversation(call)

    return asyncio.run(asyncio.wait_for(converse(), 120))


def test_the_tools_say_what_they_do(server):
    async def listed():
        async with Client(server) as client:
            return (await client.list_tools()).tools, client.instructions

    tools, instructions = asyncio.run(listed())
    by_name = {tool.name: tool for tool in tools}
    assert set(by_name) == {"search_memories", "add_memories", "rerank", "feedback", "forget"}
    assert "memory" in instructions
    for tool in tools:
        assert tool.description
        assert tool.title
        assert tool.output_schema
        assert tool.annotations.open_world_hint is False
    assert by_name["search_memories"].annotations.read_only_hint
    assert by_name["rerank"].annotations.read_only_hint
    assert by_name["forget"].annotations.destructive_hint
    assert by_name["add_memories"].annotations.destructive_hint is False
    assert by_name["feedback"].annotations.idempotent_hint


def test_the_current_job_comes_first(server):
    async def conversation(call):
        added = await call("add_memories", memories=[OLD, CAT, CURRENT])
        return added, await call("search_memories", query=QUERY)

    added, found = run(server, conversation)
    old, cat, current = added["ids"]
    assert found["abstained"] is False
    assert [(memory["id"], memory["stale"]) for memory in found["memories"]] == [
        (current, False),
        (old, True),
        (cat, False),
    ]
    assert set(found["memories"][0]) == {"id", "text", "relevance", "stale"}
    assert found["memories"][0]["relevance"] > found["memories"][2]["relevance"]


def test_a_date_in_the_past(server):
    async def conversation(call):
        await call("add_memories", memories=[OLD, CURRENT])
        return await call("search_memories", query="Where does Ruby work?", as_of="2020-01", top_k=1)

    assert run(server, conversation)["memories"][0]["text"] == OLD["text"]


def test_feedback_reaches_the_store(server, store):
    async def conversation(call):
        ids = (await call("add_memories", memories=[OLD, CURRENT]))["ids"]
        event_id = (await call("search_memories", query=QUERY))["event_id"]
        first = await call("feedback", event_id=event_id, kind="cited", memory_id=ids[1])
        again = await call("feedback", event_id=event_id, kind="cited", memory_id=ids[1])
        await call("feedback", event_id=event_id, kind="contradicted", rank=2)
        return event_id, first, again

    event_id, first, again = run(server, conversation)
    assert (first, again) == ({"stored": True}, {"stored": False})  # repeated signals count once
    event, signals = store.event(event_id)
    assert event.query == QUERY
    assert [shown.memory.text for shown in event.shown] == [CURRENT["text"], OLD["text"]]
    assert sorted((signal.kind, signal.rank, signal.actor) for signal in signals) == [
        ("cited", 1, "agent"),
        ("contradicted", 2, "agent"),
    ]


def test_what_is_forgotten_is_gone_from_the_log_too(server, store):
    async def conversation(call):
        ids = (await call("add_memories", memories=[OLD, CURRENT]))["ids"]
        event_id = (await call("search_memories", query=QUERY))["event_id"]
        forgotten = await call("forget", ids=[ids[0], "nothing"])
        return ids, event_id, forgotten, await call("search_memories", query=QUERY)

    ids, event_id, forgotten, found = run(server, conversation)
    assert forgotten == {"forgotten": [ids[0]], "unknown": ["nothing"]}
    assert [memory["id"] for memory in found["memories"]] == [ids[1]]
    event, _ = store.event(event_id)
    assert [shown.memory_id for shown in event.shown] == [ids[1]]


def test_rerank_orders_what_the_agent_brings_and_remembers_nothing(server):
    async def conversation(call):
        ranked = await call("rerank", query=QUERY, memories=[{**OLD, "id": "a"}, CAT, {**CURRENT, "id": "c"}], top_k=2)
        return ranked, await call("search_memories", query=QUERY)

    ranked, found = run(server, conversation)
    assert [memory["id"] for memory in ranked["memories"]] == ["c", "a"]
    assert found["memories"] == []
    assert found["abstained"] is True


def test_supersedes(server):
    async def conversation(call):
        (old,) = (await call("add_memories", memories=["Ruby is allergic to nuts."]))["ids"]
        await call("add_memories", memories=[{"text": "Ruby is not allergic to nuts after all.", "supersedes": [old]}])
        return old, await call("search_memories", query="Is Ruby allergic to nuts?")

    old, found = run(server, conversation)
    assert {memory["id"]: memory["stale"] for memory in found["memories"]}[old] is True


@pytest.mark.parametrize(
    ("tool", "arguments", "named"),
    [
        ("search_memories", {"query": "  "}, "query"),
        ("search_memories", {"query": ""}, "query"),
        ("search_memories", {"query": "a", "top_k": 0}, "top_k"),
        ("search_memories", {"query": "a", "as_of": "soon"}, "as_of"),
        ("add_memories", {"memories": []}, "memories"),
        ("add_memories", {"memories": [{"text": "a", "occurred_start": "soon"}]}, "occurred_start"),
        ("add_memories", {"memories": [{"text": "a", "occured_start": "2024"}]}, "occured_start"),
        ("add_memories", {"memories": [{"text": "a", "occurred_start": "2024", "occurred_end": "2023"}]}, "2023"),
        ("rerank", {"query": "a", "memories": [{"body": "a"}]}, "memories.0"),
        ("feedback", {"event_id": "none", "kind": "cited", "rank": 1}, "event_id"),
        ("feedback", {"event_id": "none", "kind": "liked", "rank": 1}, "kind"),
    ],
)
def test_errors_can_be_read_by_the_agent(server, tool, arguments, named):
    async def conversation(call):
        return await call(tool, **arguments)

    answer = run(server, conversation)
    assert isinstance(answer, str)
    assert named in answer


def test_feedback_needs_a_memory(server):
    async def conversation(call):
        await call("add_memories", memories=[CAT])
        event_id = (await call("search_memories", query="cat"))["event_id"]
        return [
            await call("feedback", event_id=event_id, kind="cited"),
            await call("feedback", event_id=event_id, kind="cited", memory_id="other"),
        ]

    missing, unknown = run(server, conversation)
    assert "memory_id" in missing
    assert "other" in unknown


def test_a_broken_file_is_reported_to_the_agent(server, tmp_path):
    (tmp_path / "memories.jsonl").write_text("{broken")

    async def conversation(call):
        return await call("search_memories", query=QUERY)

    assert "memories.jsonl:1" in run(server, conversation)


def test_an_index_instead_of_a_file(tmp_path, store, split_onnx):
    async def conversation(call):
        ids = (await call("add_memories", memories=["ruby works at aurora labs", "the cat", OLD]))["ids"]
        found = await call("search_memories", query="where does ruby work", top_k=2)
        forgotten = await call("forget", ids=[ids[1], "nothing"])
        return ids, found, forgotten

    with MemoryIndex.open(tmp_path / "memories.db", split_onnx, threads=1) as index:
        ids, found, forgotten = run(create_server(index, Reranker(index.model), store), conversation)
        assert len(index) == 2
        assert index.get(ids[2]).metadata["key"] == "ruby/job"
    assert {memory["id"] for memory in found["memories"]} <= set(ids)
    assert forgotten == {"forgotten": [ids[1]], "unknown": ["nothing"]}


def test_an_index_over_stdio(tmp_path, split_onnx):
    command = _command("--index", tmp_path / "memories.db", "--model", split_onnx)
    parameters = StdioServerParameters(command=command[0], args=command[1:], env=dict(os.environ))

    assert run(stdio_client(parameters), _remember_and_search)["memories"]
    with MemoryIndex.open(tmp_path / "memories.db", split_onnx) as index:
        assert len(index) == 3


def test_a_log_that_fails_does_not_hide_the_memories(server, store):
    async def conversation(call):
        await call("add_memories", memories=[CAT])
        event_id = (await call("search_memories", query="cat"))["event_id"]
        with store.database.writing() as connection:
            connection.exec_driver_sql("DROP TABLE signals")
            connection.exec_driver_sql("DROP TABLE shown")
            connection.exec_driver_sql("DROP TABLE events")
        found = await call("search_memories", query="What is Ruby's cat called?")
        return found, await call("feedback", event_id=event_id, kind="cited", rank=1)

    found, refused = run(server, conversation)
    assert found["event_id"] is None
    assert found["memories"][0]["text"] == CAT
    assert "log" in refused


def test_a_file_that_cannot_be_read_is_reported(server, tmp_path):
    (tmp_path / "memories.jsonl").mkdir()

    async def conversation(call):
        return [await call("search_memories", query=QUERY), await call("add_memories", memories=[CAT])]

    for answer in run(server, conversation):
        assert "memories.jsonl" in answer


def _command(*arguments):
    return [sys.executable, "-m", "mnemorank", "mcp", *map(str, arguments)]


async def _remember_and_search(call):
    await call("add_memories", memories=[OLD, CAT, CURRENT])
    return await call("search_memories", query=QUERY, top_k=1)


def test_over_stdio(tmp_path):
    command = _command("--index", tmp_path / "memories.jsonl")
    transport = stdio_client(StdioServerParameters(command=command[0], args=command[1:], env=dict(os.environ)))

    assert run(transport, _remember_and_search)["memories"][0]["text"] == CURRENT["text"]
    assert (tmp_path / "feedback.db").exists()


def test_over_http(tmp_path, unused_port):
    log = tmp_path / "log"
    with log.open("w") as stream:
        command = _command("--index", tmp_path / "memories.jsonl", "--http", "--port", unused_port)
        process = subprocess.Popen(command, stderr=stream, stdout=stream)
    try:
        _wait_until_it_listens(process, log)
        url = f"http://127.0.0.1:{unused_port}/mcp"
        assert run(url, _remember_and_search)["memories"][0]["text"] == CURRENT["text"]
    finally:
        process.terminate()
        process.wait(30)


def _wait_until_it_listens(process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + 60
    while not re.search("Uvicorn running", log.read_text()):
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.1)


@pytest.fixture
def unused_port():
    with contextlib.closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.mark.parametrize("arguments", [["--http", "--host", "0.0.0.0"], ["--index", "memories.db", "--model"]])
def test_bad_usage_is_one_line(tmp_path, monkeypatch, capsys, tiny_onnx, arguments):
    monkeypatch.chdir(tmp_path)
    model = [str(tiny_onnx)] if arguments[-1] == "--model" else []  # an index needs a split model
    assert main(["mcp", *arguments, *model]) == 2
    assert capsys.readouterr().err.startswith("error: ")
