"""The template probe: real models, right and broken."""

import dataclasses
import shutil
import warnings

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification, BertModel

from mnemorank.artefact import load_artefact, write_manifest
from mnemorank.errors import ProbeWarning
from mnemorank.model import Model
from mnemorank.scorers.probe import PAIRS, probe
from tests.scorers import tiny_models


def test_a_working_model_passes(tiny_onnx):
    """The overlap model knows shared words, which is all that the pairs ask for."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = Model.load(tiny_onnx, probe=True)
    result = probe(model)
    assert result.passed
    assert result.cause is None
    assert result.right >= 5
    assert result.gap > 0.5
    assert [pair.query for pair in result.pairs] == [query for query, _, _ in PAIRS]


@pytest.fixture(scope="module")
def flat(tmp_path_factory):
    """A model with a head as it comes from initialisation: all scores alike."""
    folder = tiny_models.bert(tmp_path_factory.mktemp("flat") / "flat")
    network = BertForSequenceClassification.from_pretrained(folder)
    with torch.no_grad():
        network.classifier.weight.mul_(1e-3)
    network.save_pretrained(folder)
    return folder


def test_a_flat_model_is_warned_of_at_load(flat):
    with pytest.warns(ProbeWarning, match="flat: fails the probe: .* likely cause: untrained head"):
        model = Model.load(flat, device="cpu")
    assert not probe(model).passed


def test_a_head_that_is_not_in_the_files_is_named(tmp_path):
    folder = tiny_models.bert(tmp_path / "headless")
    BertModel(BertConfig.from_pretrained(folder)).save_pretrained(folder)
    with pytest.warns(ProbeWarning, match=r"untrained head \(classifier.bias, classifier.weight"):
        Model.load(folder, device="cpu")


def test_a_reversed_model_is_recognised(tiny_onnx):
    """Scores turned around, as with yes and no confused."""
    model = Model.load(tiny_onnx, probe=False)

    class Reversed:
        def __init__(self, family):
            self.manifest = dataclasses.replace(model.manifest, family=family)

        def score(self, *arguments, **options):
            scored = model.score(*arguments, **options)
            return dataclasses.replace(scored, raw=-scored.raw)

    assert "wrong token ids: yes and no" in probe(Reversed("yes-no")).cause
    assert "wrong way round" in probe(Reversed("onnx")).cause


def test_an_untrained_language_model_is_warned_of(qwen_causal):
    with pytest.warns(ProbeWarning, match="wrong template|token ids"):
        Model.load(qwen_causal, device="cpu")


def test_a_model_that_cannot_score_is_reported_not_raised(tiny_onnx):
    model = Model.load(tiny_onnx, probe=False)
    model.close()
    result = probe(model)
    assert not result.passed
    assert "cannot be scored with at all" in result.cause


def test_only_models_that_may_be_misread_are_probed_by_default(flat, tiny_onnx, tmp_path, monkeypatch):
    probed = []
    monkeypatch.setattr("mnemorank.model.warn_if_failing", lambda model: probed.append(model.manifest.name))
    trusted = shutil.copytree(tiny_onnx, tmp_path / "trusted")
    write_manifest(trusted, load_artefact(trusted).manifest, ["model.onnx", "tokenizer.json"])
    Model.load(trusted)
    assert probed == []
    Model.load(tiny_onnx)
    Model.load(flat, device="cpu")
    assert probed == ["overlap", "flat"]
    Model.load(flat, device="cpu", probe=False)
    assert len(probed) == 2
