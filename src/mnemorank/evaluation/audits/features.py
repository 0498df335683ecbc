"""Audit 7: does a model that is told R4's features read the text, or only the feature tokens?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mnemorank._internal.arrays import Floats
from mnemorank.artifact.formats import format_memory
from mnemorank.artifact.hop_features import feature_prefix
from mnemorank.artifact.resolve import Artifact, load_artifact
from mnemorank.artifact.templates import Rendered, Template, templates
from mnemorank.data.examples import Example
from mnemorank.evaluation.audits.protocol import (
    Audit,
    Finding,
    Material,
    Scorer,
    audits,
    judged,
    no_model,
    right_over_wrong,
    scorer_of,
    shown,
)
from mnemorank.evaluation.metrics import Judged, measure, neutral_order
from mnemorank.model.model import Model
from mnemorank.scorers import open_scorer

WARN, FAIL = 0.05, 0.15
_OWN, _LENT, _NONE = "features", "features-lent", "features-none"


class _Lending:
    """Renders R4's input with the features of the next text of the pool."""

    def __init__(self) -> None:
        self.texts: Sequence[str] = ()

    def render(self, query: str, text: str, instruction: str) -> Rendered:
        # A window of a long text is not in the pool itself; it stands where its text stands.
        own = next((i for i, whole in enumerate(self.texts) if text in whole), 0)
        lender = self.texts[(own + 1) % len(self.texts)] if self.texts else text
        return Rendered(f"{feature_prefix(query, lender)} {query} [SEP] {text}")


def _without(query: str, text: str, instruction: str) -> Rendered:
    return Rendered(f"{query} [SEP] {text}")


_lending = _Lending()


def run(material: Material) -> Finding:
    """The number is the larger fall of right-over-wrong accuracy: with another text's features, or with none."""
    if material.model is None:
        return no_model("features")
    name, model = next(iter(material.models.items()))
    if model.manifest.template != _OWN:
        return Finding("features", "skipped", f"the model is not told features: its template is not {_OWN!r}")
    examples = material.sample()
    if not examples:
        return Finding("features", "skipped", "no example has both right and wrong candidates")
    artifact = load_artifact(name)
    scores = {"own": _scores(examples, scorer_of(model), model)}
    for key, template in (("lent", _LENT), ("none", _NONE)):
        probe = _probe(artifact, template)
        try:
            scores[key] = _scores(examples, scorer_of(probe), probe)
        finally:
            probe.close()
    accuracy = {key: _accuracy(examples, found) for key, found in scores.items()}
    mean_ap = {key: _map(examples, found) for key, found in scores.items()}
    mean = {key: float(found.mean()) for key, found in accuracy.items()}
    fall = max(mean["own"] - mean["lent"], mean["own"] - mean["none"])
    verdict = judged(fall, WARN, FAIL)
    worst = np.argsort(accuracy["lent"] - accuracy["own"])[:2]
    words = "reads the text" if verdict == "pass" else "leans on the feature tokens"
    return Finding(
        "features",
        verdict,
        f"{words}: accuracy {mean['own']:.3f} with its features, {mean['lent']:.3f} with another text's, "
        f"{mean['none']:.3f} with none; MAP {mean_ap['own']:.3f}, {mean_ap['lent']:.3f}, {mean_ap['none']:.3f}",
        fall,
        [shown(examples[i].query) for i in worst if accuracy["lent"][i] < accuracy["own"][i]],
        {"accuracy": mean, "map": mean_ap, "examples": len(examples)},
    )


def _probe(artifact: Artifact, name: str) -> Model:
    """The same weights behind another template."""
    if name not in templates:
        render = _lending.render if name == _LENT else _without
        templates.add(Template(name, "R4's input with wrong or no features, to probe", render, reserve=48))
    manifest = replace(artifact.manifest, template=name)
    return Model(manifest, open_scorer(replace(artifact, manifest=manifest)))


def _scores(examples: Sequence[Example], scorer: Scorer, model: Model) -> list[Floats]:
    found = []
    for example in examples:
        _lending.texts = [format_memory(memory, model.manifest.format) for memory in example.memories]
        found.append(scorer(example.query, example.memories))
    return found


def _accuracy(examples: Sequence[Example], scores: Sequence[Floats]) -> Floats:
    return np.array([right_over_wrong(one, own) for one, own in zip(examples, scores, strict=True)])


def _map(examples: Sequence[Example], scores: Sequence[Floats]) -> float:
    rankings = [
        sorted(neutral_order(example), key=lambda i, own=own: -own[i])  # type: ignore[misc]
        for example, own in zip(examples, scores, strict=True)
    ]
    return float(np.nanmean(measure([Judged.of(example) for example in examples], rankings)["map"]))


audits.add(Audit("features", "a model's ranking with its R4 features, another text's, and none", run))
