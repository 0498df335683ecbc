"""Weights in blocks of codes that share a scale (MatMulNBits): INT4, or whatever quantization-aware training used.

Activations are rounded to INT8 a block of a row, so that any batch gives the same scores.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from mnemorank.export.graph import complete_inputs
from mnemorank.export.weights import (
    Grid,
    drop_unused,
    initializers,
    is_large_float,
    pack,
    save_graph,
    shrink_constants,
    shrink_tables,
    to_blocks,
)

BLOCK = 32


def block_weights(source: Path, target: Path, bits: int = 4, grid: Grid | None = None) -> set[str]:
    """Weights in blocks for every matrix product whose inputs divide into them; tables and the rest in INT8.

    Returns the trained layers that were not found in the graph and are rounded anew therefore.

    :param source: a graph written with `one_node_attention=False`.
    :param grid: that of quantization-aware training: its codes are then what the file holds.
    """
    model = onnx.load(str(source))
    shrink_tables(model)
    graph = model.graph
    tensors = initializers(graph)
    bits, block = (grid.bits, grid.block) if grid else (bits, BLOCK)
    lost = set(grid.scales) if grid else set()
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        weight = tensors.get(node.input[1]) if node.op_type in ("MatMul", "Gemm") else None
        layers = trained_layers(grid, weight.name, node.name) if grid and weight is not None else []
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
        trained = np.concatenate([grid.scales[layer] for layer in layers]) if grid and layers else None
        codes, scales = to_blocks(by_output, bits, block, trained)
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
    if grid is not None:
        lost -= _keep_codes(graph, grid)
    shrink_constants(model)
    save_graph(model, target)
    return lost


def _keep_codes(graph: onnx.GraphProto, grid: Grid) -> set[str]:
    """Keys and values of the last layer are no products of their own; their trained codes are widened at load.

    Returns the layers whose codes were kept.
    """
    nodes: list[onnx.NodeProto] = []
    kept: set[str] = set()
    for tensor in [tensor for tensor in graph.initializer if len(tensor.dims) == 3]:
        name, layer = tensor.name, tensor.name.removeprefix("model.")
        parent, _, part = layer.rpartition(".")
        scales = grid.scales.get(f"{parent}.attention.self.{part}")
        if scales is None:
            continue
        kept.add(f"{parent}.attention.self.{part}")
        weight = numpy_helper.to_array(tensor)
        by_head = weight if part == "key" else weight.transpose(0, 2, 1)
        shape = np.array(by_head.shape, dtype=np.int64)
        codes, scales = to_blocks(by_head.reshape(-1, shape[-1]), grid.bits, grid.block, scales)
        graph.initializer.remove(tensor)
        for suffix, values in (("codes", codes), ("scales", scales[..., None]), ("shape", shape)):
            graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(values), f"{name}_{suffix}"))
        wide, scaled, shaped = f"{name}_wide", f"{name}_scaled", name if part == "key" else f"{name}_shaped"
        nodes.append(helper.make_node("Cast", [f"{name}_codes"], [wide], to=onnx.TensorProto.FLOAT))
        nodes.append(helper.make_node("Mul", [wide, f"{name}_scales"], [scaled]))
        nodes.append(helper.make_node("Reshape", [scaled, f"{name}_shape"], [shaped]))
        if part != "key":
            nodes.append(helper.make_node("Transpose", [shaped], [name], perm=[0, 2, 1]))
    rest = list(graph.node)
    del graph.node[:]
    graph.node.extend([*nodes, *rest])
    return kept


def trained_layers(grid: Grid, weight: str, node: str) -> list[str]:
    """The trained layers of a weight of the graph; query, key and value stand side by side in one.

    :param weight: its name; the tracer names only those after their layer that it does not transpose.
    :param node: the name of the product, which always has the layer's in it: `/model/encoder/dense/MatMul`.
    """
    layer = weight.removeprefix("model.").removesuffix(".weight")
    parent, _, own = layer.rpartition(".")
    trained = {
        "projections": [f"{parent}.attention.self.{part}" for part in ("query", "key", "value")],
        "query": [f"{parent}.attention.self.query"],
        "attention_output": [f"{parent}.attention.output.dense"],
        "intermediate": [f"{parent}.intermediate.dense"],
        "output": [f"{parent}.output.dense"],
    }.get(own, [layer])
    by_node = [".".join(node.split("/")[2:-1])]
    return next((names for names in (trained, by_node) if all(name in grid.scales for name in names)), [])


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


_KINDS = {"deberta-v2": "bert", "mpnet": "bert", "distilbert": "bert"}


def fuse(path: Path, config: Any) -> dict[str, int]:
    """Fuse what the optimizer recognises, in place; returns how many of each fused node it made.

    :param config: the model's Hugging Face configuration.
    """
    from onnxruntime.transformers.fusion_options import FusionOptions
    from onnxruntime.transformers.optimizer import optimize_model

    kind = _KINDS.get(config.model_type)
    if kind is None:
        return {}
    options = FusionOptions(kind)
    # Its pattern loses the attention mask in graphs of transformers 5.
    options.enable_embed_layer_norm = False
    options.enable_skip_layer_norm = False
    logging.getLogger("onnxruntime.transformers").setLevel(logging.ERROR)
    optimizer = optimize_model(
        str(path),
        model_type=kind,
        num_heads=config.num_attention_heads,
        hidden_size=config.hidden_size,
        optimization_options=options,
        opt_level=0,
    )
    optimizer.save_model_to_file(str(path))
    complete_inputs(path)
    return {name: count for name, count in optimizer.get_fused_operator_statistics().items() if count}
