"""Inputs of templates that are no pair, on the ONNX scorer as on the others."""

import dataclasses
import sys

import numpy as np
import pytest

from mnemorank.artifact.resolve import load_artifact
from mnemorank.artifact.templates import Rendered, Template, templates
from mnemorank.errors import MissingExtraError, ScorerError
from mnemorank.memory.memory import Memory
from mnemorank.model.model import Model
from mnemorank.scorers import open_scorer
from mnemorank.scorers.encoding import InputWriter
from mnemorank.scorers.protocol import Pair


def manifest_with(tiny_onnx, template, max_length=256):
    return dataclasses.replace(load_artifact(tiny_onnx).manifest, template=template, max_length=max_length)


def opened(tiny_onnx, template, max_length=256):
    manifest = manifest_with(tiny_onnx, template, max_length)
    return Model(manifest, open_scorer(dataclasses.replace(load_artifact(tiny_onnx), manifest=manifest)))


@pytest.mark.parametrize("template", ["instruct", "features"])
def test_one_text_is_tokenized_as_the_tokenizer_does(tiny_onnx, tiny_tokenizer, template):
    writer = InputWriter(tiny_tokenizer, manifest_with(tiny_onnx, template))
    (written,) = writer.write([Pair("where does ruby work", writer.prepare(["she works at aurora labs"])[0])])
    text = (
        templates[template]
        .render("where does ruby work", "she works at aurora labs", templates[template].instruction or "")
        .text
    )
    assert written.ids.tolist() == tiny_tokenizer.encode(text).ids


def test_texts_full_of_names_fit_the_feature_template(tiny_onnx):
    names = "Anneliese Oberhauser-Wittgenstein met Bartholomew Featherstonehaugh in Llanfairpwllgwyngyll. " * 30
    assert np.isfinite(opened(tiny_onnx, "features").score("where is ruby", [Memory(names)]).raw).all()


@pytest.mark.parametrize("template", ["pair", "instruct", "features", "yes-no"])
def test_lone_surrogates_are_read(tiny_onnx, template):
    model = opened(tiny_onnx, template, max_length=2000)
    assert np.isfinite(model.score("ruby \ud800", [Memory("ruby \udfff works")]).raw).all()


def test_the_ends_of_a_prompt_are_never_cut(tiny_onnx, tiny_tokenizer):
    writer = InputWriter(tiny_tokenizer, manifest_with(tiny_onnx, "yes-no", max_length=700))
    (whole, cut) = writer.write([Pair("ruby", passage) for passage in writer.prepare(["cat", "the cat " * 500])])
    assert len(cut.ids) == 700
    prefix, suffix = (
        tiny_tokenizer.encode("".join(part), add_special_tokens=False).ids
        for part in (templates["yes-no"].render("", "", "").prefix, templates["yes-no"].render("", "", "").suffix)
    )
    opening = [tiny_tokenizer.token_to_id("[CLS]")]
    for written in (whole, cut):
        assert written.ids.tolist()[: len(prefix) + 1] == opening + prefix
        assert written.ids.tolist()[-len(suffix) :] == suffix, "a language model goes on from here: no [SEP]"


def test_a_pair_template_may_write_round_its_segments(tiny_onnx, tiny_tokenizer, monkeypatch):
    def render(query, text, instruction):
        return Rendered(f"who: {query}", f"plan: {text}")

    monkeypatch.setitem(templates._plugins, "prefixed", Template("prefixed", "for this test", render))
    writer = InputWriter(tiny_tokenizer, manifest_with(tiny_onnx, "prefixed", max_length=64))
    (passage,) = writer.prepare(["ruby"])
    (written,) = writer.write([Pair("ruby works", passage)])
    expected = tiny_tokenizer.encode("who: ruby works", "plan: ruby")
    assert written.ids.tolist() == expected.ids
    assert written.types.tolist() == expected.type_ids
    long = "the cat is on the trip. " * 60
    assert np.isfinite(opened(tiny_onnx, "prefixed", max_length=64).score("ruby works", [Memory(long)]).raw).all()


def test_a_family_whose_packages_are_missing_names_the_extra(tiny_onnx, monkeypatch):
    monkeypatch.setitem(sys.modules, "mnemorank.scorers.torch.classifier", None)  # importing it fails
    artifact = load_artifact(tiny_onnx)
    torch_artifact = dataclasses.replace(artifact, manifest=dataclasses.replace(artifact.manifest, family="torch"))
    with pytest.raises(MissingExtraError, match=r"pip install 'mnemorank\[torch\]'"):
        open_scorer(torch_artifact)


def test_a_closed_onnx_model_says_so(tiny_onnx):
    model = Model.load(tiny_onnx)
    model.close()
    model.close()
    with pytest.raises(ScorerError, match="overlap: the model was closed"):
        model.score("ruby", [Memory("cat")])
