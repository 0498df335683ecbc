"""Reading what the recipe names: the dev questions, and all of the training data once before the work begins."""

from __future__ import annotations

import random
from dataclasses import replace

from mnemorank.data.benchmarks import loaders
from mnemorank.data.mixing import load_mix, load_source, own_part, read_examples
from mnemorank.data.negatives import Mining, open_retriever
from mnemorank.data.records import Example
from mnemorank.errors import InputError
from mnemorank.evaluation.measures import Judged
from mnemorank.training.recipe import Recipe, Source


def check_data(recipe: Recipe) -> None:
    """Read the data of all stages, so that a fault in the last is found before the first is trained."""
    seen: set[tuple[object, ...]] = set()
    for stage in recipe.stage:
        for source in stage.data:
            if source.negatives is not None:
                open_retriever(Mining.of(source.negatives, f"{source.path}: negatives").retriever)
            read_as = (source.path, source.format, source.split, source.dev_share, source.contradictions)
            if read_as not in seen:
                load_source(source)
            seen.add(read_as)


def dev_examples(recipe: Recipe) -> list[Example]:
    """The dev questions of all sources, drawn with the seed where there are more than the limit."""
    if not recipe.dev.data:
        return []
    examples = [example for source in recipe.dev.data for example in _dev_source(source, recipe.seed)]
    if not any(Judged.of(example).is_ranked for example in examples):
        raise InputError("dev.data: no candidate is relevant; there is nothing to measure by")
    if recipe.dev.limit and len(examples) > recipe.dev.limit:
        examples = random.Random(recipe.seed).sample(examples, recipe.dev.limit)
    return examples


def _dev_source(source: Source, seed: int) -> list[Example]:
    """Triplets are measured R0's way, each query against all memories of the file; the rest as it is trained on."""
    if source.format != "triplets":
        return load_mix([source], seed)
    for _ in read_examples(source.path, source.format, source.contradictions):
        pass  # contradictions are looked for here: the loader below takes a memory that is right anywhere for right
    pooled = [replace(e, source=source.name) for e in loaders["triplets"].read(source.path)]
    examples = own_part(pooled, source)
    return examples if source.cap is None else random.Random(seed).sample(examples, min(source.cap, len(examples)))
