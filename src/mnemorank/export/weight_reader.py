"""Read the weights of a BERT graph in ONNX, in order of use and dequantized to float32."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mnemorank.errors import ArtifactError

Float32s = NDArray[np.float32]
_TABLES = {
    "word_embeddings": "vocab_size",
    "position_embeddings": "max_position_embeddings",
    "token_type_embeddings": "type_vocab_size",
}
_QUANTIZED = "_quantized"  # suffix that onnxruntime's quantizer adds to a weight, along with _scale and _zero_point


@dataclass(slots=True)
class GraphWeights:
    """The weights of a graph, in order of use.

    :param tables: embedding tables by name.
    :param weights: of matrix products, of shape (inputs, outputs), or (heads, …) for products per head.
    :param norms: weight and bias of each layer norm.
    """

    tables: dict[str, Float32s] = field(default_factory=dict)
    weights: list[Float32s] = field(default_factory=list)
    biases: list[Float32s] = field(default_factory=list)
    norms: list[tuple[Float32s, Float32s]] = field(default_factory=list)


def read_weights(path: Path, config: dict[str, Any]) -> GraphWeights:
    """Read the weights of a graph.

    :param config: the Hugging Face configuration, for the sizes of the embedding tables.
    """
    import onnx

    graph = onnx.load(str(path)).graph
    reader = _GraphReader(graph, config)
    for node in graph.node:
        reader.read(node)
    missing = set(_TABLES) - set(reader.weights.tables)
    if missing:
        raise ArtifactError(f"{path}: {min(missing)} was not found in the graph")
    return reader.weights


class _GraphReader:
    """Collects weights node by node."""

    def __init__(self, graph: Any, config: dict[str, Any]) -> None:
        from onnx import numpy_helper

        self.weights = GraphWeights()
        self._config = config
        self._constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
        self._input_scales: dict[str, Float32s] = {}
        self._numpy = numpy_helper.to_array

    def read(self, node: Any) -> None:
        if node.op_type in _METHODS:
            getattr(self, f"_read_{_METHODS[node.op_type]}")(node)

    def _read_constant(self, node: Any) -> None:
        value = next((a.t for a in node.attribute if a.name == "value"), None)
        if value is not None:
            self._constants[node.output[0]] = self._numpy(value)

    def _read_cast_or_mul(self, node: Any) -> None:
        """Fold Cast and Mul of constants: weights that are widened at load."""
        values = [self._constants[name] for name in node.input if name in self._constants]
        if len(values) < len(node.input):
            self._note_input_scale(node, values)
            return
        if node.op_type == "Cast":
            self._constants[node.output[0]] = np.asarray(values[0], dtype=np.float32)
        else:
            self._constants[node.output[0]] = np.asarray(values[0] * values[1], dtype=np.float32)

    def _note_input_scale(self, node: Any, constants: list[Any]) -> None:
        """Remember an activation that SmoothQuant multiplies by a vector: the weights after it hold the inverse."""
        if node.op_type == "Mul" and len(constants) == 1 and constants[0].ndim == 1 and constants[0].size > 1:
            self._input_scales[node.output[0]] = constants[0]

    def _read_quantizer(self, node: Any) -> None:
        if node.input[0] in self._input_scales:
            self._input_scales[node.output[0]] = self._input_scales[node.input[0]]

    def _add_weight(self, node: Any, weight: Float32s) -> None:
        scale = self._input_scales.get(node.input[0])
        self.weights.weights.append(weight if scale is None else np.asarray(scale[:, None] * weight))

    def _read_gather(self, node: Any) -> None:
        name = node.input[0]
        table = self._constants.get(name)
        if table is not None and name.endswith("_int8"):
            scale = self._constants[name.removesuffix("_int8") + "_scale"]
            table = np.asarray(table, dtype=np.float32) * scale
        elif table is not None:
            table = self._value(name)
        self._add_table(table)

    def _read_embeddings(self, node: Any) -> None:
        """Read a fused node of embeddings and norm: ids, types, word, position and type tables, norm."""
        for name in node.input[2:5]:
            self._add_table(self._value(name))
        norm = [self._value(name) for name in node.input[5:7]]
        self.weights.norms.append((norm[0].ravel(), norm[1].ravel()))

    def _read_norm(self, node: Any) -> None:
        first = 2 if node.op_type == "SkipLayerNormalization" else 1
        if first == 2 and len(node.input) > 4 and node.input[4]:
            self.weights.biases.append(self._value(node.input[4]))
        self.weights.norms.append((self._value(node.input[first]), self._value(node.input[first + 1])))

    def _read_attention(self, node: Any) -> None:
        self._add_weight(node, self._value(node.input[1]))
        self.weights.biases.append(self._value(node.input[2]))

    def _read_multi_head_attention(self, node: Any) -> None:
        self.weights.biases.append(self._value(node.input[3]))

    def _read_product(self, node: Any) -> None:
        if node.input[1] not in self._constants:
            return  # a product of two activations
        self._add_weight(node, self._value(node.input[1]))
        if node.op_type == "MatMulIntegerToFloat" and len(node.input) > 6 and node.input[6]:
            self.weights.biases.append(self._value(node.input[6]))

    def _read_gemm(self, node: Any) -> None:
        weight = self._value(node.input[1])
        is_transposed = any(a.name == "transB" and a.i for a in node.attribute)
        self.weights.weights.append(weight.T if is_transposed else weight)
        if len(node.input) > 2:
            self.weights.biases.append(self._value(node.input[2]))

    def _read_int4_product(self, node: Any) -> None:
        attributes = {a.name: a.i for a in node.attribute}
        packed, scales = self._constants[node.input[1]], self._constants[node.input[2]]
        codes = np.stack([packed & 15, packed >> 4], axis=-1).reshape(attributes["N"], -1, attributes["block_size"])
        wide = (codes.astype(np.float32) - 8) * scales.reshape(attributes["N"], -1, 1)
        self._add_weight(node, wide.reshape(attributes["N"], -1)[:, : attributes["K"]].T)

    def _read_sum(self, node: Any) -> None:
        """Read a bias: a constant vector added to an activation."""
        constants = [name for name in node.input if name in self._constants]
        if len(constants) == 1 and len(node.input) == 2:
            bias = self._value(constants[0])
            is_vector = bias.ndim > 0 and (bias.size == bias.shape[-1] or (bias.ndim == 3 and bias.shape[1] == 1))
            if is_vector and bias.dtype.kind == "f":
                self.weights.biases.append(bias)

    def _value(self, name: str) -> Float32s:
        """Return a constant in float32."""
        value = self._constants[name]
        if not name.endswith(_QUANTIZED):
            return np.asarray(value)
        stem = name.removesuffix(_QUANTIZED)
        scale, zero = self._constants[f"{stem}_scale"], self._constants[f"{stem}_zero_point"]
        return np.asarray((value.astype(np.float32) - zero.astype(np.float32)) * scale, dtype=np.float32)

    def _add_table(self, table: Any) -> None:
        if table is None or table.ndim != 2 or table.shape[1] != self._config["hidden_size"]:
            return
        for name, size in _TABLES.items():
            if table.shape[0] == self._config[size] and name not in self.weights.tables:
                self.weights.tables[name] = np.asarray(table, dtype=np.float32)
                return


_METHODS = {
    "Constant": "constant",
    "Cast": "cast_or_mul",
    "Mul": "cast_or_mul",
    "Gather": "gather",
    "QuantizeLinear": "quantizer",
    "DynamicQuantizeLinear": "quantizer",
    "EmbedLayerNormalization": "embeddings",
    "QEmbedLayerNormalization": "embeddings",
    "LayerNormalization": "norm",
    "SkipLayerNormalization": "norm",
    "Attention": "attention",
    "QAttention": "attention",
    "MultiHeadAttention": "multi_head_attention",
    "MatMul": "product",
    "MatMulInteger": "product",
    "MatMulIntegerToFloat": "product",
    "Gemm": "gemm",
    "MatMulNBits": "int4_product",
    "Add": "sum",
    "Sum": "sum",
    "BiasGelu": "sum",
}
