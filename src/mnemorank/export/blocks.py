"""Weights in blocks of codes that share a scale (MatMulNBits): INT4, or the bits of quantization-aware training.

Activations are rounded to INT8 per block of a row, so that scores do not depend on the batch.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from mnemorank.export.int8_storage import (
    Float32s,
    drop_unused,
    initializers,
    is_large_float,
    replace_nodes,
    save_graph,
    shrink_constants,
    shrink_tables,
)
from mnemorank.training.qat import WeightScales

BLOCK = 32


def quantize_in_blocks(source: Path, target: Path, bits: int = 4, trained: WeightScales | None = None) -> set[str]:
    """Quantize every matrix product whose inputs divide into blocks; embedding tables and the rest become INT8.

    Return the layers trained for quantization that were not found in the graph and are rounded again.

    :param source: a graph written with `fuse_projections=False`.
    :param trained: the scales of quantization-aware training; the file then holds exactly the trained codes.
    """
    model = onnx.load(str(source))
    shrink_tables(model)
    graph = model.graph
    tensors = initializers(graph)
    bits, block = (trained.bits, trained.group_size) if trained else (bits, BLOCK)
    scales_by_layer = {name: scales.numpy() for name, scales in trained.scales.items()} if trained else {}
    lost = set(scales_by_layer)
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        weight = tensors.get(node.input[1]) if node.op_type in ("MatMul", "Gemm") else None
        layers = _trained_layers(scales_by_layer, weight.name, node.name) if trained and weight is not None else []
        lost.difference_update(layers)
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
        layer_scales = np.concatenate([scales_by_layer[layer] for layer in layers]) if layers else None
        codes, scales = to_blocks(by_output, bits, block, layer_scales)
        graph.initializer.append(numpy_helper.from_array(pack(codes, bits), name + "_codes"))
        graph.initializer.append(numpy_helper.from_array(scales.ravel(), name + "_scales"))
        attributes = {"K": inputs, "N": outputs, "bits": bits, "block_size": block, "accuracy_level": 4}
        operands = [node.input[0], name + "_codes", name + "_scales"]
        nodes.append(
            helper.make_node("MatMulNBits", operands, [product], node.name, domain="com.microsoft", **attributes)
        )
        if node.op_type == "Gemm":
            nodes.append(helper.make_node("Add", [product, node.input[2]], list(node.output), node.name + "_bias"))
    replace_nodes(graph, nodes)
    drop_unused(graph)
    lost -= _keep_trained_keys_and_values(graph, bits, block, scales_by_layer)
    shrink_constants(model)
    save_graph(model, target)
    return lost


def to_blocks(
    weight: Float32s, bits: int, block: int, scales: Float32s | None = None
) -> tuple[NDArray[np.int8], Float32s]:
    """Return signed codes of shape (outputs, blocks, block) and a scale per block of inputs.

    :param weight: of shape (outputs, inputs).
    :param scales: of shape (outputs, blocks), as used in training; by default the best of a few for each block.
    """
    blocks = weight.reshape(len(weight), -1, block)
    if scales is None:
        scales = _best_scales(blocks, bits)
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    codes = np.clip(np.rint(blocks / scales[..., None]), low, high)
    return codes.astype(np.int8), scales.astype(np.float32)


def pack(codes: NDArray[np.int8], bits: int) -> NDArray[np.uint8]:
    """Return unsigned codes as MatMulNBits reads them without a zero point; two INT4 codes per byte, low bits first."""
    shifted = (codes.astype(np.int16) + 2 ** (bits - 1)).astype(np.uint8)
    return np.ascontiguousarray(shifted if bits == 8 else shifted[..., 0::2] | (shifted[..., 1::2] << 4))


def _best_scales(blocks: Float32s, bits: int) -> Float32s:
    """For each block, the scale with the smallest squared error among some that clip the largest weights a little."""
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    largest = np.abs(blocks).max(axis=-1)
    largest = np.where(largest > 0, largest, 1)
    best, best_error = largest / high, np.full(largest.shape, np.inf)
    for share in (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, high / -low):
        scales = largest * share / high
        codes = np.clip(np.rint(blocks / scales[..., None]), low, high)
        error = np.square(codes * scales[..., None] - blocks).sum(axis=-1)
        is_better = error < best_error
        best, best_error = np.where(is_better, scales, best), np.where(is_better, error, best_error)
    return np.asarray(best, dtype=np.float32)


def _keep_trained_keys_and_values(
    graph: onnx.GraphProto, bits: int, block: int, scales_by_layer: dict[str, Float32s]
) -> set[str]:
    """Store the trained codes of keys and values of the last layer, which are not separate matrix products.

    They are widened to float when the model is loaded. Return the names of these layers.
    """
    nodes: list[onnx.NodeProto] = []
    kept: set[str] = set()
    for tensor in [tensor for tensor in graph.initializer if len(tensor.dims) == 3]:
        name, layer = tensor.name, tensor.name.removeprefix("model.")
        parent, _, part = layer.rpartition(".")
        scales = scales_by_layer.get(f"{parent}.attention.self.{part}")
        if scales is None:
            continue
        kept.add(f"{parent}.attention.self.{part}")
        weight = numpy_helper.to_array(tensor)
        by_head = weight if part == "key" else weight.transpose(0, 2, 1)
        shape = np.array(by_head.shape, dtype=np.int64)
        codes, scales = to_blocks(by_head.reshape(-1, shape[-1]), bits, block, scales)
        graph.initializer.remove(tensor)
        for suffix, values in (("codes", codes), ("scales", scales[..., None]), ("shape", shape)):
            graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(values), f"{name}_{suffix}"))
        wide, scaled, shaped = f"{name}_wide", f"{name}_scaled", name if part == "key" else f"{name}_shaped"
        nodes.append(helper.make_node("Cast", [f"{name}_codes"], [wide], to=onnx.TensorProto.FLOAT))
        nodes.append(helper.make_node("Mul", [wide, f"{name}_scales"], [scaled]))
        nodes.append(helper.make_node("Reshape", [scaled, f"{name}_shape"], [shaped]))
        if part != "key":
            nodes.append(helper.make_node("Transpose", [shaped], [name], perm=[0, 2, 1]))
    replace_nodes(graph, [*nodes, *graph.node])
    return kept


def _trained_layers(scales_by_layer: dict[str, Float32s], weight: str, node: str) -> list[str]:
    """The trained layers that a weight of the graph consists of; query, key and value are stored side by side.

    :param weight: its name; the tracer keeps the layer's name only for weights that it does not transpose.
    :param node: the name of the product, which always contains the layer's: `/model/encoder/dense/MatMul`.
    """
    layer = weight.removeprefix("model.").removesuffix(".weight")
    parent, _, part = layer.rpartition(".")
    by_weight = {
        "projections": [f"{parent}.attention.self.{part}" for part in ("query", "key", "value")],
        "query": [f"{parent}.attention.self.query"],
        "attention_output": [f"{parent}.attention.output.dense"],
        "intermediate": [f"{parent}.intermediate.dense"],
        "output": [f"{parent}.output.dense"],
    }.get(part, [layer])
    by_node = [".".join(node.split("/")[2:-1])]
    return next((names for names in (by_weight, by_node) if all(name in scales_by_layer for name in names)), [])
