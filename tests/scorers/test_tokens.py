import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mnemorank.scorers.encoding import PairLayout, clean, encode, offsets
from tests.conftest import build_tokenizer

TOKENIZER = build_tokenizer()


@given(st.text(max_size=60), st.text(max_size=60))
def test_joined_parts_equal_the_tokenizers_own_pair(query, passage):
    layout = PairLayout.of(TOKENIZER)
    ids, types = layout.join(*encode(TOKENIZER, [query, passage]))
    whole = TOKENIZER.encode(clean(query), clean(passage))
    assert ids.tolist() == whole.ids
    assert types.tolist() == whole.type_ids


def test_roberta_like_layouts_are_read_off():
    from tokenizers import processors

    tokenizer = build_tokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] [SEP] $B [SEP]",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    ids, types = PairLayout.of(tokenizer).join(*encode(tokenizer, ["ruby", "cat"]))
    assert ids.tolist() == tokenizer.encode("ruby", "cat").ids
    assert set(types.tolist()) == {0}


def test_lone_surrogates_are_replaced_and_offsets_still_fit():
    text = "cat \ud800 dog"
    assert clean(text) == "cat � dog"
    assert clean("\ud83d\ude00") == "😀"
    spans = offsets(TOKENIZER, text)
    assert text[slice(*spans[-1])] == "dog"


def test_ids_are_int64():
    assert encode(TOKENIZER, ["cat"])[0].dtype == np.int64
