"""Audit 6: does the model need its template and format, and does the manifest name the right ones?"""

from __future__ import annotations

from dataclasses import replace

from mnemorank.artifact.resolve import Artifact, load_artifact
from mnemorank.artifact.templates import Rendered, Template, templates
from mnemorank.errors import MnemorankError
from mnemorank.evaluation.audits.protocol import Audit, Finding, Material, accuracy, audits, judged, no_model, scorer_of
from mnemorank.model.model import Model
from mnemorank.scorers import open_scorer

DIFFERENT = 0.02


def run(material: Material) -> Finding:
    """The number is the accuracy with the manifest's template and format, less that with neither."""
    if material.model is None:
        return no_model("template")
    name, model = next(iter(material.models.items()))
    artifact = load_artifact(name)
    if artifact.manifest.family == "remote":
        return Finding("template", "skipped", "a remote model keeps its template to itself")
    examples = material.sample()
    if not examples:
        return Finding("template", "skipped", "no example has both right and wrong candidates")
    right = accuracy(examples, scorer_of(model))
    try:
        bare = _without_template(artifact)
    except MnemorankError as error:
        return Finding("template", "skipped", f"cannot be run without its template: {error}")
    try:
        none = accuracy(examples, scorer_of(bare))
    finally:
        bare.close()
    gain = right - none
    stated = f"{artifact.manifest.template} + {artifact.manifest.format}"
    if gain < -DIFFERENT:
        words = f"is better without: the manifest's {stated} is probably not what it was trained with"
    elif gain < DIFFERENT:
        words = f"makes no use of {stated} on this data"
    else:
        words = f"needs its {stated}"
    return Finding(
        "template",
        judged(-gain, -DIFFERENT, DIFFERENT),
        f"{words}: accuracy {right:.3f} with, {none:.3f} with query and text alone",
        gain,
        details={
            "with": right,
            "without": none,
            "template": artifact.manifest.template,
            "format": artifact.manifest.format,
        },
    )


def _without_template(artifact: Artifact) -> Model:
    """The same weights, given the query and the text in one segment and nothing else."""
    own = templates[artifact.manifest.template]
    name = f"no-{own.name}"
    if name not in templates:
        templates.add(Template(name, "query and text alone, to probe", _alone, answers=own.answers))
    manifest = replace(artifact.manifest, template=name, format="plain", instruction=None)
    return Model(manifest, open_scorer(replace(artifact, manifest=manifest)))


def _alone(query: str, text: str, instruction: str) -> Rendered:
    return Rendered(f"{query}\n{text}")


audits.add(Audit("template", "the right template against none", run))
