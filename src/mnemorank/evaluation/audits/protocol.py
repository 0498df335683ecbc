"""The types of an audit, its input and its finding, and what audits share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mnemorank._internal.arrays import Floats
from mnemorank._internal.plugins import PluginTable
from mnemorank.data.benchmarks import Loader
from mnemorank.data.examples import Candidate, Example
from mnemorank.data.formats import READERS, detect_format, is_own_format
from mnemorank.errors import InputError
from mnemorank.evaluation.metrics import Judgments, neutral_order
from mnemorank.memory.memory import Memory
from mnemorank.model.model import Model, score_with_truncation

AuditVerdict = Literal["pass", "warn", "fail", "skipped"]
ScoreFunction = Callable[[str, Sequence[Memory]], Floats]
"""Scores the memories of a pool for a query."""


@dataclass(frozen=True, slots=True)
class AuditInput:
    """The data and models under audit.

    :param is_triplets: the examples are triplets, where the order of the two candidates means nothing.
    :param models: loaded models by name; audits of a model use the first.
    :param train: the examples that a model was trained on, for leakage.
    :param limit: the number of examples to score with a model.
    """

    examples: Sequence[Example]
    is_triplets: bool = False
    models: dict[str, Model] = field(default_factory=dict)
    train: Sequence[Example] | None = None
    limit: int = 200

    @property
    def model(self) -> Model | None:
        return next(iter(self.models.values()), None)

    def sample(self, max_candidates: int = 16) -> list[Example]:
        """Return examples that are small enough to score, the same on every run.

        Each has some of its candidates, with at least one relevant and one irrelevant one.
        """
        examples = []
        for example in self.examples:
            order, is_relevant = neutral_order(example), relevance_mask(example)
            relevant = [i for i in order if is_relevant[i]][: max(max_candidates // 4, 1)]
            irrelevant = [i for i in order if not is_relevant[i]][: max_candidates - len(relevant)]
            if relevant and irrelevant:
                chosen = {*relevant, *irrelevant}
                examples.append(replace_candidates(example, [example.candidates[i] for i in order if i in chosen]))
        step = max(len(examples) / self.limit, 1.0)
        return [examples[int(i * step)] for i in range(min(len(examples), self.limit))]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of an audit.

    :param summary: the result as a sentence.
    :param number: the audit's figure, which `summary` explains.
    :param examples: cases to look at.
    :param details: further figures by name.
    """

    audit: str
    verdict: AuditVerdict
    summary: str
    number: float | None = None
    examples: Sequence[str] = ()
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Audit:
    """A check of a dataset or a model.

    :param run: returns a finding with the verdict `skipped` if the input lacks what the audit needs.
    """

    name: str
    description: str
    run: Callable[[AuditInput], Finding]


audits: PluginTable[Audit] = PluginTable("audit")


def read_audit_file(path: Path, loader: Loader | None = None) -> tuple[list[Example], bool]:
    """Return the examples of a file, and whether they are triplets.

    :param loader: the benchmark that the file belongs to; None to detect one of our formats.
    """
    if loader is not None:
        return _non_empty(loader.read(path), path), False
    format = detect_format(path)
    return _non_empty(READERS[format](path), path), format == "triplets"


def read_training_file(path: Path, loader: Loader | None = None) -> list[Example]:
    """Return the examples of a file in one of our formats, or else in that of the loader."""
    return read_audit_file(path, None if is_own_format(path) else loader)[0]


def _non_empty(examples: Iterable[Example], path: Path) -> list[Example]:
    result = list(examples)
    if not result:
        raise InputError("contains no examples", code="empty", location=str(path))
    return result


def relevance_mask(example: Example) -> NDArray[np.bool_]:
    """Return which candidates count as relevant, as in `bench`."""
    return Judgments.of(example).relevant


def has_both_labels(example: Example) -> bool:
    """Return whether there are both relevant and irrelevant candidates."""
    is_relevant = relevance_mask(example)
    return bool(is_relevant.any() and not is_relevant.all())


def replace_candidates(example: Example, candidates: Sequence[Candidate]) -> Example:
    """Return the example with other candidates, without the fields that refer to the old ones."""
    return replace(example, candidates=tuple(candidates), missing=(), pairs=())


def pair_accuracy(example: Example, scores: Floats) -> float:
    """Return the share of pairs of a relevant and an irrelevant candidate in the right order; ties count half."""
    is_relevant = relevance_mask(example)
    relevant, irrelevant = scores[is_relevant], scores[~is_relevant]
    if not len(relevant) or not len(irrelevant):
        return float("nan")
    difference = relevant[:, None] - irrelevant[None, :]
    return float((difference > 0).mean() + 0.5 * (difference == 0).mean())


def mean_pair_accuracy(examples: Sequence[Example], score: ScoreFunction) -> float:
    """Return the mean `pair_accuracy` of a model or baseline."""
    return float(np.nanmean([pair_accuracy(example, score(example.query, example.memories)) for example in examples]))


def score_function(model: Model) -> ScoreFunction:
    """Return a function that gives the model's raw scores; a memory without text scores lowest."""

    def score(query: str, memories: Sequence[Memory]) -> Floats:
        raw = score_with_truncation(model, query, memories)[0].raw
        return np.where(np.isnan(raw), -np.inf, raw)

    return score


def verdict_on(value: float, warn: float, fail: float) -> AuditVerdict:
    """Return the verdict on a figure where lower is better."""
    return "fail" if value > fail else "warn" if value > warn else "pass"


def skip_without_model(audit: str) -> Finding:
    return Finding(audit, "skipped", "needs a model: add --model")


def skip_without_labels(audit: str) -> Finding:
    return Finding(audit, "skipped", "no example has both relevant and irrelevant candidates")


def shorten(text: str, length: int = 90) -> str:
    """Return the text on one line, cut to the given length."""
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 1].rstrip() + "…"
