"""`mnemorank rerank`."""

import json
import os
import subprocess
import sys

from mnemorank.cli import main


def test_json_goes_to_stdout_alone(capsys, memories, tiny_onnx):
    assert main(["rerank", "where does ruby work", memories, "--model", str(tiny_onnx), "--top-k", "2", "--json"]) == 0
    out, err = capsys.readouterr()
    record = json.loads(out)
    assert [result["index"] for result in record["results"]] == [1, 0]
    assert [result["rank"] for result in record["results"]] == [1, 2]
    assert record["results"][0]["memory"] == {"text": "ruby work at aurora", "occurred_start": "2024-03"}
    assert err == ""


def test_table_with_explanation(capsys, memories, tiny_onnx):
    assert main(["rerank", "where does ruby work", memories, "--model", str(tiny_onnx), "--explain"]) == 0
    header, first, factors, *_ = capsys.readouterr().out.splitlines()
    assert header.split() == ["rank", "score", "relevance", "moved", "date", "memory"]
    assert "ruby work at aurora" in first
    assert "2024-03 →" in first
    assert "model +1.00" in factors
    assert "first_stage +" in factors


def test_options_reach_the_ranking(capsys, tmp_path, tiny_onnx):
    path = tmp_path / "m.jsonl"
    path.write_text(
        '{"text": "ruby work at aurora", "valid_from": "2020", "key": "job"}\n'
        '{"text": "ruby work at zenith", "valid_from": "2024", "key": "job"}\n'
    )
    command = ["rerank", "where does ruby work", str(path), "--model", str(tiny_onnx), "--json", "--explain"]
    assert main([*command, "--time-range", "2020-01", "2020-06"]) == 0
    results = {result["index"]: result for result in json.loads(capsys.readouterr().out)["results"]}
    assert results[0]["stale"]
    assert results[0]["factors"]["temporal"] > results[1]["factors"]["temporal"]
    assert main([*command, "--supersession", "off"]) == 0
    assert not any(result["stale"] for result in json.loads(capsys.readouterr().out)["results"])
    assert main([*command, "--supersession", "drop"]) == 0
    assert [result["index"] for result in json.loads(capsys.readouterr().out)["results"]] == [1]
    assert main([*command, "--as-of", "2021"]) == 0
    assert json.loads(capsys.readouterr().out)["results"][0]["index"] == 0
    assert main([*command, "--abstain-below", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["abstained"]
    assert main([*command, "--abstain-below", "7"]) == 2
    assert capsys.readouterr().err.startswith("error: abstain_below: ")


def test_reads_standard_input(memories, tiny_onnx):
    with open(memories) as stream:
        run = subprocess.run(
            [sys.executable, "-m", "mnemorank", "rerank", "ruby", "-", "--model", str(tiny_onnx), "--json"],
            stdin=stream,
            capture_output=True,
            text=True,
            check=True,
        )
    assert json.loads(run.stdout)["results"][0]["index"] == 1


def test_json_is_valid_for_odd_input_in_any_encoding(tmp_path, tiny_onnx):
    path = tmp_path / "m.jsonl"
    path.write_text('{"text": "a \\ud800 é", "score": 1e400, "x": NaN}\n', encoding="utf-8")
    command = [sys.executable, "-m", "mnemorank", "rerank", "ruby", str(path), "--model", str(tiny_onnx)]
    for encoding in ("utf-8", "ascii"):
        environment = {**os.environ, "PYTHONIOENCODING": encoding}
        run = subprocess.run([*command, "--json"], capture_output=True, env=environment, check=True)
        (result,) = json.loads(run.stdout)["results"]
        assert result["memory"] == {"text": "a \ud800 é", "metadata": {"x": None}}
        assert subprocess.run(command, capture_output=True, env=environment).returncode == 0


def test_bad_dates_are_errors_or_warnings(capsys, tmp_path, tiny_onnx):
    path = tmp_path / "m.jsonl"
    path.write_text('{"text": "a", "occurred_start": "soon"}\n')
    command = ["rerank", "ruby", str(path), "--model", str(tiny_onnx)]
    assert main(command) == 2
    assert capsys.readouterr().err.startswith(f"error: {path}:1: occurred_start: ")
    assert main([*command, "--json", "--on-error", "skip"]) == 0
    assert "occurred_start" in json.loads(capsys.readouterr().out)["warnings"][0]
    assert main([*command, "--on-error", "skip"]) == 0
    assert f"warning: {path}:1: occurred_start: " in capsys.readouterr().out
