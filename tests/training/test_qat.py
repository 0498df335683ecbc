from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

from mnemorank import Model
from mnemorank.artifact.templates import templates
from mnemorank.data.formats import read_lists
from mnemorank.errors import InputError
from mnemorank.scorers.encoding import InputWriter
from mnemorank.training.base_model import HEADS, load_base
from mnemorank.training.evaluation import evaluate_model, wrap_network
from mnemorank.training.network import build_network
from mnemorank.training.qat import SCALES_FILE, DynamicLinear, finish_qat, prepare_qat
from mnemorank.training.recipe import QatSettings, parse_recipe
from mnemorank.training.run import draft_manifest, train


@pytest.fixture
def layers():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 4))


@pytest.mark.parametrize(("weights", "codes"), [("int4", 16), ("int8", 256)])
def test_weights_are_multiples_of_their_scales(layers, weights, codes):
    qat = QatSettings(weights=weights, group_size=16)
    before = layers[0].weight.detach().clone()
    assert prepare_qat(layers, qat) == ["0", "2"]
    trained = finish_qat(layers, qat)

    assert type(layers[0]) is nn.Linear
    assert trained.bits == (4 if weights == "int4" else 8)
    for name, scale in trained.scales.items():
        weight = layers.get_submodule(name).weight.detach()
        steps = weight / scale.repeat_interleave(16, dim=1)
        assert torch.equal(steps.round() * scale.repeat_interleave(16, dim=1), weight)
        assert steps.round().min() >= -codes // 2
        assert steps.round().max() <= codes // 2 - 1
    assert (layers[0].weight - before).abs().max() <= trained.scales["0"].max() * 0.51


def test_the_forward_pass_rounds_and_gradients_pass(layers):
    inputs = torch.randn(5, 64)
    plain = layers(inputs)
    prepare_qat(layers, QatSettings(group_size=16))
    rounded = layers(inputs)

    assert 0 < (rounded - plain).abs().max() < 0.5
    rounded.sum().backward()
    assert layers[0].weight.grad.abs().sum() > 0


def test_layers_can_be_skipped(layers):
    assert prepare_qat(layers, QatSettings(group_size=16), skip=("2",)) == ["0"]


def test_groups_must_divide_the_inputs_of_every_layer():
    with pytest.raises(InputError) as caught:
        prepare_qat(nn.Sequential(nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 4)), QatSettings(group_size=32))
    assert caught.value.field == "qat.group_size"


def test_a_trained_model_has_int4_weights(tables, tmp_path, dev_lists):
    tables["qat"] = {"weights": "int4", "group_size": 32}
    tables["loss"] = [{"name": "margin"}]
    tables["train"] |= {"epochs": 4, "learning_rate": 2e-3}
    result = train(parse_recipe(tables), tmp_path / "out")
    saved, scales = load_file(tmp_path / "out" / "model.safetensors"), load_file(tmp_path / "out" / SCALES_FILE)

    assert result.manifest.quantization == "qat-int4"
    assert SCALES_FILE in result.manifest.files
    with safe_open(tmp_path / "out" / SCALES_FILE, "pt") as file:
        assert file.metadata() == {"bits": "4", "group_size": "32"}
    assert "bert.encoder.layer.0.attention.self.query" in scales
    assert not any("classifier" in name for name in scales)
    for name, scale in scales.items():
        codes = saved[f"{name}.weight"] / scale.repeat_interleave(32, dim=1)
        assert torch.allclose(codes, codes.round(), atol=1e-4)
        assert len(codes.round().unique()) <= 16  # four bits, not eight
    assert result.results.to_dict()["map"]["trained"][0] > 0.95
    model = Model.load(tmp_path / "out", probe=False)
    tops = [float(np.array(e.labels)[np.argmax(model.score(e.query, e.memories).raw)]) for e in read_lists(dev_lists)]
    assert np.mean(tops) == result.results.to_dict()["hit@1"]["trained"][0]


def test_the_base_is_evaluated_before_its_weights_are_rounded(tables, tmp_path):
    tables["train"]["steps"] = 1
    plain = train(parse_recipe(tables), tmp_path / "plain").results.base["map"]
    tables["qat"] = {"weights": "int4", "group_size": 32}
    recipe = parse_recipe(tables)
    assert np.array_equal(train(recipe, tmp_path / "rounding").results.base["map"], plain)

    base = load_base(recipe.model, recipe.seed)
    prepare_qat(base.model, QatSettings(weights="int4", group_size=32), skip=HEADS)
    manifest = draft_manifest(recipe, base)
    network = build_network(base.model, base.tokenizer, templates["pair"])
    rounding = wrap_network(network, InputWriter(base.inference_tokenizer(), manifest), manifest)
    dev = list(read_lists(recipe.dev.data[0].path))
    assert not np.array_equal(evaluate_model(rounding, dev).values["map"], plain)


def quantized_product(weight: np.ndarray, folder) -> onnxruntime.InferenceSession:
    """x · weight in ONNX, quantized as by the export."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", weight.shape[0]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", weight.shape[1]])],
        [numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, folder / "plain.onnx")
    quantize_dynamic(
        folder / "plain.onnx",
        folder / "int8.onnx",
        per_channel=True,
        reduce_range=True,
        weight_type=QuantType.QInt8,
        extra_options={"MatMulConstBOnly": True},
    )
    return onnxruntime.InferenceSession(folder / "int8.onnx", providers=["CPUExecutionProvider"])


def test_dynamic_rounding_matches_onnx_runtime(tmp_path):
    torch.manual_seed(0)
    layer = nn.Linear(32, 24, bias=False)
    pairs = torch.randn(3, 7, 32) * torch.tensor([0.1, 1.0, 20.0])[:, None, None]
    session = quantized_product(layer.weight.detach().numpy().T.copy(), tmp_path)
    with torch.no_grad():
        rounded, plain = DynamicLinear.wrap(layer)(pairs).numpy(), layer(pairs).numpy()
    for pair, ours, exact in zip(pairs.numpy(), rounded, plain, strict=True):
        (expected,) = session.run(None, {"x": pair})
        assert np.abs(ours - expected).max() < 0.1 * np.abs(exact - expected).max()


def test_dynamic_rounding_leaves_the_weights_unrounded():
    layers = nn.Sequential(nn.Linear(16, 8), nn.GELU(), nn.Linear(8, 1))
    before = layers[0].weight.detach().clone()
    qat = QatSettings(weights="int8-dynamic")
    assert prepare_qat(layers, qat, skip=("2",)) == ["0"]
    assert isinstance(layers[0], DynamicLinear)
    layers(torch.randn(2, 5, 16)).sum().backward()
    assert layers[0].weight.grad.abs().sum() > 0
    assert finish_qat(layers, qat) is None
    assert type(layers[0]) is nn.Linear
    assert torch.equal(layers[0].weight, before)


@pytest.mark.parametrize("inputs", [torch.zeros(2, 3, 16), torch.full((2, 3, 16), 5.0), -torch.ones(2, 16)])
def test_constant_inputs_stay_finite(inputs):
    layer = nn.Linear(16, 4)
    torch.testing.assert_close(DynamicLinear.wrap(layer)(inputs), layer(inputs), atol=0.1, rtol=0.1)
