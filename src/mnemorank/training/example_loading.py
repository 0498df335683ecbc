"""Reading what the recipe names: the dev questions, and all of the training data once before the work begins."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from mnemorank.data.benchmarks import loaders
from mnemorank.data.examples import Example
from mnemorank.data.formats import detect_format
from mnemorank.data.retrieval import load_retriever
from mnemorank.data.sources import Source, load_sources, read_examples, select_split
from mnemorank.errors import InputError
from mnemorank.evaluation.metrics import Judgments
from mnemorank.training.dataset import check_labels, check_teaching, drop_conflicts, teaches
from mnemorank.training.objective import check_candidates, ranks_only
from mnemorank.training.recipe import Recipe, Stage
from mnemorank.training.sampling import check_draws


def check_data(recipe: Recipe) -> None:
    """Read the data of all stages, so that a fault in the last is found before the first is trained.

    Only what mining would add is not looked at.
    """
    seen: list[object] = []
    for stage in recipe.stage:
        for source in stage.data:
            if source.hard_negatives is not None:
                load_retriever(source.hard_negatives.retriever)
        read_as = stage.data, stage.loss, stage.lists
        if read_as not in seen:
            _check_stage(stage, recipe)
        seen.append(read_as)


def stage_examples(stage: Stage, recipe: Recipe) -> list[Example]:
    """Return the examples of a stage; sources with `label_conflicts = "drop"` lose memories labeled 1 elsewhere."""
    dropping = {source.display_name for source in stage.data if source.label_conflicts == "drop"}
    return drop_conflicts(load_sources(stage.data, recipe.seed), recipe.model.format, dropping)


def _check_stage(stage: Stage, recipe: Recipe) -> None:
    is_mined = any(source.hard_negatives is not None for source in stage.data)
    once = tuple(replace(source, hard_negatives=None, weight=min(source.weight, 1.0)) for source in stage.data)
    examples = stage_examples(replace(stage, data=once), recipe)
    check_labels(examples, recipe.model.format)
    filled = [[c for c in example.candidates if c.memory.text.strip()] for example in examples]
    if not is_mined:
        filled = [own for own in filled if teaches([c.label for c in own], ranking=ranks_only(stage.loss))]
        check_teaching([[c.label for c in own] for own in filled])
    if ranks_only(stage.loss):
        mined = [0.0] if is_mined else []
        check_draws([[c.label for c in own] + mined for own in filled], stage.lists)
    check_candidates([c for own in filled for c in own], stage.loss)


def dev_examples(recipe: Recipe) -> list[Example]:
    """The dev questions of all sources, drawn with the seed where there are more than the limit."""
    if not recipe.dev.data:
        return []
    examples = [example for source in recipe.dev.data for example in _dev_source(source, recipe.seed)]
    check_dev(examples)
    if recipe.dev.limit and len(examples) > recipe.dev.limit:
        examples = random.Random(recipe.seed).sample(examples, recipe.dev.limit)
        check_dev(examples, f" to the {recipe.dev.limit} questions drawn: dev.limit")
    return examples


def check_dev(examples: Sequence[Example], of_which: str = "") -> None:
    """Stop where no dev question has an answer: the mean over none is not a number."""
    if not any(Judgments.of(example).has_relevant for example in examples):
        raise InputError(f"no candidate is relevant{of_which}; there is nothing to measure by", field="dev.data")


def _dev_source(source: Source, seed: int) -> list[Example]:
    """Triplets are measured R0's way, each query against all memories of the file; the rest as it is trained on."""
    if (detect_format(source.path) if source.format == "auto" else source.format) != "triplets":
        return load_sources([source], seed)
    for _ in read_examples(source.path, "triplets", source.label_conflicts):
        pass  # contradictions are looked for here: the loader below takes a memory that is right anywhere for right
    pooled = [replace(e, source=source.name) for e in loaders["triplets"].read(source.path)]
    examples = select_split(pooled, source)
    return (
        examples
        if source.max_examples is None
        else random.Random(seed).sample(examples, min(source.max_examples, len(examples)))
    )
