"""Template audit: whether the model needs its template and format, and whether the manifest names the right ones."""

from __future__ import annotations

from dataclasses import replace

from mnemorank.artifact.resolve import Artifact, load_artifact
from mnemorank.artifact.templates import Rendered, Template, templates
from mnemorank.errors import MnemorankError
from mnemorank.evaluation.audits.protocol import (
    Audit,
    AuditInput,
    Finding,
    audits,
    mean_pair_accuracy,
    score_function,
    skip_without_labels,
    skip_without_model,
    verdict_on,
)
from mnemorank.model.model import Model
from mnemorank.scorers import open_scorer

MARGIN = 0.02


def run(data: AuditInput) -> Finding:
    """Measure the accuracy with the manifest's template and format, minus that without either."""
    if data.model is None:
        return skip_without_model("template")
    name, model = next(iter(data.models.items()))
    artifact = load_artifact(name)
    if artifact.manifest.family == "remote":
        return Finding("template", "skipped", "the template of a remote model is not known")
    examples = data.sample()
    if not examples:
        return skip_without_labels("template")
    with_template = mean_pair_accuracy(examples, score_function(model))
    try:
        bare = _without_template(artifact)
    except MnemorankError as error:
        return Finding("template", "skipped", f"the model cannot run without its template: {error}")
    try:
        without_template = mean_pair_accuracy(examples, score_function(bare))
    finally:
        bare.close()
    gain = with_template - without_template
    names = f"{artifact.manifest.template} + {artifact.manifest.format}"
    if gain < -MARGIN:
        conclusion = f"is better without: the manifest's {names} is probably not what it was trained with"
    elif gain < MARGIN:
        conclusion = f"does not use {names} on this data"
    else:
        conclusion = f"needs its {names}"
    return Finding(
        "template",
        verdict_on(-gain, -MARGIN, MARGIN),
        f"{conclusion}: accuracy {with_template:.3f} with, {without_template:.3f} with query and text alone",
        gain,
        details={
            "with": with_template,
            "without": without_template,
            "template": artifact.manifest.template,
            "format": artifact.manifest.format,
        },
    )


def _without_template(artifact: Artifact) -> Model:
    """Return the same weights with a template of the bare query and text in one segment."""
    own_template = templates[artifact.manifest.template]
    name = f"no-{own_template.name}"
    if name not in templates:
        templates.add(Template(name, "query and text alone, for audits", _render_bare, answers=own_template.answers))
    manifest = replace(artifact.manifest, template=name, format="plain", instruction=None)
    return Model(manifest, open_scorer(replace(artifact, manifest=manifest)))


def _render_bare(query: str, text: str, instruction: str) -> Rendered:
    return Rendered(f"{query}\n{text}")


audits.add(Audit("template", "the manifest's template against none", run))
