"""Weights in fewer bits: INT8 tables, INT8 constants that are widened at load, and blocks of codes for MatMulNBits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

Float32s = NDArray[np.float32]
SMALLEST = 512  # tensors below stay as they are: biases, norms, the head


def initializers(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    return {tensor.name: tensor for tensor in graph.initializer}


def is_large_float(tensor: onnx.TensorProto) -> bool:
    return tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims) > 1 and np.prod(tensor.dims) >= SMALLEST


def to_int8(weight: Float32s, axis: int) -> tuple[NDArray[np.int8], Float32s]:
    """Codes and scales, with a scale for each slice along the other axes; weight ≈ codes · scales."""
    scales = np.abs(weight).max(axis=axis, keepdims=True) / 127
    scales = np.where(scales > 0, scales, 1).astype(np.float32)
    return np.rint(weight / scales).astype(np.int8), scales


def shrink_tables(model: onnx.ModelProto) -> None:
    """Embedding tables in INT8 with a scale a row; a lookup fetches row and scale."""
    graph = model.graph
    tensors = initializers(graph)
    nodes: list[onnx.NodeProto] = []
    done: set[str] = set()
    for node in graph.node:
        table = tensors.get(node.input[0]) if node.op_type == "Gather" else None
        if table is None or not is_large_float(table):
            nodes.append(node)
            continue
        name, output = table.name, node.output[0]
        if name not in done:
            codes, scales = to_int8(numpy_helper.to_array(table), axis=1)
            graph.initializer.extend(
                [numpy_helper.from_array(codes, name + "_int8"), numpy_helper.from_array(scales, name + "_scale")]
            )
            done.add(name)
        for part in ("int8", "scale"):
            nodes.append(helper.make_node("Gather", [f"{name}_{part}", node.input[1]], [f"{output}_{part}"], axis=0))
        nodes.append(helper.make_node("Cast", [f"{output}_int8"], [f"{output}_wide"], to=onnx.TensorProto.FLOAT))
        nodes.append(helper.make_node("Mul", [f"{output}_wide", f"{output}_scale"], [output]))
    _replace_nodes(graph, nodes)
    drop_unused(graph)


def shrink_constants(model: onnx.ModelProto) -> None:
    """The other large weights in INT8, widened by Cast and Mul, which ONNX Runtime works out once, at load."""
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
    _replace_nodes(graph, [*added, *graph.node])


@dataclass(frozen=True, slots=True)
class Grid:
    """The codes that quantization-aware training settled on: weight = code · scale.

    :param scales: the layer's name → (outputs, groups of inputs).
    """

    bits: int
    block: int
    scales: Mapping[str, Float32s]

    @classmethod
    def read(cls, path: Path) -> Grid:
        """Read the `qat.safetensors` that training leaves beside the weights."""
        from safetensors import safe_open

        with safe_open(str(path), framework="numpy") as stored:
            settings = stored.metadata()
            scales = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        return cls(int(settings["bits"]), int(settings["group_size"]), scales)


def to_blocks(
    weight: Float32s, bits: int, block: int, scales: Float32s | None = None
) -> tuple[NDArray[np.int8], Float32s]:
    """Signed codes (outputs, blocks, block) and a scale a block of inputs.

    :param weight: (outputs, inputs).
    :param scales: (outputs, blocks), the ranges that training used; by default the best of a few for each block.
    """
    blocks = weight.reshape(len(weight), -1, block)
    if scales is None:
        scales = _best_scales(blocks, bits)
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    codes = np.clip(np.rint(blocks / scales[..., None]), low, high)
    return codes.astype(np.int8), scales.astype(np.float32)


def _best_scales(blocks: Float32s, bits: int) -> Float32s:
    """For each block the scale with the smallest squared error, of some that clip the largest weights a little."""
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    largest = np.abs(blocks).max(axis=-1)
    largest = np.where(largest > 0, largest, 1)
    best, error = largest / high, np.full(largest.shape, np.inf)
    for share in (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, high / -low):
        scales = largest * share / high
        codes = np.clip(np.rint(blocks / scales[..., None]), low, high)
        found = np.square(codes * scales[..., None] - blocks).sum(axis=-1)
        is_better = found < error
        best, error = np.where(is_better, scales, best), np.where(is_better, found, error)
    return np.asarray(best, dtype=np.float32)


def pack(codes: NDArray[np.int8], bits: int) -> NDArray[np.uint8]:
    """Codes counted from the middle, as MatMulNBits does without a zero point; INT4 two a byte, the earlier one low."""
    shifted = (codes.astype(np.int16) + 2 ** (bits - 1)).astype(np.uint8)
    return np.ascontiguousarray(shifted if bits == 8 else shifted[..., 0::2] | (shifted[..., 1::2] << 4))


def drop_unused(graph: onnx.GraphProto) -> None:
    """Remove initializers that no node reads."""
    used = {name for node in graph.node for name in node.input} | {entry.name for entry in graph.output}
    for tensor in [tensor for tensor in graph.initializer if tensor.name not in used]:
        graph.initializer.remove(tensor)


def _replace_nodes(graph: onnx.GraphProto, nodes: Iterable[onnx.NodeProto]) -> None:
    kept = list(nodes)
    del graph.node[:]
    graph.node.extend(kept)


def save_graph(model: onnx.ModelProto, path: Path) -> None:
    """Save with the shapes that quantization left behind cleared: some no longer hold."""
    del model.graph.value_info[:]
    if not any(entry.domain == "com.microsoft" for entry in model.opset_import):
        model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    onnx.save(model, str(path))
