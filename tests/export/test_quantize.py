from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import numpy_helper
from safetensors.torch import save_file

from mnemorank.artifact.resolve import load_artifact
from mnemorank.cli import main
from mnemorank.data.bundled import bundled_dataset
from mnemorank.data.formats import read_triplets
from mnemorank.errors import InputError
from mnemorank.export import blocks
from mnemorank.export.blocks import pack, to_blocks
from mnemorank.export.calibration_data import calibration_examples
from mnemorank.export.exporter import export
from mnemorank.export.graph import load_classifier, write_graph
from mnemorank.export.int8_storage import initializers, to_int8
from mnemorank.export.quantize import int8_dynamic, int8_static
from tests.export.conftest import count_weights
from tests.export.test_graph import inputs
from tests.training.conftest import write_causal


def unpack(packed: np.ndarray) -> np.ndarray:
    codes = np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1)
    return codes.astype(np.int16) - 8


def test_int8_codes_are_accurate_to_half_a_step():
    weight = np.random.default_rng(0).normal(size=(40, 24)).astype(np.float32)
    weight[3] = 0
    codes, scales = to_int8(weight, axis=1)
    assert scales.shape == (40, 1)
    assert np.all(np.abs(codes * scales - weight) <= scales / 2 + 1e-7)


def test_int4_blocks_can_be_packed_and_unpacked():
    weight = np.random.default_rng(0).normal(size=(6, 64)).astype(np.float32)
    codes, scales = to_blocks(weight, 4, 32)
    assert codes.shape == (6, 2, 32)
    assert codes.min() >= -8
    assert codes.max() <= 7
    np.testing.assert_array_equal(unpack(pack(codes, 4)), codes)
    rounded = (codes * scales[..., None]).reshape(6, 64)
    full_range = np.abs(weight).reshape(6, 2, 32).max(-1, keepdims=True) / 7
    clipped_nothing = (np.clip(np.rint(weight.reshape(6, 2, 32) / full_range), -8, 7) * full_range).reshape(6, 64)
    assert np.square(rounded - weight).sum() <= np.square(clipped_nothing - weight).sum()


