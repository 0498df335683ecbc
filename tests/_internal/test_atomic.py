"""Atomic writes."""

from __future__ import annotations

import json
import os

import pytest

from mnemorank._internal.atomic import append_json_line, atomic_folder, atomic_path, sync_tree, write_atomic


@pytest.mark.parametrize(("content", "expected"), [("Zoë\n", "Zoë\n".encode()), (b"\x00\xff", b"\x00\xff")])
def test_replaces_the_content(tmp_path, content, expected):
    path = tmp_path / "state.json"
    path.write_text("old and longer than the new content")
    write_atomic(path, content)
    assert path.read_bytes() == expected
    assert os.listdir(tmp_path) == ["state.json"]


def test_a_failure_keeps_the_old_content_and_leaves_no_partial_file(tmp_path, monkeypatch):
    path = tmp_path / "state.json"
    path.write_text("old")

    def fail(source, target):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["state.json"]


def test_a_reader_sees_the_old_or_the_new_content(tmp_path, monkeypatch):
    path = tmp_path / "state.json"
    path.write_text("old")
    seen = []
    replace = os.replace

    def look(source, target):
        seen.append(path.read_text())
        replace(source, target)
        seen.append(path.read_text())

    monkeypatch.setattr(os, "replace", look)
    write_atomic(path, "new")
    assert seen == ["old", "new"]


def test_content_is_on_disk_before_the_file_is_replaced(tmp_path, monkeypatch):
    steps = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda descriptor: (steps.append("fsync"), fsync(descriptor))[1])
    monkeypatch.setattr(os, "replace", lambda a, b: (steps.append("replace"), replace(a, b))[1])
    write_atomic(tmp_path / "state.json", "new")
    assert steps[:2] == ["fsync", "replace"]
    assert steps.count("fsync") == (1 if os.name == "nt" else 2)  # the folder, too


def test_a_path_that_a_failing_block_wrote_to_is_deleted(tmp_path):
    (tmp_path / "state.json").write_text("old")

    def write():
        with atomic_path(tmp_path / "state.json") as partial:
            partial.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write()
    assert (tmp_path / "state.json").read_text() == "old"
    assert os.listdir(tmp_path) == ["state.json"]


def write_folder(path, content):
    with atomic_folder(path) as folder:
        (folder / "deep").mkdir()
        (folder / "deep" / "file").write_text(content)
        if content == "broken":
            raise RuntimeError


def test_a_folder_is_replaced_as_a_whole(tmp_path):
    write_folder(tmp_path / "model", "old")
    (tmp_path / "model" / "extra").write_text("")
    (tmp_path / "model.partial").mkdir()  # left by a killed process
    write_folder(tmp_path / "model", "new")
    assert (tmp_path / "model" / "deep" / "file").read_text() == "new"
    assert os.listdir(tmp_path) == ["model"]
    assert os.listdir(tmp_path / "model") == ["deep"]


def test_a_failure_keeps_the_old_folder(tmp_path):
    write_folder(tmp_path / "model", "old")
    with pytest.raises(RuntimeError):
        write_folder(tmp_path / "model", "broken")
    assert (tmp_path / "model" / "deep" / "file").read_text() == "old"
    assert os.listdir(tmp_path) == ["model"]


def test_appends_one_line_per_record(tmp_path):
    path = tmp_path / "log.jsonl"
    records = [{"name": "Zoë\nline"}, {"n": 1.5}]
    for record in records:
        append_json_line(path, record)
    assert [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] == records


def test_a_record_that_is_not_json_appends_nothing(tmp_path):
    path = tmp_path / "log.jsonl"
    append_json_line(path, {"n": 1})
    with pytest.raises(ValueError, match="JSON"):
        append_json_line(path, {"n": float("nan")})
    assert path.read_text() == '{"n": 1}\n'


def test_an_incomplete_last_line_is_ended_first(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"a": 1}\n{"b"', encoding="utf-8")
    append_json_line(path, {"c": 3})
    assert path.read_text(encoding="utf-8").splitlines() == ['{"a": 1}', '{"b"', '{"c": 3}']


def test_a_folder_that_a_crash_left_renamed_is_restored(tmp_path):
    write_folder(tmp_path / "model", "old")
    (tmp_path / "model").rename(tmp_path / "model.old.partial")
    with pytest.raises(RuntimeError):
        write_folder(tmp_path / "model", "broken")
    assert (tmp_path / "model" / "deep" / "file").read_text() == "old"
    assert os.listdir(tmp_path) == ["model"]


def test_every_file_and_folder_of_a_tree_is_synced(tmp_path, monkeypatch):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "a").write_text("1")
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    sync_tree(tmp_path)
    assert {path.stat().st_ino for path in (tmp_path, tmp_path / "inner", tmp_path / "inner" / "a")} <= set(synced)
