import json
import os
import subprocess
import sys

import pytest

from mnemorank.cli import COMMANDS, main


@pytest.fixture
def memories(tmp_path):
    path = tmp_path / "memories.jsonl"
    path.write_text(
        '{"text": "the cat"}\n'
        '{"text": "ruby work at aurora", "occurred_start": "2024-03"}\n'
        '{"text": "a dog", "id": 3}\n'
    )
    return str(path)


def test_rerank_as_json_is_clean(capsys, memories, tiny_onnx):
    assert main(["rerank", "where does ruby work", memories, "--model", str(tiny_onnx), "--top-k", "2", "--json"]) == 0
    out = capsys.readouterr()
    answer = json.loads(out.out)
    assert [r["index"] for r in answer["results"]] == [1, 0]
    assert answer["results"][0]["memory"] == {"text": "ruby work at aurora", "occurred_start": "2024-03"}
    assert out.err == ""


def test_rerank_as_a_table(capsys, memories, tiny_onnx):
    assert main(["rerank", "where does ruby work", memories, "--model", str(tiny_onnx), "--explain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "ruby work at aurora" in lines[0]
    assert "2024-03 →" in lines[0]
    assert "model +1.00" in lines[1]


def test_rerank_takes_a_time_range_and_a_supersession_mode(capsys, tmp_path, tiny_onnx):
    path = tmp_path / "m.jsonl"
    path.write_text(
        '{"text": "ruby work at aurora", "valid_from": "2020", "key": "job"}\n'
        '{"text": "ruby work at zenith", "valid_from": "2024", "key": "job"}\n'
    )
    command = ["rerank", "where does ruby work", str(path), "--model", str(tiny_onnx), "--json", "--explain"]
    assert main([*command, "--time-range", "2020-01", "2020-06"]) == 0
    results = {r["index"]: r for r in json.loads(capsys.readouterr().out)["results"]}
    assert results[0]["stale"]
    assert results[0]["factors"]["temporal"] > results[1]["factors"]["temporal"]
    assert main([*command, "--supersession", "off"]) == 0
    assert not any(r["stale"] for r in json.loads(capsys.readouterr().out)["results"])
    assert main([*command, "--supersession", "drop"]) == 0
    assert [r["index"] for r in json.loads(capsys.readouterr().out)["results"]] == [1]
    assert main([*command, "--abstain-below", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["abstained"]
    assert main([*command, "--abstain-below", "7"]) == 2
    assert "abstain_below: expected a number from 0 to 1" in capsys.readouterr().err


def test_rerank_reads_standard_input(memories, tiny_onnx):
    with open(memories) as stream:
        run = subprocess.run(
            [sys.executable, "-m", "mnemorank", "rerank", "ruby", "-", "--model", str(tiny_onnx), "--json"],
            stdin=stream,
            capture_output=True,
            text=True,
            check=True,
        )
    assert json.loads(run.stdout)["results"][0]["index"] == 1


def test_json_stays_json_whatever_the_input(tmp_path, tiny_onnx):
    path = tmp_path / "m.jsonl"
    path.write_text('{"text": "a \\ud800 é", "score": 1e400, "x": NaN}\n', encoding="utf-8")
    command = [sys.executable, "-m", "mnemorank", "rerank", "ruby", str(path), "--model", str(tiny_onnx)]
    for encoding in ("utf-8", "ascii"):
        environment = {**os.environ, "PYTHONIOENCODING": encoding}
        run = subprocess.run([*command, "--json"], capture_output=True, env=environment, check=True)
        (result,) = json.loads(run.stdout)["results"]
        assert result["memory"] == {"text": "a \ud800 é", "metadata": {"x": None}}
        assert subprocess.run(command, capture_output=True, env=environment).returncode == 0


def test_skip_reports_bad_dates(capsys, tmp_path, tiny_onnx):
    path = tmp_path / "m.jsonl"
    path.write_text('{"text": "a", "occurred_start": "soon"}\n')
    command = ["rerank", "ruby", str(path), "--model", str(tiny_onnx), "--json"]
    assert main(command) == 2
    assert "m.jsonl:1: occurred_start" in capsys.readouterr().err
    assert main([*command, "--on-error", "skip"]) == 0
    assert "occurred_start" in json.loads(capsys.readouterr().out)["warnings"][0]


def test_score(capsys, tiny_onnx):
    assert main(["score", "ruby", "ruby", "cat", "--model", str(tiny_onnx), "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)["scores"]
    assert [s["raw_score"] for s in scores] == [0, -1]
    assert main(["score", "ruby", "ruby", "", "--model", str(tiny_onnx)]) == 0
    assert "—" in capsys.readouterr().out


def test_models(capsys, tiny_onnx):
    assert main(["models", "list"]) == 0
    assert "mini" in capsys.readouterr().out
    assert main(["models", "show", str(tiny_onnx), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["max_length"] == 64
    assert main(["models", "verify", "mini"]) == 0
    assert "loads" in capsys.readouterr().out


def test_demo_answers_its_questions(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "110")
    assert main(["demo"]) == 0
    out = capsys.readouterr().out
    asked = out.split("Where does Ruby work now?")[1].splitlines()
    assert "Aurora Labs" in asked[1]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["rerank", "q", "missing.jsonl"], 2, "missing.jsonl"),
        (["rerank", "q", "missing.jsonl", "--model", "nope"], 2, "missing.jsonl"),
        (["score", "q", "t", "--model", "nope"], 2, "nope"),
        (["score", "", "t"], 2, "query"),
        (["models", "show", "nope"], 2, "nope"),
        (["models", "list", "mini"], 2, "models show"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(capsys, arguments, code, said):
    assert main(arguments) == code
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("arguments", [[], ["nope"], ["rerank"], ["rerank", "q", "f", "--top-k", "0"]])
def test_bad_usage_is_exit_2(capsys, arguments):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(capsys, command):
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    assert f"Example:\n  mnemorank {command}" in capsys.readouterr().out


def test_a_closed_pipe_is_no_error(memories, tiny_onnx):
    command = f"{sys.executable} -m mnemorank rerank ruby {memories} --model {tiny_onnx} | head -c 1 >/dev/null"
    run = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no full device here")
def test_a_full_disk_is_one_line(memories, tiny_onnx):
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "mnemorank", "rerank", "ruby", memories, "--model", str(tiny_onnx), "--json"]
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == 1
    assert "No space left" in ended.stderr
    assert "Traceback" not in ended.stderr
