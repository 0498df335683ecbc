"""The model card, written from what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mnemorank.artifact.manifest import Manifest
from mnemorank.training.evaluation import SHOWN, Results, format_interval
from mnemorank.training.recipe import Recipe, Stage

_USE = {
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
    stages: Sequence[Mapping[str, Any]],
    results: Results | None,
    seconds: float,
) -> str:
    parts = [
        _front_matter(manifest),
        f"# {recipe.name}\n\n{recipe.description or 'A reranker for agent memory.'}\n",
        f"Base: `{manifest.base}`. Family `{manifest.family}`, format `{manifest.format}`, template "
        f"`{manifest.template}`, at most {manifest.max_length} tokens, quantization `{manifest.quantization}`.\n",
        _use(manifest),
        _results(recipe, results),
        _training(recipe, stages, seconds),
        _record(record),
    ]
    return "\n".join(part for part in parts if part)


def _front_matter(manifest: Manifest) -> str:
    lines = ["---", "tags: [reranker, agent-memory, mnemorank]", "pipeline_tag: text-ranking"]
    if manifest.base and manifest.base.startswith("hf:"):
        lines.append(f"base_model: {manifest.base.removeprefix('hf:')}")
    return "\n".join([*lines, "---", ""])


def _use(manifest: Manifest) -> str:
    own = _USE[manifest.family].format(name=manifest.name, base=(manifest.base or "").removeprefix("hf:"))
    return f"""## Use

```python
from mnemorank import Reranker

Reranker("{manifest.name}").rerank(query, memories, top_k=5)
```
{own}"""


def _results(recipe: Recipe, results: Results | None) -> str:
    if results is None:
        return "## Results\n\nNot measured: the recipe names no dev data.\n"
    rows = ["| measure | BM25 | base | trained | gain | p |", "|---|---|---|---|---|---|"]
    for name in SHOWN:
        lexical, base, trained, gain = results.row(name)
        cells = (name, *map(format_interval, (lexical, base, trained, gain.difference)), f"{gain.p:.3f}")
        rows.append(f"| {' | '.join(cells)} |")
    chosen = f"Of each stage the best checkpoint by {recipe.dev.measure} on these questions was kept: they flatter it."
    caution = f" {results.caution}" if results.caution else ""
    return (
        f"## Results\n\n{results.queries} dev questions, bare model without first-stage blend; 95 % bootstrap "
        f"intervals, p of a paired randomization test trained against base. {chosen}{caution}\n\n"
        + "\n".join(rows)
        + "\n"
    )


def _training(recipe: Recipe, stages: Sequence[Mapping[str, Any]], seconds: float) -> str:
    rows = ["| stage | lists | left out | sources | steps | loss | learning rate |", "|---|---|---|---|---|---|---|"]
    for stage, note in zip(recipe.stage, stages, strict=True):
        left_out = note.get("dropped", 0) + note.get("too_long", 0)
        sources = ", ".join(f"{name or 'unnamed'} {count}" for name, count in note["sources"].items())
        rows.append(
            f"| {stage.name} | {note['lists']} | {left_out} | {sources} | {note.get('steps', '')} | {_losses(stage)} "
            f"| {stage.learning_rate:g} |"
        )
    long = sum(int(note["windowed"]) for note in stages)
    extra = f" {long} memories longer than the input were read by their best window." if long else ""
    if any(note.get("dropped") or note.get("too_long") for note in stages):
        extra += " Left out: lists in which nothing differs in label, and questions too long for the input."
    return f"## Training\n\nIn {seconds / 60:.1f} minutes, seed {recipe.seed}.{extra}\n\n" + "\n".join(rows) + "\n"


def _losses(stage: Stage) -> str:
    return " + ".join(f"{table.weight:g}·{table.name}" if table.weight != 1 else table.name for table in stage.loss)


def _record(record: Mapping[str, Any]) -> str:
    data = "\n".join(f"| {entry['use']} | {entry['name']} | `{entry['sha256'][:16]}` |" for entry in record["data"])
    versions = ", ".join(f"{name} {number}" for name, number in record["versions"].items())
    return (
        f"## Record\n\nThe recipe is in `mnemorank.json`. Commit {record['commit'] or 'unknown'}. {versions}.\n\n"
        f"| use | file | SHA-256 |\n|---|---|---|\n{data}\n"
    )
