"""States survive processes that are killed at any point, and a log that ends in the middle of a page."""

import random
import shutil
import sqlite3
from contextlib import closing

import pytest

from mnemorank import Memory, Model
from mnemorank.scorers.state_file import StateFile
from tests.helpers.kills import run_until_killed
from tests.scorers.test_state_file import MODEL, key, same, states

ROUNDS = 25
LARGE = {"tokens": 500, "width": 32}


def is_intact(path):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.slow
def test_what_prepare_acknowledged_survives_a_kill(split_onnx, tmp_path):
    generator = random.Random(1)
    memories = [Memory(f"ruby works at aurora labs since {number}") for number in range(2000)]
    acknowledged = 0

    def work(report):
        model = Model.load(split_onnx, threads=1, states=tmp_path, verify=False)
        for first in range(acknowledged, len(memories), 3):
            model.prepare(memories[first : first + 3])
            report(first + 3)

    for _ in range(ROUNDS):
        reports = run_until_killed(work, generator)
        acknowledged = max([acknowledged, *reports])
        model = Model.load(split_onnx, threads=1, states=tmp_path)
        prepared = model.prepare(memories[:acknowledged])
        model.close()
        assert (prepared.known, prepared.new) == (acknowledged, 0)
    assert acknowledged > ROUNDS
    assert is_intact(tmp_path / "states.db")


@pytest.mark.slow
def test_the_newest_states_survive_a_kill_while_the_oldest_are_deleted(tmp_path):
    generator = random.Random(2)
    written = 0

    def work(report):
        file = StateFile(tmp_path, MODEL, max_bytes=40 * 17_000)
        for number in range(written, written + 1000):
            assert file.store(states(number, **LARGE))
            report(number + 1)

    for _ in range(ROUNDS):
        reports = run_until_killed(work, generator, max_reports=60)
        written = max([written, *reports])
        with closing(StateFile(tmp_path, MODEL)) as file:
            found = file.get([key(number) for number in range(written + 1000)])
        numbers = sorted(int.from_bytes(each, "big") for each in found)
        # Those at the end, without a gap. The last may have been written but not acknowledged.
        assert same(found, states(*numbers, **LARGE))
        assert not numbers or numbers == list(range(numbers[0], numbers[-1] + 1))
        assert not written or numbers[-1] >= written - 1
        assert len(numbers) >= min(written, 20)
        assert is_intact(tmp_path / "states.db")
    assert written > 100
    with closing(StateFile(tmp_path, MODEL)) as file:
        file.store(states(written + 2000))
    assert (tmp_path / "states.db").stat().st_size <= 40 * 17_000


@pytest.mark.slow
def test_a_torn_log_loses_only_its_end(tmp_path):
    """The log of a killed process, cut or overwritten at a random place, as after a power failure."""
    generator = random.Random(3)
    folder = tmp_path / "killed"

    def work(report):
        file = StateFile(folder, MODEL)
        for number in range(1000):
            assert file.store(states(number, **LARGE))
            report(number)

    run_until_killed(work, generator, max_reports=200, max_wait=0)
    size = (folder / "states.db-wal").stat().st_size
    assert size > 10_000
    for turn in range(40):
        copy = tmp_path / f"copy-{turn}"
        shutil.copytree(folder, copy)
        with (copy / "states.db-wal").open("r+b") as stream:
            place = generator.randrange(size)
            if turn % 2:
                stream.truncate(place)
            else:
                stream.seek(place)
                stream.write(generator.randbytes(min(5000, size - place)))
        with closing(StateFile(copy, MODEL)) as file:
            found = file.get([key(number) for number in range(1000)])
            numbers = sorted(int.from_bytes(each, "big") for each in found)
            assert same(found, states(*numbers, **LARGE))
            assert numbers == list(range(len(numbers)))
            assert file.store(states(*range(1000), tokens=5))
        assert not (copy / "states.db.damaged").exists()
        assert is_intact(copy / "states.db")
        shutil.rmtree(copy)
