"""The model card: a README.md written from the recipe, its record and the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mnemorank.artifact.manifest import Manifest
from mnemorank.training.evaluation import REPORTED_METRICS, DevResults, format_interval
from mnemorank.training.recipe import Recipe, StageSettings

_LIBRARY_EXAMPLES = {
    "torch": """```python
from sentence_transformers import CrossEncoder

model = CrossEncoder("{name}")
model.rank(query, documents)
```
""",
    "lora": """```python
from peft import PeftModel
from transformers import AutoModelForSequenceClassification

base = AutoModelForSequenceClassification.from_pretrained("{base}", num_labels=1)
model = PeftModel.from_pretrained(base, "{name}")
```
""",
    "yes-no": "",
}


def write_card(
    recipe: Recipe,
    manifest: Manifest,
    record: Mapping[str, Any],
    stage_records: Sequence[Mapping[str, Any]],
    results: DevResults | None,
    seconds: float,
) -> str:
    """Return the text of the model card."""
    parts = [
        _front_matter(manifest),
        f"# {recipe.name}\n\n{recipe.description or 'A reranker for agent memory.'}\n",
        f"Base: `{manifest.base}`. Family `{manifest.family}`, format `{manifest.format}`, template "
        f"`{manifest.template}`, at most {manifest.max_length} tokens, quantization `{manifest.quantization}`.\n",
        _usage(manifest),
        _results(recipe, results),
        _training(recipe, stage_records, seconds),
        _record(record),
    ]
    return "\n".join(part for part in parts if part)


def _front_matter(manifest: Manifest) -> str:
    lines = ["---", "tags: [reranker, agent-memory, mnemorank]", "pipeline_tag: text-ranking"]
    if manifest.base and manifest.base.startswith("hf:"):
        lines.append(f"base_model: {manifest.base.removeprefix('hf:')}")
    return "\n".join([*lines, "---", ""])


def _usage(manifest: Manifest) -> str:
    base = (manifest.base or "").removeprefix("hf:")
    example = _LIBRARY_EXAMPLES[manifest.family].format(name=manifest.name, base=base)
    return f"""## Usage

```python
from mnemorank import Reranker

Reranker("{manifest.name}").rerank(query, memories, top_k=5)
```
{example}"""


def _results(recipe: Recipe, results: DevResults | None) -> str:
    if results is None:
        return "## Results\n\nNot evaluated: the recipe has no dev data.\n"
    rows = ["| metric | BM25 | base | trained | gain | p |", "|---|---|---|---|---|---|"]
    for metric in REPORTED_METRICS:
        bm25, base, trained, gain = results.row(metric)
        cells = (metric, *map(format_interval, (bm25, base, trained, gain.difference)), f"{gain.p:.3f}")
        rows.append(f"| {' | '.join(cells)} |")
    notes = [
        f"{results.queries} dev queries, scored by the model alone, without the first stage.",
        "95 % bootstrap intervals; p from a paired randomization test of trained against base.",
        f"The best checkpoint of each stage was selected by {recipe.dev.metric} on these queries, so the figures are "
        "slightly optimistic.",
        *([results.leak_warning] if results.leak_warning else []),
    ]
    return f"## Results\n\n{' '.join(notes)}\n\n" + "\n".join(rows) + "\n"


def _training(recipe: Recipe, stage_records: Sequence[Mapping[str, Any]], seconds: float) -> str:
    rows = ["| stage | lists | dropped | sources | steps | loss | learning rate |", "|---|---|---|---|---|---|---|"]
    for stage, record in zip(recipe.stage, stage_records, strict=True):
        dropped = record.get("dropped", 0) + record.get("too_long", 0)
        sources = ", ".join(f"{name or 'unnamed'} {count}" for name, count in record["sources"].items())
        rows.append(
            f"| {stage.name} | {record['lists']} | {dropped} | {sources} | {record.get('steps', '')} "
            f"| {_losses(stage)} | {stage.learning_rate:g} |"
        )
    notes = [f"Trained in {seconds / 60:.1f} minutes with seed {recipe.seed}."]
    if windowed := sum(int(record["windowed"]) for record in stage_records):
        notes.append(f"{windowed} memories longer than the input are represented by their best window.")
    if any(record.get("dropped") or record.get("too_long") for record in stage_records):
        notes.append("Dropped: lists in which all labels are equal, and queries too long for the input.")
    return f"## Training\n\n{' '.join(notes)}\n\n" + "\n".join(rows) + "\n"


def _losses(stage: StageSettings) -> str:
    return " + ".join(f"{loss.weight:g}·{loss.name}" if loss.weight != 1 else loss.name for loss in stage.loss)


def _record(record: Mapping[str, Any]) -> str:
    data = "\n".join(f"| {entry['use']} | {entry['name']} | `{entry['sha256'][:16]}` |" for entry in record["data"])
    versions = ", ".join(f"{name} {number}" for name, number in record["versions"].items())
    return (
        "## Reproducibility\n\n"
        f"The recipe is in `mnemorank.json`. Commit {record['commit'] or 'unknown'}. {versions}.\n\n"
        f"| use | file | SHA-256 |\n|---|---|---|\n{data}\n"
    )
