"""The template probe: a handful of obvious pairs that any working reranker tells apart."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mnemorank.artifact.calibration import model_odds
from mnemorank.errors import MnemorankError, ProbeWarning
from mnemorank.memory.memory import Memory

if TYPE_CHECKING:
    from mnemorank.model.model import Scoring

# Query, a text that answers it, one that has nothing to do with it. All are short: the probe must be cheap.
PAIRS = (
    ("Where does Maria work?", "Maria works at a bakery in Lyon.", "The printer on the second floor is out of toner."),
    ("What is the capital of France?", "Paris is the capital of France.", "Tom's bicycle has a flat tyre."),
    ("Which database do we use?", "We use PostgreSQL as our database.", "Grandma knits a scarf for the winter."),
    ("What is Leo allergic to?", "Leo is allergic to peanuts.", "The train to Vienna leaves from platform four."),
    ("When is the dentist appointment?", "The dentist appointment is on Monday at nine.", "Whales are mammals."),
    (
        "How do I bake bread?",
        "To bake bread, knead the dough and put it in a hot oven.",
        "The court rejected the appeal.",
    ),
)
LEAST_RIGHT = len(PAIRS) - 1
LEAST_GAP = 0.5
_FLAT = 0.1


@dataclass(frozen=True, slots=True)
class ProbedPair:
    """Raw scores of the text that answers the query and of the one that does not."""

    query: str
    right: float
    wrong: float


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """How a model did.

    :param right: pairs that came out in the right order, of `len(pairs)`.
    :param gap: how far apart right and wrong texts are on average, in log-odds.
    :param cause: why it fails, as far as the scores tell; None if it passed.
    """

    passed: bool
    right: int
    gap: float
    pairs: tuple[ProbedPair, ...]
    cause: str | None = None

    def __str__(self) -> str:
        told = f"{self.right} of {len(PAIRS)} obvious pairs right, {self.gap:+.2f} log-odds apart on average"
        return told if self.passed else f"{told}; likely cause: {self.cause}"


def probe(model: Scoring) -> ProbeResult:
    """Score the obvious pairs. At most one may come out wrong, and they must be apart."""
    manifest = model.manifest
    try:
        rows = [model.score(query, [Memory(right), Memory(wrong)]).raw for query, right, wrong in PAIRS]
    except MnemorankError as error:
        return ProbeResult(False, 0, 0.0, (), f"it cannot be scored with at all: {error}")
    raw = np.array(rows, dtype=np.float64)
    pairs = tuple(ProbedPair(pair[0], *map(float, row)) for pair, row in zip(PAIRS, raw, strict=True))
    odds = model_odds(raw, manifest)
    gaps = odds[:, 0] - odds[:, 1]
    right, gap = int((gaps > 0).sum()), float(gaps.mean())
    passed = right >= LEAST_RIGHT and gap >= LEAST_GAP
    return ProbeResult(passed, right, gap, pairs, None if passed else _cause(model, odds, gaps))


def warn_if_failing(model: Scoring) -> ProbeResult:
    """Probe, and warn with the likely cause if the model fails."""
    result = probe(model)
    if not result.passed:
        warnings.warn(f"{model.manifest.name}: fails the probe: {result}", ProbeWarning, stacklevel=3)
    return result


def _cause(model: Any, odds: np.ndarray[Any, Any], gaps: np.ndarray[Any, Any]) -> str:
    manifest = model.manifest
    missing = getattr(getattr(model, "scorer", None), "missing_weights", ())
    if missing:
        return f"untrained head ({', '.join(missing[:3])} not in the model's files)"
    if np.ptp(odds) < _FLAT:
        return (
            "the model answers everything alike: wrong token ids or wrong template"
            if manifest.family == "yes-no"
            else "untrained head: the model scores everything alike"
        )
    if (gaps < 0).sum() >= LEAST_RIGHT and -gaps.mean() >= LEAST_GAP:
        return (
            "wrong token ids: yes and no are the wrong way round"
            if manifest.family == "yes-no"
            else "the score is the wrong way round: the label that means relevant comes first"
        )
    return (
        f"wrong template ({manifest.template!r} is used; the manifest's `template` names it), or an untrained head"
        if manifest.family != "yes-no"
        else f"wrong template ({manifest.template!r} is used; the manifest's `template` names it) or wrong token ids"
    )
