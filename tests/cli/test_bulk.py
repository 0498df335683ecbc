"""`mnemorank bulk`."""

import json
import re
import sys

import pytest

from mnemorank.cli import main


@pytest.fixture
def questions(tmp_path):
    path = tmp_path / "q.jsonl"
    path.write_text('{"query": "ruby works", "text": "ruby works at aurora"}\nnot JSON\n')
    return str(path)


def test_reports_rows_and_failures_with_their_lines(capsys, questions, tiny_onnx, tmp_path):
    command = ["bulk", "score", questions, "--output", str(tmp_path / "out"), "--model", str(tiny_onnx)]
    assert main(command) == 0
    printed = capsys.readouterr()
    assert re.match(rf"1 rows in {tmp_path}/out, [\d.]+ rows/s\n", printed.out)
    assert f"{questions}:2" in printed.err
    assert "_failures.jsonl" in printed.err
    assert main([*command, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["rows"], result["continued"], result["blocks"]) == (1, 1, 1)
    assert result["failures"][0]["line"] == 2


def test_shows_progress_on_a_terminal(capsys, monkeypatch, questions, tiny_onnx, tmp_path):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(["bulk", "score", questions, "--output", str(tmp_path / "out"), "--model", str(tiny_onnx)]) == 0
    progress = capsys.readouterr().err
    assert re.search(r"score: 100%.* 1/1 .*1 rows, 1 failed, [\d.]+ rows/s", progress)


def test_the_exit_status_is_1_for_too_many_failures_or_if_all_fail(capsys, questions, tiny_onnx, tmp_path):
    command = ["bulk", "score", questions, "--model", str(tiny_onnx), "--output"]
    assert main([*command, str(tmp_path / "a"), "--max-failures", "0"]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert main([*command, str(tmp_path / "b"), "--max-failures", "1"]) == 0
    bad = tmp_path / "bad.jsonl"
    bad.write_text("{\n")
    assert main(["bulk", "score", str(bad), "--model", str(tiny_onnx), "--output", str(tmp_path / "c")]) == 1


def test_prepared_memories_can_be_loaded(capsys, memories, split_onnx, tiny_onnx, tmp_path):
    output, states, model = str(tmp_path / "out"), str(tmp_path / "states"), ["--model", str(split_onnx)]
    assert main(["bulk", "prepare", memories, "--output", output, *model, "--block-rows", "2"]) == 0
    capsys.readouterr()
    assert main(["prepare", output, "--states", states, *model]) == 0
    assert capsys.readouterr().out == "3 memories loaded\n"
    assert main(["prepare", memories, "--states", states, *model]) == 0
    assert capsys.readouterr().out == "3 memories: 0 new, 3 already prepared\n"
    assert main(["prepare", output, "--states", states, "--model", str(tiny_onnx)]) == 2


def test_a_model_that_is_not_split_cannot_prepare(capsys, memories, tiny_onnx, tmp_path):
    assert main(["bulk", "prepare", memories, "--output", str(tmp_path / "o"), "--model", str(tiny_onnx)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
