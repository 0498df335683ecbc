"""`mnemorank score`."""

import json

from mnemorank.cli import main


def test_scores_as_json_and_as_a_table(capsys, tiny_onnx):
    assert main(["score", "ruby", "ruby", "cat", "--model", str(tiny_onnx), "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)["scores"]
    assert [score["raw_score"] for score in scores] == [0, -1]
    assert [score["index"] for score in scores] == [0, 1]
    assert main(["score", "ruby", "ruby", "", "--model", str(tiny_onnx)]) == 0
    assert "—" in capsys.readouterr().out  # an empty text has no score
