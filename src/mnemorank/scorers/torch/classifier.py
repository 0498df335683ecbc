"""Sequence classifiers on torch: BERT, MiniLM, DeBERTa, XLM-R, ModernBERT, Qwen3 and any other in transformers."""

from __future__ import annotations

from typing import Any

from transformers import AutoModelForSequenceClassification

from mnemorank.artifact.resolve import Artifact
from mnemorank.errors import ArtifactError
from mnemorank.scorers.encoding import one_score_per_row
from mnemorank.scorers.protocol import Scores
from mnemorank.scorers.torch.base import Feed, TorchScorer, accepted
from mnemorank.scorers.torch.loading import LoadedTokenizer, load_auto_tokenizer, load_network

_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


class ClassifierScorer(TorchScorer):
    """A sequence classifier. The score is its logit, or the log-odds of the second of two classes.

    :param options: see `TorchScorer`.
    """

    def __init__(self, artifact: Artifact, **options: Any) -> None:
        self._network: Any = None
        self.missing_weights: tuple[str, ...] = ()
        super().__init__(artifact, **options)

    def _load(self, artifact: Artifact) -> LoadedTokenizer:
        tokenizer = load_auto_tokenizer(artifact.path)
        loaded = load_network(AutoModelForSequenceClassification, artifact.path, self.device, self.dtype)
        self.missing_weights = loaded.missing
        self._use(loaded.network, tokenizer, artifact)
        return tokenizer

    def _use(self, network: Any, tokenizer: LoadedTokenizer, artifact: Artifact) -> None:
        check_labels(network, artifact)
        set_pad(network, tokenizer.pad_id)
        self._network = network
        self._inputs = accepted(network, *(name for name in _INPUTS if name in tokenizer.inputs))

    def _forward(self, feed: Feed) -> Scores:
        output = self._network(**{name: feed[name] for name in self._inputs})
        return one_score_per_row(output.logits.float().cpu().numpy().astype("float64"), self.name)

    def _unload(self) -> None:
        self._network = None


def check_labels(network: Any, artifact: Artifact) -> None:
    """Raise ArtifactError unless the classifier has one or two classes."""
    if network.config.num_labels not in (1, 2):
        raise ArtifactError(
            f"{artifact.path}: expected a classifier of 1 or 2 classes, got {network.config.num_labels}"
        )


def set_pad(network: Any, pad_id: int) -> None:
    """Set the padding token id, by which decoders find the last token of a row."""
    network.config.get_text_config().pad_token_id = network.config.pad_token_id = pad_id
