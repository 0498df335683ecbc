"""Causal language models that answer yes or no, such as Qwen3-Reranker; mxbai and Gemma differ only by template."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from mnemorank._internal.arrays import sigmoid
from mnemorank.artifact.resolve import Artifact
from mnemorank.artifact.templates import templates
from mnemorank.errors import ArtifactError
from mnemorank.scorers.protocol import Scores
from mnemorank.scorers.torch.base import Feed, TorchScorer, accepted
from mnemorank.scorers.torch.loading import LoadedTokenizer, adapter_base, load_auto_tokenizer, load_network

_INPUTS = ("input_ids", "attention_mask", "position_ids")


class CausalLMScorer(TorchScorer):
    """A language model whose first token after the prompt is the answer.

    Logits are computed for the last position only, and only for the two answers. The score is the probability of yes
    against no, or the difference of their logits, as the manifest's `score_kind` says. A LoRA adapter is merged into
    its base.

    :param base: the base model of an adapter, a folder or a Hub id.
    :param options: see `TorchScorer`.
    """

    padding = "left"

    def __init__(self, artifact: Artifact, *, base: str | None = None, **options: Any) -> None:
        self._network: Any = None
        self._base = base or artifact.manifest.base
        self._is_probability = artifact.manifest.score_kind == "probability"
        self.missing_weights: tuple[str, ...] = ()
        super().__init__(artifact, **options)

    def _load(self, artifact: Artifact) -> LoadedTokenizer:
        answers = templates[artifact.manifest.template].answers
        if answers is None:
            raise ArtifactError(
                f"{artifact.path}: template: expected one with answers for a language model "
                f"({', '.join(name for name in templates if templates[name].answers)}), "
                f"got {artifact.manifest.template!r}"
            )
        if (artifact.path / "adapter_config.json").is_file():
            from mnemorank.scorers.torch.lora import add_adapter

            base = adapter_base(artifact.path, self._base)
            tokenizer = load_auto_tokenizer(artifact.path, base)
            loaded = load_network(AutoModelForCausalLM, base, self.device, self.dtype)
            network = add_adapter(loaded.network, artifact.path, "default").merge_and_unload()
        else:
            tokenizer = load_auto_tokenizer(artifact.path)
            loaded = load_network(AutoModelForCausalLM, artifact.path, self.device, self.dtype)
            network = loaded.network
        self.missing_weights = loaded.missing
        no, yes = answers
        self.answer_ids = tuple(
            answer_id(tokenizer.tokenizer, word, artifact) for word in (no, yes) if word is not None
        )
        self._network = keep_answers(network, self.answer_ids)
        self._inputs = accepted(self._network, *_INPUTS)
        # A few models lack this option and compute the answers' logits for every position.
        self._only_last = dict.fromkeys(accepted(self._network, "logits_to_keep"), 1)
        return tokenizer

    def _forward(self, feed: Feed) -> Scores:
        inputs = {name: feed[name] for name in self._inputs}
        logits = self._network(**inputs, **self._only_last, use_cache=False).logits[:, -1, :]
        values = logits.float().cpu().numpy().astype(np.float64)
        scores = values[:, 1] - values[:, 0] if values.shape[1] == 2 else values[:, 0]
        return sigmoid(scores) if self._is_probability else scores

    def _unload(self) -> None:
        self._network = None


def keep_answers(network: Any, answer_ids: tuple[int, ...]) -> Any:
    """Reduce the output layer to the rows of the answers; what the model does to its logits stays the same."""
    head = network.get_output_embeddings()
    rows = torch.tensor(answer_ids, device=head.weight.device)
    bias = getattr(head, "bias", None)
    reduced = torch.nn.Linear(
        head.weight.shape[1], len(rows), bias=bias is not None, device=head.weight.device, dtype=head.weight.dtype
    )
    with torch.no_grad():
        reduced.weight.copy_(head.weight[rows])
        if bias is not None:
            reduced.bias.copy_(bias[rows])
    network.set_output_embeddings(reduced.requires_grad_(False))
    return network


def answer_id(tokenizer: Tokenizer, word: str, artifact: Artifact) -> int:
    """Return the token id of an answer, which must be a single token."""
    token_id = tokenizer.token_to_id(word)
    if token_id is not None:
        return int(token_id)
    ids = tokenizer.encode(word, add_special_tokens=False).ids
    if len(ids) == 1:
        return int(ids[0])
    raise ArtifactError(
        f"{artifact.path}: template: expected one whose answers are single tokens, but {word!r} of "
        f"{artifact.manifest.template!r} has {len(ids)}"
    )
