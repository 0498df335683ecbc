"""The sharded index on a Ray cluster, one of whose nodes is killed."""

from __future__ import annotations

import json
import random
import shutil
import threading
from importlib.resources import files
from pathlib import Path

import pytest

from mnemorank import InputError, MemoryIndex
from mnemorank.integrations.ray_index import ShardedIndex, owner_of
from shared import add_node, connect, wait_for

pytestmark = pytest.mark.timeout(1800)  # for what hangs; a busy machine is slow

WORDS = "Ruby works at Aurora Labs before Zenith Berlin lives moved cat dog doctor visit March trip Lisbon".split()
QUERY = "Where does Ruby work?"
NOW = "2025-01-01"
TENANTS = [f"t{i}" for i in range(12)]


def tenant_memories() -> list[dict]:
    generator = random.Random(2)
    return [
        {"id": f"{tenant}-{i}", "tenant": tenant, "text": " ".join(generator.choices(WORDS, k=7))}
        for tenant in TENANTS
        for i in range(3)
    ]


def owned(memories: list[dict], shards: list[str]) -> dict[str, set[str]]:
    """Return the ids of the memories that belong to each shard."""
    return {
        shard: {memory["id"] for memory in memories if owner_of(memory["tenant"], shards) == shard} for shard in shards
    }


def stored(folder: Path, shard: str) -> set[str]:
    """Return the ids of the memories in a shard's file."""
    with MemoryIndex.open(folder / f"{shard}.db", create=False, threads=1) as index:
        return {str(memory.id) for memory in index.memories()}


def found(index: ShardedIndex | MemoryIndex, tenant: str) -> list[tuple]:
    ranking = index.search(QUERY, filter={"tenant": tenant}, now=NOW)
    assert ranking.degraded is None
    return [(result.id, result.score, result.relevance) for result in ranking]


def test_bad_arguments(tmp_path):
    """They fail before any actor starts."""
    other = tmp_path / "other"
    shutil.copytree(str(files("mnemorank") / "assets/models/mini"), other)
    manifest = json.loads((other / "mnemorank.json").read_text())
    (other / "mnemorank.json").write_text(json.dumps({**manifest, "family": "onnx"}))
    with pytest.raises(InputError) as caught:
        ShardedIndex.open(tmp_path / "index", str(other))
    assert caught.value.code == "not_split"
    with pytest.raises(InputError) as caught:
        ShardedIndex.open(tmp_path / "index", shards=0)
    assert caught.value.field == "shards"


def test_a_sharded_index_grows_and_survives_a_lost_node(tmp_path, cluster):
    """In one test, since a cluster takes long to start."""
    nodes = connect(cluster, 3)
    folder, memories = tmp_path / "index", tenant_memories()
    ids = [memory["id"] for memory in memories]
    index = ShardedIndex.open(folder, shards=2, partition="tenant")
    assert index.add(memories) == ids
    assert len(index) == 36
    with pytest.raises(InputError) as caught:
        index.add([{"text": "no tenant"}])
    assert caught.value.field == "memories.0.tenant"

    # A search in one tenant is what an index of its shard alone returns, to the last digit.
    shard = owner_of("t3", index.shards)
    own = [memory for memory in memories if owner_of(memory["tenant"], index.shards) == shard]
    with MemoryIndex.open(tmp_path / "one.db", threads=1) as single:
        single.add(own)
        expected = found(single, "t3")
    assert found(index, "t3") == expected

    # A search without one asks all shards.
    everywhere = index.search(QUERY, 20, now=NOW)
    assert {owner_of(result.memory.metadata["tenant"], index.shards) for result in everywhere} == set(index.shards)
    scores = [result.score for result in everywhere]
    assert scores == sorted(scores, reverse=True)
    assert [result.rank for result in everywhere] == list(range(1, 21))

    # A new shard takes its part, and nothing else moves. What an interrupted move left in its file is not used; what
    # another thread adds meanwhile is not left behind.
    late = [{"id": f"{tenant}-late", "tenant": tenant, "text": "late"} for tenant in TENANTS if tenant != "t3"]
    memories, ids = [*memories, *late], [*ids, *(memory["id"] for memory in late)]
    before = owned(memories, index.shards)
    with MemoryIndex.open(folder / "shard-0002.db", threads=1) as interrupted:
        interrupted.add([{"id": "deleted-since", "tenant": "t3", "text": "Ruby worked at Zenith."}])
    thread = threading.Thread(target=lambda: [index.add([memory]) for memory in late])
    thread.start()
    name = index.add_shard()
    thread.join()
    after = owned(memories, index.shards)
    assert len(index) == 47
    assert {shard: stored(folder, shard) for shard in index.shards} == after
    assert after[name] == set(ids).difference(*(after[shard] for shard in before))
    assert all(after[shard] <= before[shard] for shard in before)
    assert after[name]
    assert [id for id, *_ in found(index, "t3")] == [id for id, *_ in expected]

    # A lost node: the other shards answer, and the answer says what is missing, until it is rebuilt elsewhere.
    add_node(cluster)
    cluster.remove_node(nodes.pop(), allow_graceful=False)
    answers: list[tuple[set[str], str | None]] = []

    def ask() -> str | None:
        ranking = index.search(QUERY, None, candidates=100, now=NOW)
        kind = ranking.degraded.kind if ranking.degraded else None
        answers.append(({str(result.id) for result in ranking}, kind))
        return kind

    wait_for(lambda: ask() == "incomplete")
    answered = answers[-1][0]
    (lost,) = (shard for shard in index.shards if not answered & after[shard])
    assert answered == set(ids) - after[lost]
    # A write to the lost shard waits until it is rebuilt.
    tenant = next(tenant for tenant in TENANTS if owner_of(tenant, index.shards) == lost)
    index.add([{"id": "late", "tenant": tenant, "text": "a late memory"}])
    wait_for(lambda: ask() is None)
    assert answers[-1][0] == {*ids, "late"}
    assert {kind for _, kind in answers} == {"incomplete", None}
    index.close()

    # What is on disk is found by those who open it later, with the shard that was added.
    with ShardedIndex.open(folder, partition="tenant") as again:
        assert again.shards == index.shards
        assert again.delete(["late", "nowhere"]) == 1
        assert len(again) == 47
