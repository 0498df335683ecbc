"""INT8 quantization of the fp32 graph. The names are those of the manifest's `quantization`.

- `int8-dynamic`: the ranges of inputs are computed at run time, over the whole batch. Pairs must run one by one, or
  their scores would depend on each other.
- `int8-static`: the ranges come from a calibration set, so that scores do not depend on the batch.
- `int4-weights`, `int8-weights`: see `mnemorank.export.blocks`.

Weights have 7 bits in the INT8 products: eight by eight overflow the 16-bit sums of processors without VNNI.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from mnemorank.errors import InputError
from mnemorank.export.graph import Feed
from mnemorank.export.int8_storage import drop_unused, initializers, save_graph, shrink_constants, shrink_tables

_PRODUCTS = ("MatMul", "Gemm", "Attention")


def int8_dynamic(source: Path, target: Path) -> None:
    """Quantize the products that run for every token; those that run once per pair (last row, head) stay in fp32."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(str(source))
    shrink_tables(model)
    onnx.save(model, str(target))
    logging.getLogger().addFilter(_is_not_preprocessing_advice)
    try:
        quantize_dynamic(
            str(target),
            str(target),
            op_types_to_quantize=list(_PRODUCTS),
            per_channel=True,
            reduce_range=True,
            weight_type=QuantType.QInt8,
            nodes_to_exclude=_once_per_pair(model),
            extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT, "MatMulConstBOnly": True},
        )
    finally:
        logging.getLogger().removeFilter(_is_not_preprocessing_advice)
    quantized = onnx.load(str(target))
    shrink_constants(quantized)
    save_graph(quantized, target)


def int8_static(source: Path, target: Path, calibration: Sequence[Feed]) -> None:
    """Like `int8_dynamic`, with ranges fixed to the widest in the calibration data.

    :param calibration: inputs of real pairs, one pair each.
    """
    if not calibration:
        raise InputError("static quantization needs examples", field="calibration", code="missing")
    int8_dynamic(source, target)
    model = onnx.load(str(target))
    ranges = _ranges(model, calibration)
    constants: list[onnx.TensorProto] = []
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        if node.op_type != "DynamicQuantizeLinear":
            nodes.append(node)
            continue
        scale, zero = _scale_and_zero(*ranges[node.output[0]])
        constants.append(numpy_helper.from_array(scale, node.output[1]))
        constants.append(numpy_helper.from_array(zero, node.output[2]))
        nodes.append(helper.make_node("QuantizeLinear", [node.input[0], *node.output[1:]], [node.output[0]], node.name))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(constants)
    _join_products(model.graph)
    save_graph(model, target)


def _once_per_pair(model: onnx.ModelProto) -> list[str]:
    """Products over the first token only: the layer written by `FirstRowLayer`, everything after it, and any head."""
    tensors = initializers(model.graph)
    names: list[str] = []
    after: set[str] = set()
    layers = {
        node.name.rpartition("/")[0] + "/"
        for node in model.graph.node
        if node.op_type == "MatMul" and node.input[1] in tensors and len(tensors[node.input[1]].dims) > 2
    }
    for node in model.graph.node:
        is_head = any(
            name in tensors and len(tensors[name].dims) == 2 and min(tensors[name].dims) <= 2 for name in node.input
        )
        if node.name.startswith(tuple(layers)) or any(name in after for name in node.input):
            after.update(node.output)
        elif not is_head:
            continue
        if node.op_type in _PRODUCTS:
            names += [node.name, node.name + "_MatMul"]  # the name that quantize_dynamic gives to a Gemm
    return names


def _ranges(model: onnx.ModelProto, calibration: Sequence[Feed]) -> dict[str, tuple[float, float]]:
    """The widest range of each dynamically quantized input, by the name of the quantized output."""
    watched = onnx.ModelProto()
    watched.CopyFrom(model)
    quantizers = [node for node in model.graph.node if node.op_type == "DynamicQuantizeLinear"]
    for node in quantizers:
        watched.graph.output.append(helper.make_tensor_value_info(node.output[1], onnx.TensorProto.FLOAT, []))
        watched.graph.output.append(helper.make_tensor_value_info(node.output[2], onnx.TensorProto.UINT8, []))
    session = ort.InferenceSession(watched.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [name for node in quantizers for name in node.output[1:]]
    ranges = {node.output[0]: (0.0, 0.0) for node in quantizers}
    for feed in calibration:
        values = dict(zip(names, session.run(names, dict(feed)), strict=True))
        for node in quantizers:
            scale, zero = float(values[node.output[1]]), int(values[node.output[2]])
            low, high = ranges[node.output[0]]
            ranges[node.output[0]] = min(low, -zero * scale), max(high, (255 - zero) * scale)
    return ranges


def _scale_and_zero(low: float, high: float) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    scale = (high - low) / 255 or 1.0
    return np.array(scale, dtype=np.float32), np.array(round(-low / scale), dtype=np.uint8)


def _join_products(graph: onnx.GraphProto) -> None:
    """Join MatMulInteger, Cast, Mul by both scales (and Add of a bias) into one MatMulIntegerToFloat."""
    tensors = initializers(graph)
    consumers: dict[str, list[onnx.NodeProto]] = {}
    producers = {name: node for node in graph.node for name in node.output}
    for node in graph.node:
        for name in node.input:
            consumers.setdefault(name, []).append(node)
    joined: dict[str, onnx.NodeProto] = {}
    removed: set[str] = set()
    for product in [node for node in graph.node if node.op_type == "MatMulInteger"]:
        cast = _only_consumer(consumers, product.output[0], "Cast")
        scaled = _only_consumer(consumers, cast.output[0], "Mul") if cast else None
        both = (
            producers.get(next((name for name in scaled.input if name != cast.output[0]), ""))
            if scaled and cast
            else None
        )
        if cast is None or scaled is None or both is None or both.op_type != "Mul":
            continue
        last, inputs = scaled, [product.input[0], product.input[1], *both.input, *product.input[2:]]
        add = _only_consumer(consumers, scaled.output[0], "Add")
        bias = (
            next((name for name in add.input if name in tensors and len(tensors[name].dims) == 1), None)
            if add
            else None
        )
        if add is not None and bias is not None:
            last, inputs = add, [*inputs, bias]
        joined[last.output[0]] = helper.make_node(
            "MatMulIntegerToFloat", inputs, list(last.output), product.name + "_float", domain="com.microsoft"
        )
        removed.update(node.output[0] for node in (product, cast, scaled, last))
    nodes = [
        joined.get(node.output[0], node)
        for node in graph.node
        if node.output[0] in joined or node.output[0] not in removed
    ]
    used = {name for node in nodes for name in node.input} | {entry.name for entry in graph.output}
    del graph.node[:]
    graph.node.extend(node for node in nodes if any(name in used for name in node.output))
    drop_unused(graph)


def _only_consumer(consumers: Mapping[str, list[onnx.NodeProto]], name: str, op_type: str) -> onnx.NodeProto | None:
    nodes = consumers.get(name, [])
    return nodes[0] if len(nodes) == 1 and nodes[0].op_type == op_type else None


def _is_not_preprocessing_advice(record: logging.LogRecord) -> bool:
    return "pre-processing before quantization" not in record.getMessage()
