"""Tiny models, built on the fly; nothing is downloaded."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

pytest_plugins = ["tests.helpers.model_fixtures", "tests.helpers.reranker_fixtures"]

WORDS = (
    "where does ruby work now she works at aurora labs before that zenith berlin lives moved to the a an in on of and "
    "cat dog doctor dentist visit march april 2023 2024 2025 start end ongoing world event observation january 01 05 "
    "python rust go database migration plan trip lisbon flight user assistant yes no not is was who what when why how"
).split()


def build_tokenizer() -> Tokenizer:
    """Return a small WordPiece tokenizer with BERT's layout; unknown words are split into letters."""
    letters = list("abcdefghijklmnopqrstuvwxyz0123456789.,:;!?()[]|-'\"/")
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *dict.fromkeys([*WORDS, *letters]), *(f"##{c}" for c in letters)]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])],
    )
    return tokenizer


def write_overlap_model(folder: Path, max_length: int = 64) -> Path:
    """Save a small ONNX cross-encoder that counts the tokens of the passage that are also in the query.

    logits = Σ over passage tokens of [token occurs in the query] − 1, from the three inputs of every BERT export.
    """
    folder.mkdir(parents=True, exist_ok=True)
    build_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", "pad_token_id": 0}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": max_length}))
    shape = ["batch", "sequence"]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, shape)
        for name in ("input_ids", "attention_mask", "token_type_ids")
    ]
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 1])

    def constant(name: str, value: object, dtype: type = np.int64) -> onnx.TensorProto:
        return numpy_helper.from_array(np.array(value, dtype=dtype), name)

    nodes = [
        helper.make_node("Greater", ["input_ids", "last_special"], ["is_word"]),
        helper.make_node("Cast", ["token_type_ids"], ["second"], to=TensorProto.BOOL),
        helper.make_node("Not", ["second"], ["first"]),
        helper.make_node("And", ["is_word", "first"], ["in_query"]),
        helper.make_node("And", ["is_word", "second"], ["in_passage"]),
        helper.make_node("Unsqueeze", ["input_ids", "axis_2"], ["column"]),
        helper.make_node("Unsqueeze", ["input_ids", "axis_1"], ["row"]),
        helper.make_node("Equal", ["column", "row"], ["same"]),
        helper.make_node("Unsqueeze", ["in_passage", "axis_2"], ["passage_column"]),
        helper.make_node("Unsqueeze", ["in_query", "axis_1"], ["query_row"]),
        helper.make_node("And", ["same", "passage_column"], ["half"]),
        helper.make_node("And", ["half", "query_row"], ["match"]),
        helper.make_node("Cast", ["match"], ["match_number"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMax", ["match_number"], ["matched"], axes=[2], keepdims=0),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["matched", "mask"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "axis_1"], ["count"], keepdims=1),
        helper.make_node("Sub", ["count", "one"], ["logits"]),
    ]
    initializers = [
        constant("last_special", 3),
        constant("axis_1", [1]),
        constant("axis_2", [2]),
        constant("one", 1.0, np.float32),
    ]
    graph = helper.make_graph(nodes, "overlap", inputs, [logits], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    onnx.save(model, str(folder / "model.onnx"))
    return folder


@pytest.fixture(scope="session")
def tiny_tokenizer() -> Tokenizer:
    return build_tokenizer()


@pytest.fixture(scope="session")
def tiny_onnx(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny ONNX cross-encoder without a manifest, with an input of 64 tokens."""
    return write_overlap_model(tmp_path_factory.mktemp("models") / "overlap")
