"""Tiny trained classifiers of the real architectures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DebertaV2Config,
    DebertaV2ForSequenceClassification,
    ElectraConfig,
    ElectraForSequenceClassification,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForSequenceClassification,
)

from tests.conftest import WORDS, build_tokenizer

torch.set_num_threads(1)
SHAPE = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}


def save_tokenizer(folder: Path, inputs: Sequence[str] = ("input_ids", "token_type_ids", "attention_mask")) -> int:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=build_tokenizer(),
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_input_names=list(inputs),
        model_max_length=128,
        truncation_side="right",
    )
    tokenizer.save_pretrained(folder)
    return len(tokenizer)


def spread(model: torch.nn.Module) -> torch.nn.Module:
    """Add noise to the weights, so that scores differ as those of a trained model."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            scale = 0.25 if parameter.dim() > 1 else 0.1
            parameter.add_(torch.randn(parameter.shape, generator=generator) * scale)
    return model.eval()


def write_model(folder: Path, architecture: str = "bert", **changes: object) -> Path:
    folder.mkdir(parents=True)
    size = save_tokenizer(folder)
    options = {
        "vocab_size": size,
        "max_position_embeddings": 130,
        "pad_token_id": 0,
        "num_labels": 1,
        **SHAPE,
        **changes,
    }
    torch.manual_seed(7)
    if architecture == "bert":
        model = BertForSequenceClassification(BertConfig(**options))
    elif architecture == "roberta":
        model = RobertaForSequenceClassification(RobertaConfig(type_vocab_size=1, **options))
    elif architecture == "electra":
        model = ElectraForSequenceClassification(ElectraConfig(embedding_size=16, **options))
    else:
        model = DebertaV2ForSequenceClassification(
            DebertaV2Config(relative_attention=True, pos_att_type=["p2c", "c2p"], type_vocab_size=0, **options)
        )
    spread(model).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT folder with a manifest, as written by training."""
    from mnemorank.artifact.manifest import Calibration, Manifest, write_manifest

    folder = write_model(tmp_path_factory.mktemp("trained") / "model")
    manifest = Manifest(
        name="tiny",
        version="3",
        family="torch",
        format="hindsight-2",
        max_length=96,
        calibration=Calibration(1.5, -0.25),
        recipe={"name": "tiny", "seed": 7},
        evaluation={"dev": {"map": 0.5}},
    )
    write_manifest(folder, manifest)
    return folder


@pytest.fixture(scope="session")
def dev_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lists of words in the vocabulary of the tiny tokenizer."""
    path = tmp_path_factory.mktemp("dev") / "dev.jsonl"
    records = []
    for number in range(6):
        candidates = [{"text": " ".join(WORDS[i * 3 : i * 3 + 4 + i]), "label": int(i == number)} for i in range(8)]
        records.append({"query": " ".join(WORDS[number * 5 : number * 5 + 4]), "candidates": candidates})
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def count_weights(path: Path) -> dict[int, int]:
    """Return the number of weights in an ONNX file by their number of bits."""
    graph = onnx.load(str(path)).graph
    counts: dict[int, int] = {}
    packed: set[str] = set()
    for node in graph.node:
        if node.op_type == "MatMulNBits":
            attributes = {attribute.name: attribute.i for attribute in node.attribute}
            packed.update(node.input[1:3])
            counts[attributes["bits"]] = counts.get(attributes["bits"], 0) + attributes["K"] * attributes["N"]
    widths = {onnx.TensorProto.FLOAT: 32, onnx.TensorProto.INT8: 8, onnx.TensorProto.UINT8: 8}
    for tensor in graph.initializer:
        if tensor.name not in packed and tensor.data_type in widths and len(tensor.dims) > 1:
            bits = widths[tensor.data_type]
            counts[bits] = counts.get(bits, 0) + int(np.prod(tensor.dims))
    return counts
