"""Sequence classifiers on torch: BERT, MiniLM, DeBERTa, XLM-R, ModernBERT, Qwen3 and whatever else transformers has."""

from __future__ import annotations

from typing import Any

from transformers import AutoModelForSequenceClassification

from mnemorank.artifact.resolve import Artifact
from mnemorank.errors import ArtifactError
from mnemorank.scorers.encoding import one_score_a_row
from mnemorank.scorers.protocol import Scores
from mnemorank.scorers.torch.base import Feed, TorchBase, accepted
from mnemorank.scorers.torch.loading import Tokenizing, load_network, load_tokenizing

_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


class TorchScorer(TorchBase):
    """A sequence-classification folder. The score is its logit, or the log-odds of the second of two classes.

    :param options: see `TorchBase`.
    """

    def __init__(self, artifact: Artifact, **options: Any) -> None:
        self._network: Any = None
        self.missing_weights: tuple[str, ...] = ()
        super().__init__(artifact, **options)

    def _load(self, artifact: Artifact) -> Tokenizing:
        tokenizing = load_tokenizing(artifact.path)
        loaded = load_network(AutoModelForSequenceClassification, artifact.path, self.device, self.dtype)
        self.missing_weights = loaded.missing
        self._adopt(loaded.network, tokenizing, artifact)
        return tokenizing

    def _adopt(self, network: Any, tokenizing: Tokenizing, artifact: Artifact) -> None:
        """Take the network, with what it must know about our padding."""
        check_labels(network, artifact)
        set_pad(network, tokenizing.pad_id)
        self._network = network
        self._inputs = accepted(network, *(name for name in _INPUTS if name in tokenizing.inputs))

    def _forward(self, feed: Feed) -> Scores:
        output = self._network(**{name: feed[name] for name in self._inputs})
        return one_score_a_row(output.logits.float().cpu().numpy().astype("float64"), self.name)

    def _unload(self) -> None:
        self._network = None


def check_labels(network: Any, artifact: Artifact) -> None:
    if network.config.num_labels not in (1, 2):
        raise ArtifactError(
            f"{artifact.path}: is a classifier of {network.config.num_labels} classes; a reranker has one or two"
        )


def set_pad(network: Any, pad_id: int) -> None:
    """Decoders find a row's last token by the padding id, so it must be the one we pad with."""
    network.config.get_text_config().pad_token_id = network.config.pad_token_id = pad_id
