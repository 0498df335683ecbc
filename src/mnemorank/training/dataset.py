"""From examples to lists a model can read: formatted, tokenized, long memories by their best window, and checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from mnemorank.artifact.formats import format_memory
from mnemorank.data.distill import teacher_score
from mnemorank.data.examples import Candidate, Example
from mnemorank.data.label_conflicts import PairKey, check_label_conflicts, drop_label_conflicts
from mnemorank.errors import InputError
from mnemorank.model.model import Model
from mnemorank.scorers.encoding import InputWriter
from mnemorank.scorers.protocol import Passage


@dataclass(frozen=True, slots=True)
class ReadyList:
    """An example with its candidates ready for the model.

    :param teacher: a teacher's logits (`teacher_score` in a memory's metadata), NaN where there is none.
    :param weights: how much each label counts.
    """

    id: str
    source: str
    query: str
    passages: tuple[Passage, ...]
    labels: tuple[float, ...]
    teacher: tuple[float, ...]
    weights: tuple[float, ...]

    @property
    def length(self) -> float:
        return sum(passage.length for passage in self.passages) / len(self.passages)


@dataclass(frozen=True, slots=True)
class ReadyData:
    """:param windowed: candidates that were too long and are read by their best window.
    :param dropped: lists that cannot teach a ranking: nothing in them differs in label.
    """

    lists: tuple[ReadyList, ...]
    windowed: int = 0
    dropped: int = 0


def prepare(examples: Sequence[Example], model: Model, *, ranking: bool) -> ReadyData:
    """Make examples ready, reading memories exactly as the model will at inference.

    :param ranking: drop lists in which all labels are equal; for losses that look at single pairs they are of use.
    """
    if not examples:
        raise InputError(
            "there is no example to train on; the files are empty or their caps leave nothing", field="data"
        )
    check_labels(examples, model.manifest.format)
    reader = replace(model, manifest=replace(model.manifest, windows=replace(model.manifest.windows, max_count=1)))
    lists: list[ReadyList] = []
    windowed = dropped = 0
    for example in examples:
        ready, cut = _ready(example, reader)
        windowed += cut
        if teaches(ready.labels, ranking=ranking):
            lists.append(ready)
        else:
            dropped += 1
    check_teaching([ready.labels for ready in lists])
    return ReadyData(tuple(lists), windowed, dropped)


def teaches(labels: Sequence[float], *, ranking: bool) -> bool:
    """Whether a list of such labels has something to teach."""
    return len(set(labels)) > 1 if ranking else len(labels) > 0


def check_teaching(lists: Sequence[Sequence[float]]) -> None:
    """Stop where the labels of all lists leave nothing to learn."""
    if not lists:
        raise InputError(
            "no example has both a relevant and an irrelevant candidate; there is nothing to learn", field="data"
        )
    if not any(label > 0 for labels in lists for label in labels):
        raise InputError("every label is 0; there is nothing to learn", field="data")


def that_fit(examples: Sequence[Example], writer: InputWriter, say: Callable[[str], None], what: str) -> list[Example]:
    """The examples whose questions leave room for a memory; how many do not is said.

    :param what: what errors and messages call the examples.
    """
    fitting = [example for example in examples if _fits(example.query, writer)]
    left_out = len(examples) - len(fitting)
    if left_out and not fitting:
        raise InputError(
            f"{what}: no question leaves room for a memory in {writer.max_length} tokens: model.max_length"
        )
    if left_out:
        say(f"{what}: left out {left_out} of {len(examples)}, questions too long for max_length {writer.max_length}")
    return fitting


def _fits(query: str, writer: InputWriter) -> bool:
    try:
        writer.room(query)
    except InputError:
        return False
    return True


def drop_conflicts(examples: Sequence[Example], format_name: str, sources: Collection[str]) -> list[Example]:
    """Return the examples; those of the given sources lose candidates labeled 0 that any example labels 1.

    :param format_name: candidates are compared as the model reads them.
    """
    return drop_label_conflicts(examples, _formatted_pair(format_name), sources) if sources else list(examples)


def check_labels(examples: Iterable[Example], format_name: str) -> None:
    """Raise an error if a pair, as the model reads it, is labeled both 1 and 0."""
    try:
        for _ in check_label_conflicts(examples, _formatted_pair(format_name), _where):
            pass
    except InputError as error:
        raise InputError(error.message, field="data", code=error.code) from None


def _formatted_pair(format_name: str) -> PairKey:
    return lambda example, candidate: (example.query, format_memory(candidate.memory, format_name))


def _ready(example: Example, model: Model) -> tuple[ReadyList, int]:
    try:
        readings = model.passages(example.query, example.memories)
    except InputError as error:
        raise InputError(f"{_where(example)}: {error}", field="data") from None
    first: dict[int, Passage] = {}
    windowed = 0
    for reading in readings:
        if reading.owner not in first:
            first[reading.owner] = reading.passage
            windowed += reading.window is not None
    chosen = [(first[i], candidate) for i, candidate in enumerate(example.candidates) if i in first]
    return (
        ReadyList(
            example.id,
            example.source or "",
            example.query,
            tuple(passage for passage, _ in chosen),
            tuple(candidate.label for _, candidate in chosen),
            tuple(_teacher_score(candidate) for _, candidate in chosen),
            tuple(candidate.weight for _, candidate in chosen),
        ),
        windowed,
    )


def _teacher_score(candidate: Candidate) -> float:
    score = teacher_score(candidate)
    return math.nan if score is None else score


def _where(example: Example) -> str:
    return f"{example.source or 'example'} {example.id}"
