"""What all commands have in common: exit codes, one-line errors, help."""

import os
import subprocess
import sys

import pytest

from mnemorank.cli import COMMANDS, main


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["rerank", "q", "missing.jsonl"], "missing.jsonl"),
        (["rerank", "q", "missing.jsonl", "--model", "nope"], "missing.jsonl"),
        (["score", "q", "t", "--model", "nope"], "nope"),
        (["score", "", "t"], "query"),
        (["models", "show", "nope"], "nope"),
        (["models", "list", "mini"], "MODEL"),
        (["export", "nope", "out"], "nope"),
        (["learn", "status", "--root", "/no/such/folder"], "--root"),
        (["serve", "--port", "none"], "port"),
        (["train", "nope"], "nope"),
        (["audit", "missing.jsonl"], "missing.jsonl"),
        (["bench", "lists", "missing.jsonl"], "missing.jsonl"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(capsys, arguments, name):
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert name in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("arguments", [[], ["nope"], ["rerank"], ["rerank", "q", "f", "--top-k", "0"]])
def test_bad_usage_is_one_line_and_exit_2(capsys, arguments):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(capsys, command):
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    assert f"Example:\n  mnemorank {command}" in capsys.readouterr().out


def test_a_command_does_not_import_what_others_need():
    code = "import sys; from mnemorank.cli import main; main(['models', 'list']); print(sorted(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"pydantic", "fastapi", "torch", "mnemorank.server", "mnemorank.learning"} & set(run.stdout.split("'"))


def test_a_closed_pipe_is_not_an_error(memories, tiny_onnx):
    command = f"{sys.executable} -m mnemorank rerank ruby {memories} --model {tiny_onnx} | head -c 1 >/dev/null"
    run = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_a_one_line_failure(memories, tiny_onnx):
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "mnemorank", "rerank", "ruby", memories, "--model", str(tiny_onnx), "--json"]
        run = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert run.returncode == 1
    assert "No space left" in run.stderr
    assert "Traceback" not in run.stderr
