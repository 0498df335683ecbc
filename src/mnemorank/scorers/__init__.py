"""Scorers: one module per model family. `open_scorer` loads the one that an artifact needs."""

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

# Module and class of each family. They are imported on use, since most need optional dependencies.
_SCORERS = {
    "onnx": ("mnemorank.scorers.onnx", "OnnxScorer"),
    "split": ("mnemorank.scorers.split", "SplitScorer"),
    "torch": ("mnemorank.scorers.torch.classifier", "ClassifierScorer"),
    "lora": ("mnemorank.scorers.torch.lora", "LoraScorer"),
    "yes-no": ("mnemorank.scorers.torch.causal_lm", "CausalLMScorer"),
    "remote": ("mnemorank.scorers.remote.scorer", "RemoteScorer"),
}

for _dialect in dialects:
    register_scheme(_dialect, remote_manifest)


def open_scorer(artifact: Artifact, **options: Any) -> Scorer:
    """Load the model of an artifact.

    :param options: of the family's scorer class, such as `threads` and `token_budget`; see docs/guides/models.md.
    """
    family = artifact.manifest.family
    module, name = _SCORERS[family]
    try:
        scorer_class = getattr(import_module(module), name)
    except ImportError as error:
        raise MissingExtraError(
            f"{artifact.manifest.name}: {family!r} models need `pip install 'mnemorank[torch]'` ({error})"
        ) from error
    known = _keyword_options(scorer_class)
    for option in options:
        if option not in known:
            expected = ", ".join(sorted(known))
            raise InputError(
                f"unknown option of {family!r} models; expected one of {expected}", field=option, code="unknown"
            )
    scorer: Scorer = scorer_class(artifact, **options)
    return scorer


def _keyword_options(scorer_class: type) -> set[str]:
    """Return the keyword-only parameters of a class and its bases."""
    return {
        parameter.name
        for cls in scorer_class.__mro__
        if "__init__" in vars(cls) and cls is not object
        for parameter in signature(cls.__init__).parameters.values()  # type: ignore[misc]
        if parameter.kind is parameter.KEYWORD_ONLY
    }
