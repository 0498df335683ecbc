"""Scorers, one family a module; `open_scorer` picks the one that an artefact needs."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from mnemorank.artefact import Artefact
from mnemorank.errors import MissingExtraError
from mnemorank.scorers.base import Passage, Scorer

__all__ = ["Passage", "Scorer", "open_scorer"]

# Family of the manifest → module and class. A family's dependencies are imported only when it is used.
_SCORERS = {
    "onnx": ("mnemorank.scorers.onnx", "OnnxScorer"),
    "torch": ("mnemorank.scorers.torch", "TorchScorer"),
    "lora": ("mnemorank.scorers.lora", "LoraScorer"),
    "yes-no": ("mnemorank.scorers.yes_no", "YesNoScorer"),
    "remote": ("mnemorank.scorers.remote", "RemoteScorer"),
}


def open_scorer(artefact: Artefact, **options: Any) -> Scorer:
    """Load the model of an artefact.

    :param options: what the family takes; for `onnx`, `threads` and `token_budget`.
    """
    module, name = _SCORERS[artefact.manifest.family]
    try:
        scorer_class = getattr(import_module(module), name)
    except ImportError as error:
        raise MissingExtraError(
            f"{artefact.manifest.name}: a model of the family {artefact.manifest.family!r} needs "
            f"`pip install 'mnemorank[train]'` ({error})"
        ) from error
    scorer: Scorer = scorer_class(artefact, **options)
    return scorer
