"""Feature audit: whether a model with hop features in its input reads the text, or only the feature tokens."""

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
    AuditInput,
    Finding,
    ScoreFunction,
    audits,
    pair_accuracy,
    score_function,
    shorten,
    skip_without_labels,
    skip_without_model,
    verdict_on,
)
from mnemorank.evaluation.metrics import Judgments, measure, neutral_order
from mnemorank.model.model import Model
from mnemorank.scorers import open_scorer

WARN, FAIL = 0.05, 0.15
_TRUE, _SWAPPED, _NONE = "features", "features-swapped", "features-none"


class _SwappedFeatures:
    """Renders the `features` template with the features of the next text of the pool."""

    def __init__(self) -> None:
        self.texts: Sequence[str] = ()

    def render(self, query: str, text: str, instruction: str) -> Rendered:
        # A window of a long text is not itself in the pool: look for the text that contains it.
        position = next((i for i, whole in enumerate(self.texts) if text in whole), 0)
        other = self.texts[(position + 1) % len(self.texts)] if self.texts else text
        return Rendered(f"{feature_prefix(query, other)} {query} [SEP] {text}")


def _render_without_features(query: str, text: str, instruction: str) -> Rendered:
    return Rendered(f"{query} [SEP] {text}")


_swapped_features = _SwappedFeatures()


def run(data: AuditInput) -> Finding:
    """Measure the larger loss of pair accuracy: with another text's features, or with none."""
    if data.model is None:
        return skip_without_model("features")
    name, model = next(iter(data.models.items()))
    if model.manifest.template != _TRUE:
        return Finding("features", "skipped", f"the model has no features in its input: its template is not {_TRUE!r}")
    examples = data.sample()
    if not examples:
        return skip_without_labels("features")
    artifact = load_artifact(name)
    scores = {"true": _scores(examples, score_function(model), model)}
    for key, template in (("swapped", _SWAPPED), ("none", _NONE)):
        variant = _with_template(artifact, template)
        try:
            scores[key] = _scores(examples, score_function(variant), variant)
        finally:
            variant.close()
    by_example = {key: _accuracy(examples, values) for key, values in scores.items()}
    mean_ap = {key: _map(examples, values) for key, values in scores.items()}
    accuracy = {key: float(values.mean()) for key, values in by_example.items()}
    loss = max(accuracy["true"] - accuracy["swapped"], accuracy["true"] - accuracy["none"])
    verdict = verdict_on(loss, WARN, FAIL)
    worst = np.argsort(by_example["swapped"] - by_example["true"])[:2]
    conclusion = "reads the text" if verdict == "pass" else "relies on the feature tokens"
    return Finding(
        "features",
        verdict,
        f"{conclusion}: accuracy {accuracy['true']:.3f} with its features, {accuracy['swapped']:.3f} with another "
        f"text's, {accuracy['none']:.3f} with none; MAP {mean_ap['true']:.3f}, {mean_ap['swapped']:.3f}, "
        f"{mean_ap['none']:.3f}",
        loss,
        [shorten(examples[i].query) for i in worst if by_example["swapped"][i] < by_example["true"][i]],
        {"accuracy": accuracy, "map": mean_ap, "examples": len(examples)},
    )


def _with_template(artifact: Artifact, name: str) -> Model:
    """Return the same weights with another template."""
    if name not in templates:
        render = _swapped_features.render if name == _SWAPPED else _render_without_features
        templates.add(Template(name, "wrong or no features, for audits", render, reserve=48))
    manifest = replace(artifact.manifest, template=name)
    return Model(manifest, open_scorer(replace(artifact, manifest=manifest)))


def _scores(examples: Sequence[Example], score: ScoreFunction, model: Model) -> list[Floats]:
    scores = []
    for example in examples:
        _swapped_features.texts = [format_memory(memory, model.manifest.format) for memory in example.memories]
        scores.append(score(example.query, example.memories))
    return scores


def _accuracy(examples: Sequence[Example], scores: Sequence[Floats]) -> Floats:
    return np.array([pair_accuracy(example, values) for example, values in zip(examples, scores, strict=True)])


def _map(examples: Sequence[Example], scores: Sequence[Floats]) -> float:
    rankings = [_ranking(example, values) for example, values in zip(examples, scores, strict=True)]
    return float(np.nanmean(measure([Judgments.of(example) for example in examples], rankings)["map"]))


def _ranking(example: Example, scores: Floats) -> list[int]:
    return sorted(neutral_order(example), key=lambda i: -scores[i])


audits.add(Audit("features", "a model's ranking with its hop features, another text's, and none", run))
