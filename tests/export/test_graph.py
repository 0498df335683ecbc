from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch

from mnemorank.artifact.resolve import load_artifact
from mnemorank.errors import ArtifactError
from mnemorank.export.graph import INPUTS, bert_layers, fuse, load_classifier, write_graph
from tests.export.conftest import save_tokenizer, write_model

SHAPES = [(1, 1), (1, 7), (3, 40), (4, 96)]


def inputs(batch: int, length: int, vocabulary: int, types: int = 2) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(batch * 100 + length)
    ids = rng.integers(4, vocabulary, (batch, length))
    mask = np.ones_like(ids)
    mask[1:, length // 2 :] = 0
    ids = ids * mask
    kinds = np.zeros_like(ids)
    if types > 1:
        kinds[:, length // 3 :] = 1
    return dict(zip(INPUTS, (ids, mask, kinds), strict=True))


def torch_logits(model: torch.nn.Module, feed: dict[str, np.ndarray]) -> np.ndarray:
    with torch.no_grad():
        return model(**{name: torch.from_numpy(values) for name, values in feed.items()}).logits.numpy()


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("bert", {}),
        ("bert", {"hidden_act": "relu", "num_hidden_layers": 1}),
        ("bert", {"num_labels": 2}),
        ("roberta", {}),
        ("electra", {}),
        ("deberta", {}),
    ],
)
@pytest.mark.parametrize("fuse_projections", [True, False])
def test_the_graph_gives_the_scores_of_the_model_for_any_batch_and_length(
    tmp_path, architecture, changes, fuse_projections
):
    artifact = load_artifact(write_model(tmp_path / "model", architecture, **changes))
    model, written = load_classifier(artifact), load_classifier(artifact)
    write_graph(written, tmp_path / "graph.onnx", fuse_projections=fuse_projections)
    if architecture == "deberta":
        fuse(tmp_path / "graph.onnx", model.config)
    session = ort.InferenceSession(str(tmp_path / "graph.onnx"))
    assert [entry.name for entry in session.get_inputs()] == list(INPUTS)
    types = getattr(model.config, "type_vocab_size", 0)
    for batch, length in SHAPES:
        feed = inputs(batch, length, model.config.vocab_size, types)
        (logits,) = session.run(["logits"], feed)
        np.testing.assert_allclose(logits, torch_logits(model, feed), atol=1e-4)


@pytest.mark.parametrize("names", [("input_ids", "attention_mask"), INPUTS])
def test_segment_ids_are_used_only_if_the_tokenizer_produces_them(tmp_path, names):
    folder = write_model(tmp_path / "model")
    save_tokenizer(folder, names)
    model, written = (load_classifier(load_artifact(folder)) for _ in range(2))
    feeds = [inputs(batch, length, model.config.vocab_size) for batch, length in SHAPES]
    write_graph(written, tmp_path / "graph.onnx", calibration=feeds)
    session = ort.InferenceSession(str(tmp_path / "graph.onnx"))
    for feed in feeds:
        (logits,) = session.run(["logits"], feed)
        np.testing.assert_allclose(logits, torch_logits(model, {name: feed[name] for name in names}), atol=1e-4)


def test_smoothing_does_not_change_the_scores(trained, tmp_path):
    model, written = (load_classifier(load_artifact(trained)) for _ in range(2))
    feed = inputs(3, 40, model.config.vocab_size)
    write_graph(written, tmp_path / "graph.onnx", calibration=[feed])
    names = [tensor.name for tensor in onnx.load(str(tmp_path / "graph.onnx")).graph.initializer]
    assert sum("smooth" in name for name in names) == 2 * 3
    (logits,) = ort.InferenceSession(str(tmp_path / "graph.onnx")).run(["logits"], feed)
    np.testing.assert_allclose(logits, torch_logits(model, feed), atol=1e-4)


def test_the_last_layer_is_computed_for_the_first_token_only_and_the_others_are_fused(trained, tmp_path):
    write_graph(load_classifier(load_artifact(trained)), tmp_path / "graph.onnx")
    graph = onnx.load(str(tmp_path / "graph.onnx")).graph
    kinds = Counter(node.op_type for node in graph.node)
    assert kinds["Attention"] == 2
    assert kinds["BiasGelu"] == 2
    assert kinds["SkipLayerNormalization"] == 0
    watched = onnx.load(str(tmp_path / "graph.onnx"))
    last = [node for node in graph.node if "layer.2/" in node.name and node.op_type == "MatMul"]
    rows = [node for node in last if any(part in node.name for part in ("query", "intermediate", "output"))]
    assert len(rows) == 4
    for node in rows:
        watched.graph.output.append(onnx.helper.make_empty_tensor_value_info(node.output[0]))
    session = ort.InferenceSession(watched.SerializeToString())
    for values in session.run([node.output[0] for node in rows], inputs(3, 40, 60)):
        assert values.shape[:2] == (3, 1)


def test_padding_does_not_change_a_score(trained, tmp_path):
    write_graph(load_classifier(load_artifact(trained)), tmp_path / "graph.onnx")
    session = ort.InferenceSession(str(tmp_path / "graph.onnx"))
    feed = inputs(1, 9, 60)
    padded = {name: np.pad(values, ((0, 0), (0, 23))) for name, values in feed.items()}
    (alone,), (with_padding,) = session.run(None, feed), session.run(None, padded)
    np.testing.assert_allclose(alone, with_padding, atol=1e-5)


def test_bert_layers_are_recognized(tmp_path):
    deberta = load_classifier(load_artifact(write_model(tmp_path / "d", "deberta")))
    assert bert_layers(deberta) is None
    assert len(bert_layers(load_classifier(load_artifact(write_model(tmp_path / "b"))))) == 3


def test_errors_name_the_folder(tmp_path: Path, trained: Path):
    three = write_model(tmp_path / "three", num_labels=3)
    with pytest.raises(ArtifactError, match="three"):
        load_classifier(load_artifact(three))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text('{"model_type": "bert", "architectures": ["BertModel"]}')
    with pytest.raises(ArtifactError, match="broken"):
        load_classifier(load_artifact(tmp_path / "broken"))
