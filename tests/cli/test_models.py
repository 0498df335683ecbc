"""`mnemorank models`."""

import json

from mnemorank.cli import main


def test_list(capsys):
    assert main(["models", "list"]) == 0
    assert "mini" in capsys.readouterr().out
    assert main(["models", "list", "--json"]) == 0
    assert "mini" in [model["name"] for model in json.loads(capsys.readouterr().out)]


def test_show(capsys, tiny_onnx):
    assert main(["models", "show", str(tiny_onnx), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["max_length"] == 64
    assert record["hardware"]["cores"] >= 1
    assert main(["models", "show", str(tiny_onnx)]) == 0
    assert "fingerprint" in capsys.readouterr().out


def test_verify(capsys):
    assert main(["models", "verify", "mini"]) == 0
    assert "loads" in capsys.readouterr().out
    assert main(["models", "verify", "mini", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["loads"] is True
