"""From the fp32 graph to a small one. The names are what the manifest's `quantization` says.

- `int8-dynamic`: INT8 products whose input ranges are taken at run time, over all that is in the run: pairs are to be
  run one by one, or their scores would depend on their neighbours.
- `int8-static`: the same with the ranges of a calibration set: any batch gives the same scores.
- `int4-weights`, `int8-weights`: weights in blocks (MatMulNBits), INT8 activations a block of a row: any batch gives
  the same scores. From quantization-aware training, the codes are those that were trained.

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
from mnemorank.export.weights import (
    Floats,
    Grid,
    drop_unused,
    initializers,
    is_large_float,
    pack,
    shrink_constants,
    shrink_tables,
    to_blocks,
)

BLOCK = 32
_PRODUCTS = ("MatMul", "Gemm", "Attention")


def int8_dynamic(source: Path, target: Path) -> None:
    """INT8 products wherever every token passes; what runs once a pair (the last row, the head) keeps fp32 inputs."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(str(source))
    shrink_tables(model)
    onnx.save(model, str(target))
    logging.getLogger().addFilter(_no_preprocessing_advice)
    try:
        quantize_dynamic(
            str(target),
            str(target),
            op_types_to_quantize=list(_PRODUCTS),
            per_channel=True,
            reduce_range=True,
            weight_type=QuantType.QInt8,
            nodes_to_exclude=_runs_once(model),
            extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT, "MatMulConstBOnly": True},
        )
    finally:
        logging.getLogger().removeFilter(_no_preprocessing_advice)
    quantized = onnx.load(str(target))
    shrink_constants(quantized)
    _save(quantized, target)


def int8_static(source: Path, target: Path, calibration: Sequence[Feed]) -> None:
    """Like `int8_dynamic`, with ranges fixed to the widest that the calibration inputs reach.

    :param calibration: inputs of real pairs, run one by one.
    """
    if not calibration:
        raise InputError("calibration: static quantization needs pairs to calibrate on (--dev or --calibration)")
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
    _save(model, target)


def block_weights(source: Path, target: Path, bits: int = 4, grid: Grid | None = None) -> None:
    """Weights in blocks for every matrix product whose inputs divide into them; tables and the rest in INT8.

    :param source: a graph written with `one_node_attention=False`.
    :param grid: that of quantization-aware training: its codes are then what the file holds.
    """
    model = onnx.load(str(source))
    shrink_tables(model)
    graph = model.graph
    tensors = initializers(graph)
    bits, block = (grid.bits, grid.block) if grid else (bits, BLOCK)
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        weight = tensors.get(node.input[1]) if node.op_type in ("MatMul", "Gemm") else None
        if weight is None or len(weight.dims) != 2 or not is_large_float(weight):
            nodes.append(node)
            continue
        is_transposed = any(attribute.name == "transB" and attribute.i for attribute in node.attribute)
        values = numpy_helper.to_array(weight)
        by_output = np.ascontiguousarray(values if is_transposed else values.T)
        outputs, inputs = by_output.shape
        if inputs % block:
            nodes.append(node)
            continue
        name, product = weight.name, node.output[0] + ("_product" if node.op_type == "Gemm" else "")
        codes, scales = to_blocks(by_output, bits, block, grid_scales(grid, name))
        graph.initializer.append(numpy_helper.from_array(pack(codes, bits), name + "_codes"))
        graph.initializer.append(numpy_helper.from_array(scales.ravel(), name + "_scales"))
        settings = {"K": inputs, "N": outputs, "bits": bits, "block_size": block, "accuracy_level": 4}
        operands = [node.input[0], name + "_codes", name + "_scales"]
        nodes.append(
            helper.make_node("MatMulNBits", operands, [product], node.name, domain="com.microsoft", **settings)
        )
        if node.op_type == "Gemm":
            nodes.append(helper.make_node("Add", [product, node.input[2]], list(node.output), node.name + "_bias"))
    del graph.node[:]
    graph.node.extend(nodes)
    drop_unused(graph)
    shrink_constants(model)
    _save(model, target)


def grid_scales(grid: Grid | None, weight: str) -> Floats | None:
    """The trained scales of a weight of the graph, by its name; those of query, key and value stand side by side."""
    if grid is None:
        return None
    layer = weight.removeprefix("model.").removesuffix(".weight")
    parent, _, own = layer.rpartition(".")
    trained = {
        "projections": [f"{parent}.attention.self.{part}" for part in ("query", "key", "value")],
        "query": [f"{parent}.attention.self.query"],
        "attention_output": [f"{parent}.attention.output.dense"],
        "intermediate": [f"{parent}.intermediate.dense"],
        "output": [f"{parent}.output.dense"],
    }.get(own, [layer])
    if not all(name in grid.scales for name in trained):
        return None
    return np.concatenate([grid.scales[name] for name in trained])


