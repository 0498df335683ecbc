"""INT8 embedding tables and constants, and helpers to edit ONNX graphs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

Float32s = NDArray[np.float32]
_SMALLEST = 512  # smaller tensors stay in float32: biases, norms, the head


def initializers(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    return {tensor.name: tensor for tensor in graph.initializer}


def is_large_float(tensor: onnx.TensorProto) -> bool:
    return tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims) > 1 and np.prod(tensor.dims) >= _SMALLEST


def to_int8(weight: Float32s, axis: int) -> tuple[NDArray[np.int8], Float32s]:
    """Return codes and scales, one scale per slice along the axis; weight ≈ codes · scales."""
    scales = np.abs(weight).max(axis=axis, keepdims=True) / 127
    scales = np.where(scales > 0, scales, 1).astype(np.float32)
    return np.rint(weight / scales).astype(np.int8), scales


def shrink_tables(model: onnx.ModelProto) -> None:
    """Store embedding tables in INT8 with one scale per row; a lookup fetches the row and its scale."""
    graph = model.graph
    tensors = initializers(graph)
    nodes: list[onnx.NodeProto] = []
    shrunk: set[str] = set()
    for node in graph.node:
        table = tensors.get(node.input[0]) if node.op_type == "Gather" else None
        if table is None or not is_large_float(table):
            nodes.append(node)
            continue
        name, output = table.name, node.output[0]
        if name not in shrunk:
            codes, scales = to_int8(numpy_helper.to_array(table), axis=1)
            graph.initializer.extend(
                [numpy_helper.from_array(codes, name + "_int8"), numpy_helper.from_array(scales, name + "_scale")]
            )
            shrunk.add(name)
        for part in ("int8", "scale"):
            nodes.append(helper.make_node("Gather", [f"{name}_{part}", node.input[1]], [f"{output}_{part}"], axis=0))
        nodes.append(helper.make_node("Cast", [f"{output}_int8"], [f"{output}_wide"], to=onnx.TensorProto.FLOAT))
        nodes.append(helper.make_node("Mul", [f"{output}_wide", f"{output}_scale"], [output]))
    replace_nodes(graph, nodes)
    drop_unused(graph)


def shrink_constants(model: onnx.ModelProto) -> None:
    """Store the other large weights in INT8, widened by Cast and Mul, which ONNX Runtime computes once at load."""
    graph = model.graph
    added: list[onnx.NodeProto] = []
    for tensor in [tensor for tensor in graph.initializer if is_large_float(tensor)]:
        name = tensor.name
        weight = numpy_helper.to_array(tensor)
        codes, scales = to_int8(weight, axis=weight.ndim - 2)
        graph.initializer.remove(tensor)
        graph.initializer.extend(
            [numpy_helper.from_array(codes, name + "_int8"), numpy_helper.from_array(scales, name + "_scale")]
        )
        added.append(helper.make_node("Cast", [name + "_int8"], [name + "_wide"], to=onnx.TensorProto.FLOAT))
        added.append(helper.make_node("Mul", [name + "_wide", name + "_scale"], [name]))
    replace_nodes(graph, [*added, *graph.node])


def drop_unused(graph: onnx.GraphProto) -> None:
    """Remove initializers that no node uses."""
    used = {name for node in graph.node for name in node.input} | {entry.name for entry in graph.output}
    for tensor in [tensor for tensor in graph.initializer if tensor.name not in used]:
        graph.initializer.remove(tensor)


def replace_nodes(graph: onnx.GraphProto, nodes: Iterable[onnx.NodeProto]) -> None:
    new = list(nodes)
    del graph.node[:]
    graph.node.extend(new)


def save_graph(model: onnx.ModelProto, path: Path) -> None:
    """Save without the intermediate shapes, some of which no longer hold after quantization."""
    del model.graph.value_info[:]
    if not any(entry.domain == "com.microsoft" for entry in model.opset_import):
        model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    onnx.save(model, str(path))
