"""BERT layers as ONNX Runtime runs them fastest: one node for attention, biases inside the matrix products.

The fused nodes are written directly rather than by a fusion tool, so that changes in transformers or in the exporter
cannot lose them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

SMOOTHED = ("attention.self.query", "intermediate.dense", "output.dense")
LOWEST = torch.finfo(torch.float32).min


class _Attention(torch.autograd.Function):
    """`com.microsoft.Attention`: projections, softmax and context in one node."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor, mask: Tensor, heads: int) -> Tensor:
        return attend(hidden @ weight + bias, mask, heads)

    @staticmethod
    def symbolic(g: Any, hidden: Any, weight: Any, bias: Any, mask: Any, heads: int) -> Any:
        node = g.op("com.microsoft::Attention", hidden, weight, bias, mask, num_heads_i=heads)
        return node.setType(hidden.type())


class _MultiHeadAttention(torch.autograd.Function):
    """`com.microsoft.MultiHeadAttention`, for projections that are separate matrix products (INT4)."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor, mask: Tensor, heads: int) -> Tensor:
        return attend(torch.cat([query, key, value], -1) + bias, mask, heads)

    @staticmethod
    def symbolic(g: Any, query: Any, key: Any, value: Any, bias: Any, mask: Any, heads: int) -> Any:
        node = g.op("com.microsoft::MultiHeadAttention", query, key, value, bias, mask, num_heads_i=heads)
        return node.setType(query.type())


class _BiasGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, bias: Tensor) -> Tensor:
        return functional.gelu(hidden + bias)

    @staticmethod
    def symbolic(g: Any, hidden: Any, bias: Any) -> Any:
        return g.op("com.microsoft::BiasGelu", hidden, bias).setType(hidden.type())


class _Sum(torch.autograd.Function):
    """`Sum`, not `Add`: ONNX Runtime would fuse Add and LayerNormalization into SkipLayerNormalization, whose CPU
    kernel takes three times as long as both."""

    @staticmethod
    def forward(ctx: Any, first: Tensor, second: Tensor) -> Tensor:
        return first + second

    @staticmethod
    def symbolic(g: Any, first: Any, second: Any) -> Any:
        return g.op("Sum", first, second).setType(first.type())


def add(first: Tensor, second: Tensor) -> Tensor:
    return _Sum.apply(first, second)  # type: ignore[no-any-return, no-untyped-call]


def attend(projected: Tensor, mask: Tensor, heads: int) -> Tensor:
    """Compute attention from queries, keys and values stored side by side.

    :param mask: of shape (batch, sequence) or (batch, sequence, sequence), 1 for tokens to look at and 0 for others.
    """
    mask = mask[:, None, None] if mask.dim() == 2 else mask[:, None]
    batch, length, width = projected.shape
    split = projected.view(batch, length, 3, heads, width // 3 // heads).permute(2, 0, 3, 1, 4)
    query, key, value = split.unbind()
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    weights = torch.softmax(scores + (1 - mask.to(scores.dtype)) * LOWEST, dim=-1)
    return (weights @ value).transpose(1, 2).reshape(batch, length, width // 3)


class Linear(nn.Module):
    """x W + b with W stored the way ONNX multiplies.

    :param largest: the largest absolute value of each input in calibration. Large inputs are scaled down and their
        weights up (SmoothQuant), so that one INT8 range suits all inputs.
    """

    smooth: Tensor | None

    def __init__(self, *layers: nn.Linear, largest: Tensor | None = None) -> None:
        super().__init__()
        weight = torch.cat([layer.weight.detach().T for layer in layers], 1).contiguous()
        self.register_buffer("smooth", None)
        if largest is not None:
            scale = _smoothing(weight, largest)
            weight = weight * scale[:, None]
            self.smooth = 1 / scale
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = nn.Parameter(torch.cat([layer.bias.detach() for layer in layers]), requires_grad=False)

    def inputs(self, hidden: Tensor) -> Tensor:
        return hidden if self.smooth is None else hidden * self.smooth

    def forward(self, hidden: Tensor) -> Tensor:
        return self.inputs(hidden) @ self.weight + self.bias


def _smoothing(weight: Tensor, largest: Tensor, balance: float = 0.75) -> Tensor:
    """Scales of SmoothQuant (Xiao et al., 2023): `balance` of the difficulty moves from the inputs to the weights."""
    strongest = weight.abs().amax(1).clamp(min=1e-5)
    scale = largest.clamp(min=1e-5) ** balance / strongest ** (1 - balance)
    return scale / scale.median()


class FusedLayer(nn.Module):
    """A BERT layer in fused nodes.

    :param fuse_projections: put the projections into the attention node; False makes them a matrix product.
    :param largest: the largest absolute value of each input, by the name of the part to smooth.
    """

    def __init__(self, layer: Any, fuse_projections: bool = True, largest: Mapping[str, Tensor] | None = None) -> None:
        super().__init__()
        attention, largest = layer.attention.self, largest or {}
        self.heads, self.fuse_projections = attention.num_attention_heads, fuse_projections
        self.projections = Linear(
            attention.query, attention.key, attention.value, largest=largest.get("attention.self.query")
        )
        self.attention_output = Linear(layer.attention.output.dense)
        self.attention_norm = layer.attention.output.LayerNorm
        self.intermediate = Linear(layer.intermediate.dense, largest=largest.get("intermediate.dense"))
        self.activation = layer.intermediate.intermediate_act_fn
        self.is_gelu = getattr(attention.config, "hidden_act", None) == "gelu"
        self.output = Linear(layer.output.dense, largest=largest.get("output.dense"))
        self.norm = layer.output.LayerNorm

    def forward(self, hidden: Tensor, mask: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Compute the layer.

        :param mask: of shape (batch, 1, 1, sequence) or (batch, 1, sequence, sequence), 0 for tokens to look at,
            very low for others.
        """
        mask = mask[:, 0, 0] if mask.shape[2] == 1 else mask[:, 0]
        attended = self._attention(hidden, (mask == 0).to(torch.int32))
        attended = self.attention_norm(add(self.attention_output(attended), hidden))
        return self.norm(add(self.output(self._activated(attended)), attended))  # type: ignore[no-any-return]

    def _attention(self, hidden: Tensor, mask: Tensor) -> Tensor:
        weight, bias = self.projections.weight, self.projections.bias
        hidden = self.projections.inputs(hidden)
        if self.fuse_projections:
            return _Attention.apply(hidden, weight, bias, mask, self.heads)  # type: ignore[no-any-return, no-untyped-call]
        parts = torch.split(hidden @ weight, hidden.shape[-1], dim=-1)
        return _MultiHeadAttention.apply(*parts, bias, mask, self.heads)  # type: ignore[no-any-return, no-untyped-call]

    def _activated(self, hidden: Tensor) -> Tensor:
        if self.is_gelu:
            return _BiasGelu.apply(self.intermediate.inputs(hidden) @ self.intermediate.weight, self.intermediate.bias)  # type: ignore[no-any-return, no-untyped-call]
        return self.activation(self.intermediate(hidden))  # type: ignore[no-any-return]