def bits_in(path: Path) -> dict[int, int]:
    """How many weights the file holds in each number of bits, for checking that a file is what it says."""
    model = onnx.load(str(path))
    tensors = initializers(model.graph)
    counts: dict[int, int] = {}
    packed = set()
    for node in model.graph.node:
        if node.op_type == "MatMulNBits":
            settings = {attribute.name: attribute.i for attribute in node.attribute}
            packed.update(node.input[1:3])
            counts[settings["bits"]] = counts.get(settings["bits"], 0) + settings["K"] * settings["N"]
    width: dict[int, int] = {onnx.TensorProto.FLOAT: 32, onnx.TensorProto.INT8: 8, onnx.TensorProto.UINT8: 8}
    for name, tensor in tensors.items():
        if name not in packed and tensor.data_type in width and len(tensor.dims) > 1:
            bits = width[tensor.data_type]
            counts[bits] = counts.get(bits, 0) + int(np.prod(tensor.dims))
    return counts


def _runs_once(model: onnx.ModelProto) -> list[str]:
    """Products over the first token alone: the layer that `FirstRowLayer` wrote, all that follows it, and any head."""
    tensors = initializers(model.graph)
    once: list[str] = []
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
            once += [node.name, node.name + "_MatMul"]  # the name that quantize_dynamic gives a Gemm first
    return once


def _ranges(model: onnx.ModelProto, calibration: Sequence[Feed]) -> dict[str, tuple[float, float]]:
    """The widest range of each dynamically quantized input, by the name of its output."""
    watched = onnx.ModelProto()
    watched.CopyFrom(model)
    found = [node for node in model.graph.node if node.op_type == "DynamicQuantizeLinear"]
    for node in found:
        watched.graph.output.append(helper.make_tensor_value_info(node.output[1], onnx.TensorProto.FLOAT, []))
        watched.graph.output.append(helper.make_tensor_value_info(node.output[2], onnx.TensorProto.UINT8, []))
    session = ort.InferenceSession(watched.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [name for node in found for name in node.output[1:]]
    ranges = {node.output[0]: (0.0, 0.0) for node in found}
    for feed in calibration:
        values = dict(zip(names, session.run(names, dict(feed)), strict=True))
        for node in found:
            scale, zero = float(values[node.output[1]]), int(values[node.output[2]])
            low, high = ranges[node.output[0]]
            ranges[node.output[0]] = min(low, -zero * scale), max(high, (255 - zero) * scale)
    return ranges


def _scale_and_zero(low: float, high: float) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    scale = (high - low) / 255 or 1.0
    return np.array(scale, dtype=np.float32), np.array(round(-low / scale), dtype=np.uint8)


def _join_products(graph: onnx.GraphProto) -> None:
    """MatMulInteger, Cast, Mul by both scales (and Add of a bias) as one MatMulIntegerToFloat."""
    tensors = initializers(graph)
    readers: dict[str, list[onnx.NodeProto]] = {}
    makers = {name: node for node in graph.node for name in node.output}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    joined: dict[str, onnx.NodeProto] = {}
    gone: set[str] = set()
    for product in [node for node in graph.node if node.op_type == "MatMulInteger"]:
        cast = _only(readers, product.output[0], "Cast")
        scaled = _only(readers, cast.output[0], "Mul") if cast else None
        both = (
            makers.get(next((name for name in scaled.input if name != cast.output[0]), "")) if scaled and cast else None
        )
        if cast is None or scaled is None or both is None or both.op_type != "Mul":
            continue
        last, inputs = scaled, [product.input[0], product.input[1], *both.input, *product.input[2:]]
        add = _only(readers, scaled.output[0], "Add")
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
        gone.update(node.output[0] for node in (product, cast, scaled, last))
    nodes = [
        joined.get(node.output[0], node)
        for node in graph.node
        if node.output[0] in joined or node.output[0] not in gone
    ]
    used = {name for node in nodes for name in node.input} | {entry.name for entry in graph.output}
    del graph.node[:]
    graph.node.extend(node for node in nodes if any(name in used for name in node.output))
    drop_unused(graph)


def _only(readers: Mapping[str, list[onnx.NodeProto]], name: str, kind: str) -> onnx.NodeProto | None:
    found = readers.get(name, [])
    return found[0] if len(found) == 1 and found[0].op_type == kind else None


def _no_preprocessing_advice(record: logging.LogRecord) -> bool:
    return "pre-processing before quantization" not in record.getMessage()


def _save(model: onnx.ModelProto, path: Path) -> None:
    """Save with the shapes that quantization left behind cleared: some no longer hold."""
    del model.graph.value_info[:]
    if not any(entry.domain == "com.microsoft" for entry in model.opset_import):
        model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    onnx.save(model, str(path))