def write_qat(trained, folder, bits, heads=("classifier",)):
    """Write a model with the scales of its weights, as quantization-aware training does."""
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(trained, num_labels=1)
    generator = torch.Generator().manual_seed(3)
    scales, codes, half = {}, {}, 2 ** (bits - 1)
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and name not in heads:
            outputs, width = module.weight.shape
            scales[name] = (torch.rand((outputs, width // 16), generator=generator) * 0.4 + 0.16) / half
            codes[name] = torch.randint(-half, half, (outputs, width), generator=generator)
            module.weight.data = codes[name] * scales[name].repeat_interleave(16, dim=1)
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((trained / name).read_bytes())
    save_file(scales, folder / "qat.safetensors", metadata={"bits": str(bits), "group_size": "16"})
    return model, codes


def stored_codes(path):
    tensors = initializers(onnx.load(str(path)).graph)
    return {name.removesuffix("_codes"): numpy_helper.to_array(t) for name, t in tensors.items() if "_codes" in name}


def test_trained_int4_codes_are_written_unchanged(trained, tmp_path):
    model, codes = write_qat(trained, tmp_path / "qat", 4)
    result = export(tmp_path / "qat", tmp_path / "out", "int4")
    stored = stored_codes(tmp_path / "out" / "model.onnx")
    layer = "bert.encoder.layer.0"
    np.testing.assert_array_equal(
        unpack(stored[f"model.{layer}.intermediate.weight"]).reshape(64, 32), codes[f"{layer}.intermediate.dense"]
    )
    joined = torch.cat([codes[f"{layer}.attention.self.{part}"] for part in ("query", "key", "value")])
    np.testing.assert_array_equal(unpack(stored[f"model.{layer}.projections.weight"]).reshape(96, 32), joined)
    np.testing.assert_array_equal(
        unpack(stored["model.bert.pooler.dense.weight"]).reshape(32, 32), codes["bert.pooler.dense"]
    )
    assert count_weights(tmp_path / "out" / "model.onnx")[4] >= 2 * 8192
    # Keys and values of the last layer, which are not products of their own, have the trained values too.
    watched = onnx.load(str(tmp_path / "out" / "model.onnx"))
    last = "bert.encoder.layer.2"
    for part in ("key", "value"):
        watched.graph.output.append(
            onnx.helper.make_tensor_value_info(f"model.{last}.{part}", onnx.TensorProto.FLOAT, None)
        )
    _, key, value = ort.InferenceSession(watched.SerializeToString()).run(None, inputs(1, 4, 60))
    weights = dict(model.named_parameters())
    np.testing.assert_allclose(key.reshape(32, 32), weights[f"{last}.attention.self.key.weight"].detach(), atol=1e-6)
    np.testing.assert_allclose(
        value.transpose(0, 2, 1).reshape(32, 32), weights[f"{last}.attention.self.value.weight"].detach(), atol=1e-6
    )
    assert result.manifest.quantization == "int4-weights"
    assert result.parity.note is None
    # Only activations are rounded.
    assert result.parity.rank_correlation > 0.98


@pytest.mark.slow
def test_trained_codes_are_written_unchanged_for_traced_graphs(tmp_path, monkeypatch):
    """The tracer transposes and renames weights, but products still have the names of their layers."""
    _, codes = write_qat(write_causal(tmp_path / "qwen3"), tmp_path / "qat", 4, heads=("score",))
    result = export(tmp_path / "qat", tmp_path / "out", "int4")
    graph = onnx.load(str(tmp_path / "out" / "model.onnx")).graph
    (product,) = (node for node in graph.node if node.name.endswith("layers.1/mlp/up_proj/MatMul"))
    packed = numpy_helper.to_array(initializers(graph)[product.input[1]])
    np.testing.assert_array_equal(unpack(packed).reshape(64, 32), codes["model.layers.1.mlp.up_proj"])
    assert result.parity.note is None

    monkeypatch.setattr(blocks, "_trained_layers", lambda *_: [])
    note = export(tmp_path / "qat", tmp_path / "out", "int4").parity.note
    assert "14 layers" in note
    assert min(codes) in note


def test_trained_int8_codes_are_kept_by_int8_and_rejected_by_int4(trained, tmp_path):
    _, codes = write_qat(trained, tmp_path / "qat", 8)
    result = export(tmp_path / "qat", tmp_path / "out", "int8")
    layer = "bert.encoder.layer.0"
    stored = stored_codes(tmp_path / "out" / "model.onnx")[f"model.{layer}.intermediate.weight"]
    np.testing.assert_array_equal(stored.astype(np.int16).reshape(64, 32) - 128, codes[f"{layer}.intermediate.dense"])
    assert result.manifest.quantization == "int8-weights"
    assert result.parity.note is None
    assert result.parity.rank_correlation > 0.98
    with pytest.raises(InputError, match="int8") as caught:
        export(tmp_path / "qat", tmp_path / "out", "int4")
    assert caught.value.field == "quantize"


def test_a_note_says_that_trained_codes_are_rounded_again(trained, tmp_path, capsys):
    write_qat(trained, tmp_path / "qat", 4)
    assert main(["export", str(tmp_path / "qat"), str(tmp_path / "out"), "--quantize", "int8"]) == 0
    note = load_artifact(tmp_path / "out").manifest.evaluation["parity"]["note"]
    assert "--quantize int4" in note
    assert note in capsys.readouterr().out


@pytest.fixture
def graph(trained, tmp_path):
    write_graph(load_classifier(load_artifact(trained)), tmp_path / "fp32.onnx")
    return tmp_path / "fp32.onnx"


def test_only_products_over_all_tokens_are_quantized_dynamically(graph, tmp_path):
    int8_dynamic(graph, tmp_path / "int8.onnx")
    nodes = onnx.load(str(tmp_path / "int8.onnx")).graph.node
    assert sum(node.op_type == "QAttention" for node in nodes) == 2
    integer = [node.name for node in nodes if node.op_type == "MatMulInteger"]
    assert len(integer) == 2 * 3
    assert not any("layer.2" in name or "classifier" in name for name in integer)


def test_static_ranges_do_not_depend_on_the_batch(graph, tmp_path):
    feeds = [inputs(1, length, 60) for length in (9, 20, 33)]
    int8_static(graph, tmp_path / "static.onnx", feeds)
    kinds = [node.op_type for node in onnx.load(str(tmp_path / "static.onnx")).graph.node]
    assert "DynamicQuantizeLinear" not in kinds
    assert kinds.count("MatMulIntegerToFloat") == 2 * 3
    session = ort.InferenceSession(str(tmp_path / "static.onnx"))
    batch = inputs(4, 33, 60)
    (together,) = session.run(None, batch)
    for row in range(4):
        (alone,) = session.run(None, {name: values[row : row + 1] for name, values in batch.items()})
        np.testing.assert_allclose(alone[0], together[row], atol=1e-5)
    (expected,) = ort.InferenceSession(str(graph)).run(None, feeds[1])
    (got,) = session.run(None, feeds[1])
    assert np.abs(expected - got).max() < 0.2


@pytest.mark.slow
def test_bundled_calibration_texts_are_short_and_long_training_texts():
    memories = [memory.text for example in calibration_examples() for memory in example.memories]
    assert len(memories) > 200
    lengths = np.array([len(text) for text in memories])
    assert 0.2 < np.mean(lengths > 500) < 0.4
    trained = {triplet.positive.text for triplet in read_triplets(bundled_dataset("dated", "train"))}
    assert {example.memories[0].text for example in calibration_examples()} <= trained


def test_static_quantization_needs_calibration_data(graph, tmp_path):
    with pytest.raises(InputError) as caught:
        int8_static(graph, tmp_path / "static.onnx", [])
    assert (caught.value.field, caught.value.code) == ("calibration", "missing")
