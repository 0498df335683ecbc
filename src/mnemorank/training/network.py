"""The network in training: a sentence-transformers CrossEncoder over inputs encoded as at inference."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, cast

import torch
from sentence_transformers import CrossEncoder
from sentence_transformers.base.modules import Module
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from mnemorank.artifact.templates import Template
from mnemorank.errors import InputError
from mnemorank.scorers.encoding import Input, pack

_CPU_CHUNK, _ACCELERATOR_CHUNK = 1024, 32768


class PairModule(Module):
    """Computes one logit per input. Inputs of similar length run together, which saves most of the padding.

    :param use_bfloat16: multiply matrices in bfloat16 in training; weights and evaluation stay in float32.
    """

    def __init__(self, model: Any, tokenizer: Any, use_bfloat16: bool = False) -> None:
        nn.Module.__init__(self)
        self.model = model
        self._use_bfloat16 = use_bfloat16
        self._pad_id: int = tokenizer.pad_token_id
        # As at inference: segment ids are passed if both the tokenizer and the network know them.
        parameters = inspect.signature(type(_unwrap(model)).forward).parameters
        self._takes_types = "token_type_ids" in parameters and "token_type_ids" in tokenizer.model_input_names

    def forward(self, features: dict[str, Any], **_: Any) -> dict[str, Any]:
        inputs: Sequence[Input] = features["inputs"]
        device = next(self.parameters()).device
        chunk = _CPU_CHUNK if device.type == "cpu" else _ACCELERATOR_CHUNK
        batches = pack([len(entry.ids) for entry in inputs], chunk)
        with _bfloat16_products(device) if self._use_bfloat16 and self.training else nullcontext():
            scores = torch.cat([self._run([inputs[i] for i in batch], device) for batch in batches]).float()
        order = torch.tensor([i for batch in batches for i in batch], device=device)
        features["scores"] = torch.empty_like(scores).index_copy(0, order, scores)
        return features

    def _run(self, inputs: Sequence[Input], device: torch.device) -> Tensor:
        longest = max(len(entry.ids) for entry in inputs)
        ids = torch.full((len(inputs), longest), self._pad_id, dtype=torch.long)
        types = torch.zeros_like(ids)
        mask = torch.zeros_like(ids)
        for row, entry in enumerate(inputs):
            ids[row, : len(entry.ids)] = torch.from_numpy(entry.ids)
            types[row, : len(entry.ids)] = torch.from_numpy(entry.types)
            mask[row, : len(entry.ids)] = 1
        feed = {"input_ids": ids.to(device), "attention_mask": mask.to(device)}
        if self._takes_types:
            feed["token_type_ids"] = types.to(device)
        return self.score(feed)

    def score(self, feed: dict[str, Tensor]) -> Tensor:
        logits: Tensor = self.model(**feed).logits
        return logits[:, 0]

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        self.model.save_pretrained(output_path)


class YesNoModule(PairModule):
    """Computes the log-odds of yes against no from the hidden state of the last token.

    Only two rows of the output matrix are multiplied, not the whole vocabulary.
    """

    def __init__(self, model: Any, tokenizer: Any, answers: tuple[int | None, int], use_bfloat16: bool = False) -> None:
        super().__init__(model, tokenizer, use_bfloat16)
        self._no, self._yes = answers

    def score(self, feed: dict[str, Tensor]) -> Tensor:
        causal = _unwrap(self.model)
        hidden = getattr(causal, causal.base_model_prefix)(**feed).last_hidden_state
        last = feed["attention_mask"].sum(dim=1) - 1
        state = hidden[torch.arange(len(last), device=hidden.device), last]
        head = causal.get_output_embeddings()
        cap = getattr(causal.config, "final_logit_softcapping", None)
        yes = _token_logit(head, state, self._yes, cap)
        return yes if self._no is None else yes - _token_logit(head, state, self._no, cap)


class Network(CrossEncoder):
    """A CrossEncoder over a `PairModule`, for CrossEncoderTrainer."""

    def __init__(self, module: PairModule, device: str | None = None) -> None:
        super().__init__(modules=[module], device=device, activation_fn=nn.Identity())

    @property
    def pair_module(self) -> PairModule:
        return cast(PairModule, self[0])

    def scores(self, inputs: Sequence[Input]) -> Tensor:
        result: Tensor = self({"inputs": inputs})["scores"]
        return result


def build_network(model: Any, tokenizer: Any, template: Template, use_bfloat16: bool = False) -> Network:
    """Build the network that the template needs.

    :param model: the Hugging Face model, or a peft model around it.
    """
    if template.answers is None:
        return Network(PairModule(model, tokenizer, use_bfloat16))
    no, yes = (None if word is None else _answer_id(tokenizer, word) for word in template.answers)
    assert yes is not None
    return Network(YesNoModule(model, tokenizer, (no, yes), use_bfloat16))


@contextmanager
def _bfloat16_products(device: torch.device) -> Iterator[None]:
    # On CPU the backward pass of fused attention costs as much as all of a small model's products in bfloat16.
    attention = sdpa_kernel(SDPBackend.MATH) if device.type == "cpu" else nullcontext()
    reduced = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()  # type: ignore[no-untyped-call]
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)
    try:
        with torch.autocast(device.type, torch.bfloat16), attention:
            yield
    finally:
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(reduced)


def _answer_id(tokenizer: Any, word: str) -> int:
    ids: list[int] = tokenizer(word, add_special_tokens=False)["input_ids"]
    if len(ids) != 1:
        raise InputError(f"its tokenizer has no single token for the answer {word!r}", field="model.base")
    return ids[0]


def _unwrap(model: Any) -> Any:
    """The Hugging Face model inside a peft model, or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _token_logit(head: Any, state: Tensor, token: int, cap: float | None) -> Tensor:
    """The logit of one token, with Gemma's soft cap where the model has one."""
    with torch.autocast(state.device.type, enabled=False):
        logit: Tensor = state.float() @ head.weight[token].float()
        if getattr(head, "bias", None) is not None:
            logit = logit + head.bias[token].float()
    return logit if cap is None else cap * torch.tanh(logit / cap)
