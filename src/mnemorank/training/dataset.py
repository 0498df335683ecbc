"""The data of a recipe: examples read, checked, and turned into passages as the model reads them at inference."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from mnemorank.artifact.formats import format_memory
from mnemorank.data.benchmarks import loaders
from mnemorank.data.distill import teacher_score
from mnemorank.data.examples import Candidate, Example
from mnemorank.data.formats import detect_format
from mnemorank.data.label_conflicts import PairKey, check_label_conflicts, drop_label_conflicts
from mnemorank.data.sources import Source, load_sources, read_examples, select_split
from mnemorank.errors import InputError
from mnemorank.evaluation.metrics import Judgments
from mnemorank.model.model import Model
from mnemorank.scorers.encoding import InputWriter
from mnemorank.scorers.protocol import Passage
from mnemorank.training.recipe import Recipe, StageSettings


@dataclass(frozen=True, slots=True)
class PreparedList:
    """An example with its candidates ready for the model.

    :param teacher_scores: logits of a teacher (`teacher_score` in a memory's metadata); NaN where there is none.
    :param weights: how much each label counts.
    """

    id: str
    source: str
    query: str
    passages: tuple[Passage, ...]
    labels: tuple[float, ...]
    teacher_scores: tuple[float, ...]
    weights: tuple[float, ...]

    @property
    def mean_length(self) -> float:
        return sum(passage.length for passage in self.passages) / len(self.passages)


@dataclass(frozen=True, slots=True)
class PreparedData:
    """The lists of a stage, ready for training.

    :param windowed: the number of candidates that are too long and are represented by their best window.
    :param dropped: the number of lists that cannot teach a ranking because all labels are equal.
    """

    lists: tuple[PreparedList, ...]
    windowed: int = 0
    dropped: int = 0


def stage_examples(stage: StageSettings, recipe: Recipe) -> list[Example]:
    """Return the examples of a stage; sources with `label_conflicts = "drop"` lose memories labeled 1 elsewhere."""
    dropping = {source.display_name for source in stage.data if source.label_conflicts == "drop"}
    return drop_conflicts(load_sources(stage.data, recipe.seed), recipe.model.format, dropping)


def dev_examples(recipe: Recipe) -> list[Example]:
    """Return the dev examples of all sources, sampled with the seed when there are more than the limit."""
    if not recipe.dev.data:
        return []
    examples = [example for source in recipe.dev.data for example in _dev_source_examples(source, recipe.seed)]
    check_dev(examples)
    if recipe.dev.limit and len(examples) > recipe.dev.limit:
        examples = random.Random(recipe.seed).sample(examples, recipe.dev.limit)
        check_dev(examples, "dev.limit")
    return examples


def check_dev(examples: Sequence[Example], field: str = "dev.data") -> None:
    """Raise if no dev query has a relevant candidate: the mean metric would not be a number.

    :param field: the key of the recipe that selected these examples.
    """
    if not any(Judgments.of(example).has_relevant for example in examples):
        raise InputError(f"none of the {len(examples)} dev queries has a relevant candidate", field=field)


def prepare_lists(examples: Sequence[Example], model: Model, *, needs_contrast: bool) -> PreparedData:
    """Encode examples exactly as the model will read them at inference.

    :param needs_contrast: drop lists in which all labels are equal. Losses on single pairs can use them, ranking losses
        cannot.
    """
    if not examples:
        raise InputError("no training examples; the files are empty or max_examples leaves none", field="data")
    check_conflicts(examples, model.manifest.format)
    windows = replace(model.manifest.windows, max_count=1)
    reader = replace(model, manifest=replace(model.manifest, windows=windows))
    lists: list[PreparedList] = []
    windowed = dropped = 0
    for example in examples:
        prepared, windowed_here = _prepare(example, reader)
        windowed += windowed_here
        if is_trainable(prepared.labels, needs_contrast=needs_contrast):
            lists.append(prepared)
        else:
            dropped += 1
    check_trainable([prepared.labels for prepared in lists])
    return PreparedData(tuple(lists), windowed, dropped)


def is_trainable(labels: Sequence[float], *, needs_contrast: bool) -> bool:
    """Return whether a list with these labels gives a training signal."""
    return len(set(labels)) > 1 if needs_contrast else len(labels) > 0


def check_trainable(lists: Sequence[Sequence[float]]) -> None:
    """Raise if the labels of all lists together give no training signal."""
    if not lists:
        raise InputError("no example has both a relevant and an irrelevant candidate", field="data")
    if not any(label > 0 for labels in lists for label in labels):
        raise InputError("every label is 0", field="data")


def drop_long_queries(
    examples: Sequence[Example], writer: InputWriter, on_message: Callable[[str], None], name: str
) -> list[Example]:
    """Return the examples whose query leaves room for a memory, and report how many do not.

    :param name: what messages call the examples.
    """
    fitting = [example for example in examples if _fits(example.query, writer)]
    dropped = len(examples) - len(fitting)
    if dropped and not fitting:
        raise InputError(f"every query is too long for max_length {writer.max_length}", field=name, code="too_long")
    if dropped:
        on_message(f"{name}: dropped {dropped} of {len(examples)} queries, too long for max_length {writer.max_length}")
    return fitting


def drop_conflicts(examples: Sequence[Example], format_name: str, sources: Collection[str]) -> list[Example]:
    """Return the examples; those of the given sources lose candidates labeled 0 that any example labels 1.

    :param format_name: candidates are compared as the model reads them.
    """
    return drop_label_conflicts(examples, _formatted_pair(format_name), sources) if sources else list(examples)


def check_conflicts(examples: Iterable[Example], format_name: str) -> None:
    """Raise if a pair, as the model reads it, is labeled both 1 and 0."""
    try:
        for _ in check_label_conflicts(examples, _formatted_pair(format_name), _describe):
            pass
    except InputError as error:
        raise InputError(error.message, field="data", code=error.code, location=error.location) from None


def _formatted_pair(format_name: str) -> PairKey:
    return lambda example, candidate: (example.query, format_memory(candidate.memory, format_name))


def _dev_source_examples(source: Source, seed: int) -> list[Example]:
    """Triplets are evaluated as in the Hindsight reranker: each query against all memories of the file."""
    if (detect_format(source.path) if source.format == "auto" else source.format) != "triplets":
        return load_sources([source], seed)
    for _ in read_examples(source.path, "triplets", source.label_conflicts):
        pass  # raises on label conflicts, which the benchmark loader below resolves silently
    pooled = [replace(e, source=source.name) for e in loaders["triplets"].read(source.path)]
    examples = select_split(pooled, source)
    if source.max_examples is None:
        return examples
    return random.Random(seed).sample(examples, min(source.max_examples, len(examples)))


def _fits(query: str, writer: InputWriter) -> bool:
    try:
        writer.room(query)
    except InputError:
        return False
    return True


def _prepare(example: Example, model: Model) -> tuple[PreparedList, int]:
    try:
        readings = model.passages(example.query, example.memories)
    except InputError as error:
        raise InputError(f"{_describe(example)}: {error}", field="data") from None
    first: dict[int, Passage] = {}
    windowed = 0
    for reading in readings:
        if reading.owner not in first:
            first[reading.owner] = reading.passage
            windowed += reading.window is not None
    chosen = [(first[i], candidate) for i, candidate in enumerate(example.candidates) if i in first]
    prepared = PreparedList(
        example.id,
        example.source or "",
        example.query,
        tuple(passage for passage, _ in chosen),
        tuple(candidate.label for _, candidate in chosen),
        tuple(_teacher_score(candidate) for _, candidate in chosen),
        tuple(candidate.weight for _, candidate in chosen),
    )
    return prepared, windowed


def _teacher_score(candidate: Candidate) -> float:
    score = teacher_score(candidate)
    return math.nan if score is None else score


def _describe(example: Example) -> str:
    return f"{example.source or 'example'} {example.id}"
