"""The probe, with working and broken models."""

import dataclasses
import shutil
import warnings

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits
from transformers import AutoModelForCausalLM, AutoTokenizer, BertConfig, BertForSequenceClassification, BertModel

from mnemorank.artifact.manifest import write_manifest
from mnemorank.artifact.resolve import load_artifact
from mnemorank.artifact.templates import templates
from mnemorank.errors import ProbeWarning
from mnemorank.model.model import Model
from mnemorank.model.probe import PAIRS, probe
from mnemorank.scorers import open_scorer
from tests.helpers import tiny_models


def test_a_working_model_passes(tiny_onnx):
    """The overlap model counts shared words, which is enough for the obvious pairs."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = Model.load(tiny_onnx, probe=True)
    result = probe(model)
    assert result.passed
    assert result.cause is None
    assert result.correct >= 5
    assert result.gap > 0.5
    assert [pair.query for pair in result.pairs] == [query for query, _, _ in PAIRS]


@pytest.fixture(scope="module")
def flat(tmp_path_factory):
    """A model with an untrained head, whose scores are all equal."""
    folder = tiny_models.bert(tmp_path_factory.mktemp("flat") / "flat")
    network = BertForSequenceClassification.from_pretrained(folder)
    with torch.no_grad():
        network.classifier.weight.mul_(1e-3)
    network.save_pretrained(folder)
    return folder


def test_loading_a_model_with_an_untrained_head_warns(flat):
    with pytest.warns(ProbeWarning, match=r"flat: .*untrained head"):
        model = Model.load(flat, device="cpu")
    assert not probe(model).passed


def test_a_head_missing_in_the_files_is_named(tmp_path):
    folder = tiny_models.bert(tmp_path / "headless")
    BertModel(BertConfig.from_pretrained(folder)).save_pretrained(folder)
    with pytest.warns(ProbeWarning, match=r"untrained head \(classifier.bias, classifier.weight"):
        Model.load(folder, device="cpu")


def test_reversed_scores_are_recognized(tiny_onnx):
    """As if yes and no were swapped."""
    model = Model.load(tiny_onnx, probe=False)

    class Reversed:
        def __init__(self, family):
            self.manifest = dataclasses.replace(model.manifest, family=family)

        def score(self, *arguments, **options):
            scored = model.score(*arguments, **options)
            return dataclasses.replace(scored, raw=-scored.raw)

    assert "yes and no are swapped" in probe(Reversed("yes-no")).cause
    assert "reversed" in probe(Reversed("onnx")).cause


def test_loading_an_untrained_language_model_warns(qwen_causal):
    with pytest.warns(ProbeWarning, match="wrong template|answer tokens"):
        Model.load(qwen_causal, device="cpu")


def test_a_model_that_cannot_score_fails_the_probe(tiny_onnx):
    model = Model.load(tiny_onnx, probe=False)
    model.close()
    result = probe(model)
    assert not result.passed
    assert "closed" in result.cause


def test_only_torch_models_and_plain_folders_are_probed_by_default(flat, tiny_onnx, tmp_path, monkeypatch):
    probed = []
    monkeypatch.setattr("mnemorank.model.model.warn_if_failing", lambda model: probed.append(model.manifest.name))
    trusted = shutil.copytree(tiny_onnx, tmp_path / "trusted")
    write_manifest(trusted, load_artifact(trusted).manifest)
    Model.load(trusted)
    assert probed == []
    Model.load(tiny_onnx)
    Model.load(flat, device="cpu")
    assert probed == ["overlap", "flat"]
    Model.load(flat, device="cpu", probe=False)
    assert len(probed) == 2


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A tiny Qwen3 trained on the probe's own pairs with the yes-no prompt."""
    folder = tiny_models.qwen_causal(tmp_path_factory.mktemp("fitted") / "fitted")
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    network = AutoModelForCausalLM.from_pretrained(folder)
    torch.manual_seed(0)
    for parameter in network.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.05)
    template = templates["yes-no"]
    prompts = [template.render(pair[0], text, template.instruction).text for pair in PAIRS for text in pair[1:]]
    batch = tokenizer(prompts, padding=True, return_tensors="pt", add_special_tokens=False)
    labels = torch.tensor([1.0, 0.0] * len(PAIRS))
    yes, no = tokenizer.convert_tokens_to_ids(["yes", "no"])
    optimizer = torch.optim.AdamW(network.parameters(), lr=5e-3)
    for _ in range(20):
        logits = network(**batch, logits_to_keep=1).logits[:, -1]
        optimizer.zero_grad()
        binary_cross_entropy_with_logits(logits[:, yes] - logits[:, no], labels).backward()
        optimizer.step()
    network.save_pretrained(folder)
    return folder


def probed(folder, template):
    artifact = load_artifact(folder)
    manifest = dataclasses.replace(artifact.manifest, template=template)
    return probe(Model(manifest, open_scorer(dataclasses.replace(artifact, manifest=manifest), device="cpu")))


def test_a_language_model_passes_only_with_its_own_prompt(fitted):
    result = probed(fitted, "yes-no")
    assert result.passed
    assert result.correct == len(PAIRS)
    for template in ("mxbai", "gemma"):
        wrong = probed(fitted, template)
        assert not wrong.passed
        assert "wrong template" in wrong.cause


def test_swapped_answers_are_recognized(fitted, monkeypatch):
    swapped = dataclasses.replace(templates["yes-no"], name="swapped", answers=("yes", "no"))
    monkeypatch.setitem(templates._plugins, "swapped", swapped)
    assert "yes and no are swapped" in probed(fitted, "swapped").cause
