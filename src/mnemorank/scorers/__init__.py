"""Scorers, one family a module; `open_scorer` picks the one that an artifact needs."""

from __future__ import annotations

from importlib import import_module
from inspect import signature
from typing import Any

from mnemorank.artifact.resolve import Artifact, register_scheme
from mnemorank.errors import InputError, MissingExtraError
from mnemorank.scorers.protocol import Passage, Scorer
from mnemorank.scorers.remote.address import remote_manifest
from mnemorank.scorers.remote.dialects import dialects

__all__ = ["Passage", "Scorer", "open_scorer"]

# Family of the manifest → module and class. A family's dependencies are imported only when it is used.
_SCORERS = {
    "onnx": ("mnemorank.scorers.onnx", "OnnxScorer"),
    "torch": ("mnemorank.scorers.torch.classifier", "TorchScorer"),
    "lora": ("mnemorank.scorers.torch.lora", "LoraScorer"),
    "yes-no": ("mnemorank.scorers.torch.causal_lm", "YesNoScorer"),
    "remote": ("mnemorank.scorers.remote.scorer", "RemoteScorer"),
}

for _dialect in dialects:
    register_scheme(_dialect, remote_manifest)


def open_scorer(artifact: Artifact, **options: Any) -> Scorer:
    """Load the model of an artifact.

    :param options: what the family takes; for `onnx`, `threads` and `token_budget`. See docs/models.md.
    """
    module, name = _SCORERS[artifact.manifest.family]
    try:
        scorer_class = getattr(import_module(module), name)
    except ImportError as error:
        raise MissingExtraError(
            f"{artifact.manifest.name}: a model of the family {artifact.manifest.family!r} needs "
            f"`pip install 'mnemorank[torch]'` ({error})"
        ) from error
    _check_options(artifact, scorer_class, options)
    scorer: Scorer = scorer_class(artifact, **options)
    return scorer


def _check_options(artifact: Artifact, scorer_class: type, options: dict[str, Any]) -> None:
    known = {
        parameter.name
        for part in scorer_class.__mro__
        if "__init__" in vars(part) and part is not object
        for parameter in signature(part.__init__).parameters.values()  # type: ignore[misc]
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    for name in options:
        if name not in known:
            raise InputError(
                f"unknown option; a model of the family {artifact.manifest.family!r} takes: "
                + ", ".join(sorted(known)),
                field=name,
            )
