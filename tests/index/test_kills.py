"""An index survives processes that are killed at any point, and a log that ends in the middle of a page."""

import random
import shutil
import sqlite3
from contextlib import closing

import pytest

from mnemorank import MemoryIndex
from tests.helpers.kills import run_until_killed

ROUNDS = 25


def text(number, version=0):
    return f"the cat {number} lives in berlin {version}"


def check(path, model, expected, unknown=()):
    """Everything that was acknowledged is there, the rest of the file fits, and all of it can be searched.

    :param expected: text by id.
    :param unknown: ids of memories that were being changed.
    """
    with MemoryIndex.open(path, model, threads=1, verify=False) as index:
        for id, content in expected.items():
            if id not in unknown:
                assert index.get(id).text == content
        found = {result.id: result.text for result in index.search("cat", None, candidates=10_000)}
        assert {id: found[id] for id in expected if id not in unknown} == {
            id: content for id, content in expected.items() if id not in unknown
        }
        assert len(found) == len(index) == len(index._vectors)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        orphans = "SELECT count(*) FROM {} WHERE {} NOT IN (SELECT {} FROM {})"
        for table, column, other_column, other in (
            ("passages", "memory", "seq", "memories"),
            ("states", "key", "key", "passages"),
            ("words", "rowid", "seq", "memories"),
        ):
            query = orphans.format(table, column, other_column, other)
            assert connection.execute(query).fetchone() == (0,)
    return found


@pytest.mark.slow
def test_what_add_acknowledged_survives_a_kill(split_onnx, path):
    generator = random.Random(1)
    expected = {}

    def work(report):
        with MemoryIndex.open(path, split_onnx, threads=1, verify=False) as index:
            for number in range(len(expected), len(expected) + 500, 2):
                memories = [{"id": str(n), "text": text(n)} for n in (number, number + 1)]
                index.add(memories)
                report({memory["id"]: memory["text"] for memory in memories})

    for _ in range(ROUNDS):
        for report in run_until_killed(work, generator):
            expected |= report
        found = check(path, split_onnx, expected)
        assert set(found) - set(expected) <= {str(len(expected)), str(len(expected) + 1)}  # written, not acknowledged
        expected |= found
    assert len(expected) > ROUNDS


@pytest.mark.slow
def test_changes_and_deletions_survive_a_kill(split_onnx, path):
    generator = random.Random(2)
    expected = {str(number): text(number) for number in range(60)}
    with MemoryIndex.open(path, split_onnx, threads=1) as index:
        index.add([{"id": id, "text": content} for id, content in expected.items()])

    def work(report):
        local = random.Random(len(expected) + sum(map(len, expected.values())) + turn)
        with MemoryIndex.open(path, split_onnx, threads=1, verify=False) as index:
            for step in range(1000):
                ids = local.sample(range(60), 3)
                kind = local.choice(["delete", "add"])
                changes = {str(id): None if kind == "delete" else text(id, f"{turn}-{step}") for id in ids}
                report(["begins", changes])
                if kind == "delete":
                    index.delete(list(changes))
                else:
                    index.add([{"id": id, "text": content} for id, content in changes.items()])
                report(["done", changes])

    steps = 0
    for turn in range(ROUNDS):  # noqa: B007
        changing = {}
        for state, changes in run_until_killed(work, generator, max_reports=40):
            changing = changes if state == "begins" else {}
            if state == "done":
                steps += 1
                for id, content in changes.items():
                    if content is None:
                        expected.pop(id, None)
                    else:
                        expected[id] = content
        found = check(path, split_onnx, expected, unknown=changing)
        # What was under way was done completely or not at all.
        before = {id: expected.get(id) for id in changing}
        assert {id: found.get(id) for id in changing} in (before, changing)
        expected = found
    assert steps > ROUNDS


@pytest.mark.slow
def test_reading_with_a_new_model_survives_a_kill(split_onnx, path, tmp_path):
    from dataclasses import replace

    from mnemorank.artifact.manifest import read_manifest, write_manifest

    generator = random.Random(3)
    expected = {str(number): text(number) for number in range(300)}
    with MemoryIndex.open(path, split_onnx, threads=1) as index:
        index.add([{"id": id, "text": content} for id, content in expected.items()])
    other = tmp_path / "other"
    shutil.copytree(split_onnx, other)
    manifest = read_manifest(other / "mnemorank.json")
    write_manifest(other, replace(manifest, max_length=60), list(manifest.files))

    def work(report):
        MemoryIndex.open(path, other, threads=1, verify=False).close()

    for _ in range(6):
        run_until_killed(work, generator, max_reports=0, max_wait=0.15)
    check(path, other, expected)


@pytest.mark.slow
def test_a_torn_log_loses_only_its_end(split_onnx, tmp_path):
    generator = random.Random(4)
    folder = tmp_path / "killed"

    def work(report):
        index = MemoryIndex.open(folder / "index.db", split_onnx, threads=1, verify=False)
        for number in range(1000):
            index.add([{"id": str(number), "text": text(number)}])
            report(number)

    run_until_killed(work, generator, max_reports=100, max_wait=0)
    size = (folder / "index.db-wal").stat().st_size
    for turn in range(20):
        copy = tmp_path / f"copy-{turn}"
        shutil.copytree(folder, copy)
        with (copy / "index.db-wal").open("r+b") as stream:
            place = generator.randrange(size)
            if turn % 2:
                stream.truncate(place)
            else:
                stream.seek(place)
                stream.write(generator.randbytes(min(5000, size - place)))
        with closing(sqlite3.connect(copy / "index.db")) as connection:
            has_tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone() != (0,)
        found = check(copy / "index.db", split_onnx, {}) if has_tables else {}
        assert found == {str(number): text(number) for number in range(len(found))}
        shutil.rmtree(copy)
