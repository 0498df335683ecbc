"""The weights of an ONNX graph in the order of their use, in full precision again."""

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
_QUANTIZED = "_quantized"  # what onnxruntime's quantizer adds to a weight's name, beside _scale and _zero_point


@dataclass(slots=True)
class GraphWeights:
    """:param weights: of matrix products, inputs by outputs; of products by head, head first.
    :param norms: scale and shift of each layer norm.
    """

    tables: dict[str, Float32s] = field(default_factory=dict)
    weights: list[Float32s] = field(default_factory=list)
    biases: list[Float32s] = field(default_factory=list)
    norms: list[tuple[Float32s, Float32s]] = field(default_factory=list)


def read_weights(path: Path, config: dict[str, Any]) -> GraphWeights:
    """:param config: of the Hugging Face model, for the sizes of the embedding tables."""
    import onnx

    graph = onnx.load(str(path)).graph
    reader = _Reader(graph, config)
    for node in graph.node:
        reader.read(node)
    missing = set(_TABLES) - set(reader.found.tables)
    if missing:
        raise ArtifactError(f"{path}: {min(missing)} was not found in the graph")
    return reader.found


class _Reader:
    def __init__(self, graph: Any, config: dict[str, Any]) -> None:
        from onnx import numpy_helper

        self.found = GraphWeights()
        self._config = config
        self._constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
        self._factors: dict[str, Float32s] = {}
        self._numpy = numpy_helper.to_array

    def read(self, node: Any) -> None:
        if node.op_type in _READERS:
            getattr(self, "_" + _READERS[node.op_type])(node)

    def _constant(self, node: Any) -> None:
        value = next((a.t for a in node.attribute if a.name == "value"), None)
        if value is not None:
            self._constants[node.output[0]] = self._numpy(value)

    def _folded(self, node: Any) -> None:
        """Cast and Mul of constants: weights that are widened at load."""
        values = [self._constants[name] for name in node.input if name in self._constants]
        if len(values) < len(node.input):
            self._scaled(node, values)
            return
        if node.op_type == "Cast":
            self._constants[node.output[0]] = np.asarray(values[0], dtype=np.float32)
        else:
            self._constants[node.output[0]] = np.asarray(values[0] * values[1], dtype=np.float32)

    def _scaled(self, node: Any, known: list[Any]) -> None:
        """An activation times a constant vector, which evens it out for INT8: the weights after it hold the inverse."""
        if node.op_type == "Mul" and len(known) == 1 and known[0].ndim == 1 and known[0].size > 1:
            self._factors[node.output[0]] = known[0]

    def _quantized(self, node: Any) -> None:
        if node.input[0] in self._factors:
            self._factors[node.output[0]] = self._factors[node.input[0]]

    def _add_weight(self, node: Any, weight: Float32s) -> None:
        factor = self._factors.get(node.input[0])
        self.found.weights.append(weight if factor is None else np.asarray(factor[:, None] * weight))

    def _gather(self, node: Any) -> None:
        name = node.input[0]
        table = self._constants.get(name)
        if table is not None and name.endswith("_int8"):
            scale = self._constants[name.removesuffix("_int8") + "_scale"]
            table = np.asarray(table, dtype=np.float32) * scale
        elif table is not None:
            table = self._value(name)
        self._add_table(table)

    def _embeddings(self, node: Any) -> None:
        """Embeddings and their norm in one node; the order is ids, types, word, position, type, norm."""
        for name in node.input[2:5]:
            self._add_table(self._value(name))
        norm = [self._value(name) for name in node.input[5:7]]
        self.found.norms.append((norm[0].ravel(), norm[1].ravel()))

    def _norm(self, node: Any) -> None:
        first = 2 if node.op_type == "SkipLayerNormalization" else 1
        if first == 2 and len(node.input) > 4 and node.input[4]:
            self.found.biases.append(self._value(node.input[4]))
        self.found.norms.append((self._value(node.input[first]), self._value(node.input[first + 1])))

    def _attention(self, node: Any) -> None:
        self._add_weight(node, self._value(node.input[1]))
        self.found.biases.append(self._value(node.input[2]))

    def _attention_of_projections(self, node: Any) -> None:
        self.found.biases.append(self._value(node.input[3]))

    def _product(self, node: Any) -> None:
        if not self._is_known(node.input[1]):
            return  # a product of two activations
        self._add_weight(node, self._value(node.input[1]))
        if node.op_type == "MatMulIntegerToFloat" and len(node.input) > 6 and node.input[6]:
            self.found.biases.append(self._value(node.input[6]))

    def _gemm(self, node: Any) -> None:
        weight = self._value(node.input[1])
        is_transposed = any(a.name == "transB" and a.i for a in node.attribute)
        self.found.weights.append(weight.T if is_transposed else weight)
        if len(node.input) > 2:
            self.found.biases.append(self._value(node.input[2]))

    def _four_bit_product(self, node: Any) -> None:
        stated = {a.name: a.i for a in node.attribute}
        packed, scales = self._constants[node.input[1]], self._constants[node.input[2]]
        codes = np.stack([packed & 15, packed >> 4], axis=-1).reshape(stated["N"], -1, stated["block_size"])
        wide = (codes.astype(np.float32) - 8) * scales.reshape(stated["N"], -1, 1)
        self._add_weight(node, wide.reshape(stated["N"], -1)[:, : stated["K"]].T)

    def _sum(self, node: Any) -> None:
        """A bias: one constant vector added to an activation."""
        known = [name for name in node.input if self._is_known(name)]
        if len(known) == 1 and len(node.input) == 2:
            bias = self._value(known[0])
            is_vector = bias.ndim > 0 and (bias.size == bias.shape[-1] or (bias.ndim == 3 and bias.shape[1] == 1))
            if is_vector and bias.dtype.kind == "f":
                self.found.biases.append(bias)

    def _is_known(self, name: str) -> bool:
        return name in self._constants

    def _value(self, name: str) -> Float32s:
        """A constant in full precision; a scale a column where there is one."""
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
            if table.shape[0] == self._config[size] and name not in self.found.tables:
                self.found.tables[name] = np.asarray(table, dtype=np.float32)
                return


_READERS = {
    "Constant": "constant",
    "Cast": "folded",
    "Mul": "folded",
    "Gather": "gather",
    "QuantizeLinear": "quantized",
    "DynamicQuantizeLinear": "quantized",
    "EmbedLayerNormalization": "embeddings",
    "QEmbedLayerNormalization": "embeddings",
    "LayerNormalization": "norm",
    "SkipLayerNormalization": "norm",
    "Attention": "attention",
    "QAttention": "attention",
    "MultiHeadAttention": "attention_of_projections",
    "MatMul": "product",
    "MatMulInteger": "product",
    "MatMulIntegerToFloat": "product",
    "Gemm": "gemm",
    "MatMulNBits": "four_bit_product",
    "Add": "sum",
    "Sum": "sum",
    "BiasGelu": "sum",
}