class FirstRowLayer(nn.Module):
    """The last BERT layer, computed for the first token only, which is all that the head reads.

    With a single query row, keys and values of the other tokens are not needed either: q·(Wk x + bk) is (Wkᵀ q)·x plus
    a constant that the softmax drops, and Σ p (Wv x + bv) is Wv (Σ p x) + bv.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__()
        attention = layer.attention.self
        self.heads, self.head_size = attention.num_attention_heads, attention.attention_head_size
        self.query = Linear(attention.query)
        split = (self.heads, self.head_size, -1)
        self.key = nn.Parameter(attention.key.weight.detach().view(split).contiguous())
        self.value = nn.Parameter(attention.value.weight.detach().view(split).transpose(1, 2).contiguous())
        self.value_bias = nn.Parameter(attention.value.bias.detach().view(self.heads, 1, self.head_size))
        self.attention_output = Linear(layer.attention.output.dense)
        self.attention_norm = layer.attention.output.LayerNorm
        self.intermediate = Linear(layer.intermediate.dense)
        self.activation = layer.intermediate.intermediate_act_fn
        self.output = Linear(layer.output.dense)
        self.norm = layer.output.LayerNorm

    def forward(self, hidden: Tensor, mask: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        first = hidden[:, :1]
        query = self.query(first).view(-1, self.heads, self.head_size).transpose(0, 1) * self.head_size**-0.5
        query_by_input = torch.matmul(query, self.key).transpose(0, 1)
        weights = torch.softmax(torch.matmul(query_by_input, hidden.transpose(1, 2)) + mask[:, 0], dim=-1)
        attended_input = torch.matmul(weights, hidden).transpose(0, 1)
        context = (torch.matmul(attended_input, self.value) + self.value_bias).transpose(0, 1)
        attended = self.attention_output(context.reshape(-1, 1, self.heads * self.head_size))
        attended = self.attention_norm(attended + first)
        return self.norm(self.output(self.activation(self.intermediate(attended))) + attended)  # type: ignore[no-any-return]
