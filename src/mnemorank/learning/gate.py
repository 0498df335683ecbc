"""The gate: a candidate is promoted only if it is proven better and nothing else got worse."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from mnemorank.data.bundled import bundled_dataset
from mnemorank.data.examples import Candidate, Example
from mnemorank.data.formats import read_any_format
from mnemorank.errors import InputError
from mnemorank.evaluation.significance import RESAMPLES, compare
from mnemorank.learning.events import digest
from mnemorank.learning.measurement import Measurement
from mnemorank.learning.shadow import ShadowResult

PRIMARY = "feedback"
_FIRST = " since the first version"
METRICS = ("map", "mrr@10", "ndcg@10", "hit@1")
# So many resamples are expected beyond a result just at alpha: enough to tell which side of it the result is on.
_RESAMPLES_BEYOND = 20
_MOST_RESAMPLES = 4_000_000


@dataclass(frozen=True, slots=True)
class GateRules:
    """When a candidate is good enough.

    :param metric: the primary metric, on the held-out feedback.
    :param alpha: of the two-sided paired randomization test. Attempt k since the last promotion is tested at
        alpha/(k·(k+1)), so that however often a candidate is tried the chance of a false promotion stays below alpha.
    :param least_queries: held-out queries below which nothing is promoted.
    :param least_gain: in the primary metric.
    :param tolerances: how much a guard set's MAP may fall, from the current version and in all from the first.
    :param ece: how much the calibration error may rise, likewise.
    :param shadow_events: with feedback that a candidate in the shadow needs before it may be promoted.
    :param latency, size: how many times the current model's time per pair and bytes a candidate may take.
    """

    metric: str = "map"
    alpha: float = 0.05
    least_queries: int = 30
    least_gain: float = 0.0
    tolerances: Mapping[str, float] = field(default_factory=lambda: {"general": 0.01, "dated": 0.02})
    ece: float = 0.05
    latency: float = 1.5
    size: float = 1.5
    shadow_events: int = 30

    def __post_init__(self) -> None:
        if self.metric not in METRICS:
            raise InputError(f"expected one of {', '.join(METRICS)}, got {self.metric!r}", field="gate.metric")
        if not 0 < self.alpha < 1:
            raise InputError(f"expected a number between 0 and 1, got {self.alpha!r}", field="gate.alpha")

    def alpha_at(self, attempt: int) -> float:
        return self.alpha / (attempt * (attempt + 1))


@dataclass(frozen=True, slots=True)
class Check:
    """One condition of the gate, with the numbers it was decided on."""

    name: str
    passed: bool
    reason: str
    current: float | None = None
    candidate: float | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """:param attempt: which candidate this is since the last promotion."""

    promote: bool
    attempt: int
    checks: tuple[Check, ...]

    @property
    def reasons(self) -> list[str]:
        """Why not, or where all passed, why."""
        return [check.reason for check in self.checks if check.passed == self.promote]

    def to_dict(self) -> dict[str, Any]:
        return {"promote": self.promote, "attempt": self.attempt, "checks": [asdict(check) for check in self.checks]}


def decide(
    current: Measurement,
    candidate: Measurement,
    rules: GateRules | None = None,
    attempt: int = 1,
    floor: Measurement | None = None,
) -> Decision:
    """:param attempt: which candidate this is since the last promotion, from 1.
    :param floor: the first version, where it is not the current one: small losses must not add up over promotions.
    """
    rules = rules or GateRules()
    checks = [_enough(current, rules), _better(current, candidate, rules, attempt)]
    checks += [_guard(name, current, candidate, rules) for name in sorted(current.sets) if name != PRIMARY]
    checks += [_calibration(current, candidate, rules)]
    if floor is not None:
        guards = [_guard(name, floor, candidate, rules, _FIRST) for name in sorted(floor.sets) if name != PRIMARY]
        checks += [*guards, _calibration(floor, candidate, rules, _FIRST)]
    checks += [
        _ratio("latency", current.seconds_per_pair, candidate.seconds_per_pair, rules.latency),
        _ratio("size", current.bytes, candidate.bytes, rules.size),
    ]
    return Decision(all(check.passed for check in checks), attempt, tuple(checks))


def check_shadow(found: ShadowResult | None, rules: GateRules) -> Check:
    """Whether live traffic bears out what the gate said of a candidate.

    :param found: None where no event that it scored has feedback yet.
    """
    events = found.events if found else 0
    if found is None or events < rules.shadow_events:
        return Check("shadow", False, f"in the shadow: feedback on {events} events, {rules.shadow_events} are needed")
    passed = found.candidate >= found.shown
    reason = (
        f"in the shadow: map on {events} events {found.shown:.4f} by the current model, "
        f"{found.candidate:.4f} by the candidate (p = {found.comparison.p:.4f}): {'not worse' if passed else 'worse'}"
    )
    return Check("shadow", passed, reason, found.shown, found.candidate)


def _enough(current: Measurement, rules: GateRules) -> Check:
    queries = len(current.sets[PRIMARY].values(rules.metric))
    passed = queries >= rules.least_queries
    words = "enough" if passed else f"at least {rules.least_queries} are needed"
    return Check("queries", passed, f"{queries} held-out queries: {words}")


def _better(current: Measurement, candidate: Measurement, rules: GateRules, attempt: int) -> Check:
    old, new = (measured.sets[PRIMARY].values(rules.metric) for measured in (current, candidate))
    if not len(old):
        return Check("gain", False, f"{rules.metric} on held-out feedback: nothing to compare on")
    alpha = rules.alpha_at(attempt)
    found = compare(new, old, _resamples(alpha))
    gain = found.difference.mean
    passed = gain > max(rules.least_gain, 0.0) and found.p < alpha
    reason = (
        f"{rules.metric} on held-out feedback {old.mean():.4f} → {new.mean():.4f} ({gain:+.4f}, p = {found.p:.3g}, "
        f"{found.wins} won, {found.losses} lost, {found.ties} tied): "
        f"{'significantly better' if passed else f'not shown to be better at p < {alpha:.3g}'}"
    )
    return Check("gain", passed, reason, float(old.mean()), float(new.mean()))


def _resamples(alpha: float) -> int:
    """Enough for a p-value well below alpha; the most bounds the time, and suffices for some 400 attempts at 0.05."""
    return max(RESAMPLES, min(math.ceil(_RESAMPLES_BEYOND / alpha), _MOST_RESAMPLES))


def _guard(name: str, current: Measurement, candidate: Measurement, rules: GateRules, since: str = "") -> Check:
    old, new = current.sets[name].mean("map"), candidate.sets[name].mean("map")
    limit = rules.tolerances.get(name, 0.01)
    passed = new >= old - limit
    words = "within" if passed else "falls beyond"
    reason = f"{name}{since} map {old:.4f} → {new:.4f}: {words} the tolerance of {limit:g}"
    return Check(f"{name}{since}", passed, reason, old, new)


def _calibration(current: Measurement, candidate: Measurement, rules: GateRules, since: str = "") -> Check:
    old, new = current.ece, candidate.ece
    passed = new <= old + rules.ece
    words = "within" if passed else "rises beyond"
    reason = f"ece{since} {old:.4f} → {new:.4f}: {words} the tolerance of {rules.ece:g}"
    return Check(f"ece{since}", passed, reason, old, new)


def _ratio(name: str, old: float, new: float, limit: float) -> Check:
    ratio = new / old if old else math.inf
    passed = ratio <= limit
    words = "within" if passed else "beyond"
    return Check(name, passed, f"{name} {ratio:.2f} times the current model's: {words} {limit:g}", old, new)


_DISTRACTORS = 14


def guard_sets(general: Path | None = None, dated: Path | None = None) -> dict[str, list[Example]]:
    """The guard sets by name.

    :param general: examples of your own domain, in any of our formats; by default each question of the dated dev set
        among memories of other matters, which asks for the right topic instead of the right date.
    """
    pairs = list(read_any_format(dated or bundled_dataset("dated", "dev")))
    return {"dated": pairs, "general": list(read_any_format(general)) if general else among_others(pairs)}


def among_others(examples: Sequence[Example], most: int = _DISTRACTORS) -> list[Example]:
    """Each example with memories of others added as wrong ones, the same on every run."""
    pool = {candidate.memory.text: candidate.memory for example in examples for candidate in example.candidates}
    wider = []
    for example in examples:
        own = {memory.text for memory in example.memories}
        others = sorted((text for text in pool if text not in own), key=lambda text: digest(example.query, text))[:most]
        added = tuple(Candidate(pool[text], 0.0) for text in others)
        wider.append(replace(example, candidates=example.candidates + added))
    return wider
