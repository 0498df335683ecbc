"""Token ids of model inputs, and batches of them."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import processors

from mnemorank.artifact.resolve import load_artifact
from mnemorank.artifact.templates import Rendered, Template, templates
from mnemorank.memory.memory import Memory
from mnemorank.model.model import Model
from mnemorank.scorers import encoding, open_scorer
from mnemorank.scorers.encoding import (
    InputWriter,
    PairLayout,
    PassageEncoder,
    clean,
    encode,
    offsets,
    pack,
    pack_in_order,
    pad,
)
from mnemorank.scorers.protocol import Pair
from tests.conftest import build_tokenizer

TOKENIZER = build_tokenizer()


def manifest_with(tiny_onnx, template, max_length=256):
    return dataclasses.replace(load_artifact(tiny_onnx).manifest, template=template, max_length=max_length)


def opened(tiny_onnx, template, max_length=256):
    manifest = manifest_with(tiny_onnx, template, max_length)
    return Model(manifest, open_scorer(dataclasses.replace(load_artifact(tiny_onnx), manifest=manifest)))


@given(st.text(max_size=60), st.text(max_size=60))
def test_a_joined_pair_equals_the_tokenizers_own(query, passage):
    layout = PairLayout.of(TOKENIZER)
    ids, types = layout.join(*encode(TOKENIZER, [query, passage]))
    expected = TOKENIZER.encode(clean(query), clean(passage))
    assert ids.tolist() == expected.ids
    assert types.tolist() == expected.type_ids


def test_the_layout_of_roberta_is_derived_from_the_tokenizer():
    tokenizer = build_tokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] [SEP] $B [SEP]",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    ids, types = PairLayout.of(tokenizer).join(*encode(tokenizer, ["ruby", "cat"]))
    assert ids.tolist() == tokenizer.encode("ruby", "cat").ids
    assert set(types.tolist()) == {0}


def test_lone_surrogates_are_replaced_and_offsets_stay_valid():
    text = "cat \ud800 dog"
    assert clean(text) == "cat � dog"
    assert clean("\ud83d\ude00") == "😀"
    spans = offsets(TOKENIZER, text)
    assert text[slice(*spans[-1])] == "dog"


def test_ids_are_int64():
    assert encode(TOKENIZER, ["cat"])[0].dtype == np.int64


@pytest.mark.parametrize("template", ["instruct", "features"])
def test_a_single_segment_is_tokenized_as_one_text(tiny_onnx, tiny_tokenizer, template):
    writer = InputWriter(tiny_tokenizer, manifest_with(tiny_onnx, template))
    (written,) = writer.write([Pair("where does ruby work", writer.prepare(["she works at aurora labs"])[0])])
    text = (
        templates[template]
        .render("where does ruby work", "she works at aurora labs", templates[template].instruction or "")
        .text
    )
    assert written.ids.tolist() == tiny_tokenizer.encode(text).ids


def test_a_text_full_of_names_fits_the_feature_template(tiny_onnx):
    names = "Anneliese Oberhauser-Wittgenstein met Bartholomew Featherstonehaugh in Llanfairpwllgwyngyll. " * 30
    assert np.isfinite(opened(tiny_onnx, "features").score("where is ruby", [Memory(names)]).raw).all()


@pytest.mark.parametrize("template", ["pair", "instruct", "features", "yes-no"])
def test_lone_surrogates_are_scored(tiny_onnx, template):
    model = opened(tiny_onnx, template, max_length=2000)
    assert np.isfinite(model.score("ruby \ud800", [Memory("ruby \udfff works")]).raw).all()


def test_prefix_and_suffix_are_never_truncated(tiny_onnx, tiny_tokenizer):
    writer = InputWriter(tiny_tokenizer, manifest_with(tiny_onnx, "yes-no", max_length=700))
    (short, truncated) = writer.write([Pair("ruby", passage) for passage in writer.prepare(["cat", "the cat " * 500])])
    assert len(truncated.ids) == 700
    prefix, suffix = (
        tiny_tokenizer.encode("".join(part), add_special_tokens=False).ids
        for part in (templates["yes-no"].render("", "", "").prefix, templates["yes-no"].render("", "", "").suffix)
    )
    opening = [tiny_tokenizer.token_to_id("[CLS]")]
    for written in (short, truncated):
        assert written.ids.tolist()[: len(prefix) + 1] == opening + prefix
        assert written.ids.tolist()[-len(suffix) :] == suffix, "no [SEP]: the language model continues the text"


def test_a_pair_template_may_add_text_to_its_segments(tiny_onnx, tiny_tokenizer, monkeypatch):
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


lengths = st.lists(st.integers(1, 300), max_size=60)


@given(lengths, st.integers(1, 2000), st.none() | st.integers(1, 10))
@pytest.mark.parametrize("packer", [pack, pack_in_order])
def test_batches_contain_every_position_once_and_stay_within_the_budget(packer, lengths, budget, max_rows):
    batches = packer(lengths, budget, max_rows)
    assert sorted(position for batch in batches for position in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or max(lengths[p] for p in batch) * len(batch) <= budget
        assert max_rows is None or len(batch) <= max_rows


@given(lengths, st.integers(1, 2000))
def test_batches_in_order_keep_the_order(lengths, budget):
    assert [p for batch in pack_in_order(lengths, budget) for p in batch] == list(range(len(lengths)))


def test_similar_lengths_share_a_batch():
    assert pack([10, 100, 10, 100], 200) == [[1, 3], [0, 2]]


def test_a_token_budget_of_zero_is_an_error():
    with pytest.raises(ValueError, match="token_budget"):
        pack([1], 0)


@pytest.mark.parametrize(("side", "mask"), [("right", [1, 1, 0, 0]), ("left", [0, 0, 1, 1])])
def test_inputs_are_padded_to_the_longest(tiny_onnx, side, mask):
    writer = InputWriter(TOKENIZER, manifest_with(tiny_onnx, "pair"))
    short, long = writer.write([Pair("ruby", passage) for passage in writer.prepare(["cat", "cat cat cat"])])
    batch = pad([short, long], pad_id=7, side=side)
    assert batch.ids.shape == (2, len(long.ids)) == (2, len(short.ids) + 2)
    assert batch.mask[0, :2].tolist() + batch.mask[0, -2:].tolist() == mask
    assert (batch.ids[0][batch.mask[0] == 0] == 7).all()
    assert batch.ids[0][batch.mask[0] == 1].tolist() == short.ids.tolist()
    assert batch.ids[1].tolist() == long.ids.tolist()


@pytest.fixture
def tokenized(monkeypatch):
    """Every text that the tokenizer reads, in order."""
    read = []
    monkeypatch.setattr(encoding, "encode", lambda tokenizer, texts: read.extend(texts) or encode(tokenizer, texts))
    return read


def test_a_text_is_tokenized_once(tokenized):
    encoder = PassageEncoder(TOKENIZER)
    texts = ["the cat", "ruby \ud800", "the cat", ""]
    first = encoder.encode(texts)
    assert [passage.text for passage in first] == texts
    assert [passage.encoded.tolist() for passage in first] == [ids.tolist() for ids in encode(TOKENIZER, texts)]
    again = encoder.encode(["ruby \ud800", "a dog"])
    assert again[0].encoded.tolist() == first[1].encoded.tolist()
    assert tokenized == ["the cat", "ruby \ud800", "", "a dog"]


def test_the_texts_used_last_are_kept(tokenized, monkeypatch):
    monkeypatch.setattr(encoding, "_CACHED_BYTES", 1200)
    encoder = PassageEncoder(TOKENIZER)
    for text in ("cat", "dog", "cat", "ruby", "cat", "dog"):
        encoder.encode([text])
    assert tokenized == ["cat", "dog", "ruby", "dog"]
    encoder.encode(["cat " * 1000])
    encoder.encode(["cat " * 1000, "dog"])
    assert [text[:4] for text in tokenized[4:]] == ["cat ", "cat "]
