import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic
from torch import nn

from mnemorank.training.qat import DynamicLinear, convert, prepare
from mnemorank.training.recipe import Qat


def quantized_product(weight: np.ndarray, folder) -> onnxruntime.InferenceSession:
    """x · weight in ONNX, quantized as the export does."""
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


def test_it_rounds_as_the_file_does(tmp_path):
    torch.manual_seed(0)
    layer = nn.Linear(32, 24, bias=False)
    pairs = torch.randn(3, 7, 32) * torch.tensor([0.1, 1.0, 20.0])[:, None, None]
    session = quantized_product(layer.weight.detach().numpy().T.copy(), tmp_path)
    with torch.no_grad():
        rounded, plain = DynamicLinear.of(layer)(pairs).numpy(), layer(pairs).numpy()
    for pair, ours, exact in zip(pairs.numpy(), rounded, plain, strict=True):
        (file,) = session.run(None, {"x": pair})
        assert np.abs(ours - file).max() < 0.1 * np.abs(exact - file).max()


def test_gradients_pass_and_the_weights_stay_fine():
    layers = nn.Sequential(nn.Linear(16, 8), nn.GELU(), nn.Linear(8, 1))
    before = layers[0].weight.detach().clone()
    qat = Qat("int8-dynamic")
    assert prepare(layers, qat, skip=("2",)) == ["0"]
    assert isinstance(layers[0], DynamicLinear)
    layers(torch.randn(2, 5, 16)).sum().backward()
    assert layers[0].weight.grad.abs().sum() > 0
    assert convert(layers, qat) is None
    assert type(layers[0]) is nn.Linear
    assert torch.equal(layers[0].weight, before)


@pytest.mark.parametrize("inputs", [torch.zeros(2, 3, 16), torch.full((2, 3, 16), 5.0), -torch.ones(2, 16)])
def test_constant_inputs_stay_finite(inputs):
    layer = nn.Linear(16, 4)
    torch.testing.assert_close(DynamicLinear.of(layer)(inputs), layer(inputs), atol=0.1, rtol=0.1)
