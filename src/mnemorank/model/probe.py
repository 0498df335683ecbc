"""The probe: a few obvious pairs that any working reranker gets right."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mnemorank._internal.arrays import Floats
from mnemorank.artifact.calibration import model_odds
from mnemorank.errors import MnemorankError, ProbeWarning
from mnemorank.memory.memory import Memory

if TYPE_CHECKING:
    from mnemorank.model.model import Scoring

# Query, a text that answers it, and an unrelated text. All are short, so that the probe is fast.
PAIRS = (
    ("Where does Maria work?", "Maria works at a bakery in Lyon.", "The printer on the second floor is out of toner."),
    ("What is the capital of France?", "Paris is the capital of France.", "Tom's bicycle has a flat tire."),
    ("Which database do we use?", "We use PostgreSQL as our database.", "Grandma knits a scarf for the winter."),
    ("What is Leo allergic to?", "Leo is allergic to peanuts.", "The train to Vienna leaves from platform four."),
    ("When is the dentist appointment?", "The dentist appointment is on Monday at nine.", "Whales are mammals."),
    (
        "How do I bake bread?",
        "To bake bread, knead the dough and put it in a hot oven.",
        "The court rejected the appeal.",
    ),
)
_MIN_CORRECT = len(PAIRS) - 1
_MIN_GAP = 0.5
_MAX_FLAT_RANGE = 0.1


@dataclass(frozen=True, slots=True)
class ProbedPair:
    """The raw scores of the text that answers a query and of the unrelated one."""

    query: str
    relevant: float
    unrelated: float


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The result of a probe.

    :param correct: the number of pairs in the right order.
    :param gap: the mean distance between relevant and unrelated texts, in log-odds.
    :param cause: the likely cause of a failure; None if the model passed.
    """

    passed: bool
    correct: int
    gap: float
    pairs: tuple[ProbedPair, ...]
    cause: str | None = None

    def __str__(self) -> str:
        summary = f"{self.correct} of {len(PAIRS)} obvious pairs correct, mean gap {self.gap:+.2f} log-odds"
        return summary if self.passed else f"{summary}; likely cause: {self.cause}"


def probe(model: Scoring) -> ProbeResult:
    """Score the obvious pairs. To pass, a model may get at most one wrong, and the scores must be well apart."""
    try:
        rows = [model.score(query, [Memory(text), Memory(other)]).raw for query, text, other in PAIRS]
    except MnemorankError as error:
        return ProbeResult(False, 0, 0.0, (), f"scoring failed: {error}")
    raw = np.array(rows, dtype=np.float64)
    pairs = tuple(ProbedPair(pair[0], *map(float, row)) for pair, row in zip(PAIRS, raw, strict=True))
    odds = model_odds(raw, model.manifest)
    gaps = odds[:, 0] - odds[:, 1]
    correct, gap = int((gaps > 0).sum()), float(gaps.mean())
    passed = correct >= _MIN_CORRECT and gap >= _MIN_GAP
    return ProbeResult(passed, correct, gap, pairs, None if passed else _likely_cause(model, odds, gaps))


def warn_if_failing(model: Scoring) -> ProbeResult:
    """Probe a model and issue a ProbeWarning with the likely cause if it fails."""
    result = probe(model)
    if not result.passed:
        warnings.warn(f"{model.manifest.name}: fails the probe: {result}", ProbeWarning, stacklevel=3)
    return result


def _likely_cause(model: Scoring, odds: Floats, gaps: Floats) -> str:
    is_language_model = model.manifest.family == "yes-no"
    missing = getattr(getattr(model, "scorer", None), "missing_weights", ())
    if missing:
        return f"untrained head ({', '.join(missing[:3])} missing in the model's files)"
    if np.ptp(odds) < _MAX_FLAT_RANGE:
        if is_language_model:
            return "all scores are nearly equal: wrong answer tokens or wrong template"
        return "all scores are nearly equal: untrained head"
    if (gaps < 0).sum() >= _MIN_CORRECT and -gaps.mean() >= _MIN_GAP:
        if is_language_model:
            return "scores are reversed: the answer tokens for yes and no are swapped"
        return "scores are reversed: the first label means relevant"
    wrong_template = f"wrong template (the manifest's `template` is {model.manifest.template!r})"
    return f"{wrong_template} or wrong answer tokens" if is_language_model else f"{wrong_template} or untrained head"
