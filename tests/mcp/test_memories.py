"""The memory file of the MCP server: what was added is there, also after edits and from several processes."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import pytest

from mnemorank import InputError, Memory, Reranker
from mnemorank.mcp.memories import MemoryFile

QUERY = "Where does Ruby work now?"


@pytest.fixture(scope="module")
def reranker():
    return Reranker()


@pytest.fixture
def file(tmp_path, reranker):
    return MemoryFile(tmp_path / "new" / "memories.jsonl", reranker)


def test_an_empty_file_finds_nothing(file):
    assert len(file) == 0
    assert list(file.search(QUERY, top_k=5)) == []
    assert file.delete(["a"]) == 0
    assert file.get("a") is None


def test_what_is_added_is_found_and_on_disk(file, reranker):
    first, second = file.add([Memory("Ruby works at Zenith.", occurred_start="2019"), Memory("Tea.", id="tea")])

    assert second == "tea"
    records = [json.loads(line) for line in file.path.read_text().splitlines()]
    assert [record["id"] for record in records] == [first, "tea"]
    again = MemoryFile(file.path, reranker)
    assert [result.id for result in again.search(QUERY, top_k=1)] == [first]


def test_an_id_is_unique(file):
    file.add([Memory("a", id="1")])
    with pytest.raises(InputError) as caught:
        file.add([Memory("b", id="1")])
    assert caught.value.field == "id"


def test_a_fact_counts_as_true_since_it_was_stored(file):
    old, new = file.add(
        [
            Memory("Ruby works at Zenith.", mentioned_at="2023-09"),
            Memory("Ruby works at Aurora Labs.", mentioned_at="2025-11"),
        ]
    )
    assert [result.id for result in file.search(QUERY, top_k=2)] == [new, old]


def test_files_of_people(file):
    """Without ids, with fields of their own, blank lines and a byte-order mark; edited while the server runs."""
    file.path.parent.mkdir()
    lines = ['"Ruby works at Zenith."', "", '{"content": "Ruby likes tea.", "mood": "good"}']
    file.path.write_text("\ufeff" + "\n".join(lines), encoding="utf-8")
    ids = {result.text: result.id for result in file.search("ruby", top_k=5)}
    assert len(ids) == 2

    (added,) = file.add([Memory("Miso is a cat.")])  # the last line had no end
    assert len(file) == 3
    assert file.get(ids["Ruby works at Zenith."]).text == "Ruby works at Zenith."
    assert file.delete([ids["Ruby works at Zenith."], "nothing"]) == 1
    records = [json.loads(line) for line in file.path.read_text().splitlines()]
    assert records[0] == {"content": "Ruby likes tea.", "mood": "good"}
    assert records[1]["id"] == added
    file.path.write_text('{"id": "x", "text": "Noor lives in Lisbon."}\n')
    assert [result.id for result in file.search("Where does Noor live?", top_k=5)] == ["x"]
    file.path.unlink()
    assert len(file) == 0


@pytest.mark.parametrize("content", ["{broken", '{"id": 1}', "5"])
def test_a_line_that_is_no_memory_is_named(file, content):
    file.path.parent.mkdir()
    file.path.write_text('{"text": "a"}\n' + content)
    with pytest.raises(InputError) as caught:
        file.search("a", top_k=1)
    assert caught.value.location == f"{file.path}:2"


def _write(path: str, number: int) -> None:
    file = MemoryFile(path, Reranker())
    for count in range(20):
        file.add([Memory(f"memory {count} of process {number}", id=f"{number}-{count}")])
        if count % 2:
            file.delete([f"{number}-{count - 1}"])


def test_several_processes_write_the_same_file(tmp_path, reranker):
    path = tmp_path / "memories.jsonl"
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_write, args=(str(path), number)) for number in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    expected = {f"{number}-{count}" for number in range(2) for count in range(1, 20, 2)}
    assert {json.loads(line)["id"] for line in Path(path).read_text().splitlines()} == expected


def test_the_model_scores_the_best_by_bm25_not_the_oldest(tmp_path, reranker):
    path = tmp_path / "memories.jsonl"
    path.write_text(
        "".join(f'{{"text": "the cat sat {number}"}}\n' for number in range(8)) + '{"text": "ruby work now"}\n'
    )
    ranking = MemoryFile(path, reranker, max_scored=2).search("ruby work", 3)
    assert ranking[0].text == "ruby work now"
    assert ranking[0].score is not None
