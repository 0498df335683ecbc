"""`mnemorank audit`."""

from __future__ import annotations

import json

import pytest

from mnemorank.cli import main


@pytest.fixture
def shortcut(tmp_path):
    """Triplets in which the memory without an end date is always the right one."""
    path = tmp_path / "shortcut.jsonl"
    with path.open("w") as stream:
        for number in range(40):
            positive = {"text": f"ruby works at place {number}", "occurred_start": "2020-01-01"}
            negative = {
                "text": f"ruby worked at place {number}",
                "occurred_start": "2020-01-01",
                "occurred_end": "2021",
            }
            stream.write(json.dumps({"query": f"where {number}", "positive": positive, "negative": negative}) + "\n")
    return path


def test_prints_number_verdict_and_examples(shortcut, capsys):
    assert main(["audit", str(shortcut)]) == 0
    out = capsys.readouterr().out
    assert "40 examples" in out
    (line,) = [line for line in out.splitlines() if line.startswith("metadata-only")]
    assert line.split()[1:3] == ["1.000", "fail"]
    assert "answered without the text: where" in out


def test_json_with_a_model(shortcut, tiny_onnx, capsys):
    assert main(["audit", str(shortcut), "--model", str(tiny_onnx), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    findings = {finding["audit"]: finding for finding in record["findings"]}
    assert set(findings) == {"features", "metadata-only", "shuffle", "length", "leakage", "label-noise", "template"}
    assert findings["shuffle"]["details"]["losses"]["order"] == 0


def test_strict_exits_with_1_if_an_audit_fails(shortcut, capsys):
    assert main(["audit", str(shortcut), "--only", "metadata-only", "--strict"]) == 1
    assert main(["audit", str(shortcut), "--only", "leakage", "--strict"]) == 0


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["FILE", "--only", "nonsense"], "nonsense"),
        (["missing.jsonl"], "missing.jsonl"),
        (["FILE", "--train", "missing.jsonl"], "missing.jsonl"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(shortcut, capsys, arguments, name):
    assert main(["audit", *(str(shortcut) if argument == "FILE" else argument for argument in arguments)]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert name in err
    assert err.count("\n") == 1


def test_reads_the_file_of_a_benchmark(tmp_path, capsys):
    question = {
        "_id": "1",
        "question": "Where was the maker of Aurora born?",
        "context": [["Aurora", ["Aurora was made by Ruby."]], ["Zenith", ["Zenith is a lab."]]],
        "supporting_facts": [["Aurora", 0]],
    }
    path = tmp_path / "wiki.json"
    path.write_text(json.dumps([question]))
    assert main(["audit", str(path), "--task", "2wiki", "--only", "length"]) == 0
    assert "1 example" in capsys.readouterr().out
