"""A split model, distilled from a full cross-encoder, exported and used with prepared memories."""

from __future__ import annotations

import pytest

from mnemorank import Model, Reranker
from mnemorank.artifact.resolve import load_artifact
from mnemorank.data.distill import distill
from mnemorank.data.formats import read_lists, write_lists
from mnemorank.errors import InputError
from mnemorank.export.exporter import export
from mnemorank.training.recipe import parse_recipe
from mnemorank.training.run import train


@pytest.mark.slow
def test_a_split_model_learns_from_a_cross_encoder_and_ranks_prepared_memories_alike(
    tables, tmp_path, train_lists, dev_lists
):
    tables["train"] |= {"epochs": 4, "learning_rate": 2e-3}
    train(parse_recipe(tables), tmp_path / "teacher")
    write_lists(
        distill(read_lists(train_lists), Model.load(tmp_path / "teacher", probe=False)), tmp_path / "scored.jsonl"
    )

    tables["model"]["split"] = 1
    tables["train"]["epochs"] = 8
    tables["data"] = [{"path": str(tmp_path / "scored.jsonl")}]
    tables["loss"] = [{"name": "softmax"}, {"name": "kl"}]
    result = train(parse_recipe(tables), tmp_path / "student")
    assert result.results.to_dict()["map"]["trained"][0] > 0.9

    export(tmp_path / "student", tmp_path / "student-int8", quantize="int8")
    assert load_artifact(tmp_path / "student-int8").manifest.family == "split"
    with (
        Reranker(tmp_path / "student-int8", states=tmp_path / "states", probe=False) as prepared,
        Reranker(tmp_path / "student-int8", probe=False) as unprepared,
    ):
        for example in read_lists(dev_lists):
            assert prepared.prepare(example.memories).not_stored == 0
            rankings = [reranker.rerank(example.query, example.memories) for reranker in (prepared, unprepared)]
            assert rankings[0].to_dict() == rankings[1].to_dict()
            assert "now" in rankings[0][0].text


def test_a_split_needs_an_upper_layer(tables, tmp_path):
    tables["model"]["split"] = 2
    with pytest.raises(InputError) as raised:
        train(parse_recipe(tables), tmp_path / "student")
    assert raised.value.field == "model.split"
