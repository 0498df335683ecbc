"""`mnemorank models`."""

import json
import shutil

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


def test_a_manifest_without_hashes_is_not_verified(tiny_onnx, tmp_path, capsys):
    folder = tmp_path / "model"
    shutil.copytree(tiny_onnx, folder)
    (folder / "mnemorank.json").write_text(json.dumps({"schema": 1, "name": "tiny", "max_length": 64}))
    assert main(["models", "verify", str(folder)]) != 0
    assert "no hashes" in capsys.readouterr().err
