"""What an audit is, what it looks at and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mnemorank._internal.arrays import Floats
from mnemorank._internal.plugins import PluginTable
from mnemorank.data.examples import Candidate, Example
from mnemorank.evaluation.metrics import Judged, neutral_order
from mnemorank.memory.memory import Memory
from mnemorank.model.model import Model, score_by_the_end

Verdict = Literal["pass", "warn", "fail", "skipped"]
Scorer = Callable[[str, Sequence[Memory]], Floats]


@dataclass(frozen=True, slots=True)
class Material:
    """What is audited.

    :param examples: of the audited file.
    :param in_pairs: the file holds triplets: the order of the two sides says nothing.
    :param models: loaded models by name; audits of models look at the first.
    :param train: examples that a model was trained on, for leakage.
    :param limit: how many examples a model is asked about.
    """

    examples: Sequence[Example]
    in_pairs: bool = False
    models: dict[str, Model] = field(default_factory=dict)
    train: Sequence[Example] | None = None
    limit: int = 200

    @property
    def model(self) -> Model | None:
        return next(iter(self.models.values()), None)

    def sample(self, candidates: int = 16) -> list[Example]:
        """Examples small enough to ask a model about, the same on every run: some of each example's candidates, with
        at least one relevant and one that is not.
        """
        found = []
        for example in self.examples:
            order, is_right = neutral_order(example), relevant(example)
            right = [i for i in order if is_right[i]][: max(candidates // 4, 1)]
            wrong = [i for i in order if not is_right[i]][: candidates - len(right)]
            if right and wrong:
                chosen = [i for i in order if i in set(right) | set(wrong)]
                found.append(with_candidates(example, [example.candidates[i] for i in chosen]))
        step = max(len(found) / self.limit, 1.0)
        return [found[int(i * step)] for i in range(min(len(found), self.limit))]


@dataclass(frozen=True, slots=True)
class Finding:
    """What an audit found.

    :param number: the audit's figure; what it means stands in `summary`.
    :param summary: the verdict in words.
    :param examples: cases to look at.
    :param details: further figures by name.
    """

    audit: str
    verdict: Verdict
    summary: str
    number: float | None = None
    examples: Sequence[str] = ()
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Audit:
    """:param run: looks at the material; says `skipped` and why where it lacks something."""

    name: str
    description: str
    run: Callable[[Material], Finding]


audits: PluginTable[Audit] = PluginTable("audit")


def relevant(example: Example) -> NDArray[np.bool_]:
    """Which candidates are right: of graded ones only those from the example's own threshold, as in bench."""
    return Judged.of(example).relevant


def has_both(example: Example) -> bool:
    """Whether there is something to tell apart: right and wrong candidates."""
    is_right = relevant(example)
    return bool(is_right.any() and not is_right.all())


def with_candidates(example: Example, candidates: Sequence[Candidate]) -> Example:
    # What is missing from the pool, and positions in it, are those of the whole example.
    return replace(example, candidates=tuple(candidates), missing=(), pairs=())


def right_over_wrong(example: Example, scores: Floats) -> float:
    """Share of pairs of a relevant and an irrelevant candidate that are in the right order; ties count half."""
    is_right = relevant(example)
    right, wrong = scores[is_right], scores[~is_right]
    if not len(right) or not len(wrong):
        return float("nan")
    difference = right[:, None] - wrong[None, :]
    return float((difference > 0).mean() + 0.5 * (difference == 0).mean())


def accuracy(examples: Sequence[Example], scorer: Scorer) -> float:
    """Mean of `right_over_wrong`."""
    return float(
        np.nanmean([right_over_wrong(example, scorer(example.query, example.memories)) for example in examples])
    )


def scorer_of(model: Model) -> Scorer:
    """The bare model; a memory without text scores lowest, and a query that is too long is read by its end."""

    def score(query: str, memories: Sequence[Memory]) -> Floats:
        raw = score_by_the_end(model, query, memories)[0].raw
        return np.where(np.isnan(raw), -np.inf, raw)

    return score


def judged(value: float, warn: float, fail: float) -> Verdict:
    """The verdict on a number of which less is better."""
    return "fail" if value > fail else "warn" if value > warn else "pass"


def no_model(audit: str) -> Finding:
    return Finding(audit, "skipped", "needs a model: add --model")


def shown(text: str, length: int = 90) -> str:
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 1].rstrip() + "…"
