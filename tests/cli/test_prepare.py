"""`mnemorank prepare`, and ranking with what it prepared."""

import json
import sqlite3
from contextlib import closing

import pytest

from mnemorank.cli import main
from mnemorank.scorers.state_file import StateFile


@pytest.fixture
def model(split_onnx):
    return ["--model", str(split_onnx)]


def test_counts_new_and_known_memories(capsys, memories, model, tmp_path):
    command = ["prepare", memories, "--states", str(tmp_path / "states"), *model]
    assert main(command) == 0
    assert capsys.readouterr().out == "3 memories: 3 new, 0 already prepared\n"
    assert main([*command, "--json"]) == 0
    expected = {"memories": 3, "new": 0, "known": 3, "not_stored": 0, "warnings": []}
    assert json.loads(capsys.readouterr().out) == expected


def test_ranks_with_prepared_memories(capsys, memories, model, tmp_path):
    states = ["--states", str(tmp_path / "states")]
    main(["prepare", memories, *states, *model])
    capsys.readouterr()
    rankings = []
    for options in ([], states):
        assert main(["rerank", "where does ruby work", memories, *model, *options, "--json"]) == 0
        rankings.append(json.loads(capsys.readouterr().out))
    assert rankings[0] == rankings[1]


@pytest.mark.parametrize("command", [["prepare"], ["rerank", "ruby"]], ids=lambda command: command[0])
def test_models_that_are_not_split_are_refused(capsys, memories, tiny_onnx, tmp_path, command):
    assert main([*command, memories, "--states", str(tmp_path / "states"), "--model", str(tiny_onnx)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_memories_that_could_not_be_stored_are_a_failure(capsys, memories, model, tmp_path, monkeypatch):
    monkeypatch.setitem(StateFile.__init__.__kwdefaults__, "write_timeout", 0.1)
    StateFile(tmp_path, "some model").close()
    with closing(sqlite3.connect(tmp_path / "states.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert main(["prepare", memories, "--states", str(tmp_path), *model]) == 1
    assert "3 memories could not be stored" in capsys.readouterr().out


def test_the_folder_keeps_the_size_limit(memories, model, tmp_path):
    assert main(["prepare", memories, "--states", str(tmp_path), "--states-megabytes", "1", *model]) == 0
    assert main(["prepare", memories, "--states", str(tmp_path), *model]) == 0
    with closing(sqlite3.connect(tmp_path / "states.db")) as connection:
        assert connection.execute("SELECT value FROM settings").fetchall() == [(1_000_000,)]
