"""The gate: promote a candidate only if it is significantly better and nothing else gets worse."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mnemorank.data.bundled import bundled_dataset
from mnemorank.data.examples import Candidate, Example
from mnemorank.data.formats import read_any_format
from mnemorank.evaluation.significance import RESAMPLES, compare
from mnemorank.learning.events import digest
from mnemorank.learning.measurement import Measurement
from mnemorank.learning.settings import GateSettings
from mnemorank.learning.shadow import ShadowResult

PRIMARY = "feedback"
"""Name of the evaluation set that decides: the held-out feedback."""

_VS_BASELINE = "_vs_baseline"
_DEFAULT_TOLERANCE = 0.01
# Expected number of resamples beyond a result at alpha: enough to tell on which side of alpha a result is.
_RESAMPLES_BEYOND_ALPHA = 20
_MAX_RESAMPLES = 4_000_000
_DISTRACTORS = 14


@dataclass(frozen=True, slots=True)
class GateCheck:
    """One condition of the gate, with the numbers that it compares.

    :param low: of the 95% confidence interval of the difference, for conditions that compare queries.
    """

    name: str
    passed: bool
    reason: str
    current: float | None = None
    candidate: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class GateDecision:
    """The gate's decision on a candidate, with all its checks.

    :param attempt: number of this evaluation since the last promotion, from 1.
    """

    promote: bool
    attempt: int
    checks: tuple[GateCheck, ...]

    @property
    def reasons(self) -> list[str]:
        """The reasons of the failed checks; of all checks if none failed."""
        return [check.reason for check in self.checks if check.passed == self.promote]

    def to_dict(self) -> dict[str, Any]:
        return {"promote": self.promote, "attempt": self.attempt, "checks": [asdict(check) for check in self.checks]}


def decide(
    current: Measurement,
    candidate: Measurement,
    settings: GateSettings | None = None,
    attempt: int = 1,
    baseline: Measurement | None = None,
) -> GateDecision:
    """Decide whether a candidate may replace the current model.

    :param attempt: number of this evaluation since the last promotion, from 1.
    :param baseline: the first version, if it is not the current one: small losses must not add up over promotions.
    """
    settings = settings or GateSettings()
    checks = [_check_query_count(current, settings), _check_gain(current, candidate, settings, attempt)]
    checks += _check_guards(current, candidate, settings)
    checks.append(_check_calibration(current, candidate, settings))
    if baseline is not None:
        checks += _check_guards(baseline, candidate, settings, _VS_BASELINE)
        checks.append(_check_calibration(baseline, candidate, settings, _VS_BASELINE))
    checks += [
        _check_ratio("latency", current.seconds_per_pair, candidate.seconds_per_pair, settings.max_latency_ratio),
        _check_ratio("size", current.size_bytes, candidate.size_bytes, settings.max_size_ratio),
    ]
    return GateDecision(all(check.passed for check in checks), attempt, tuple(checks))


def check_shadow(result: ShadowResult | None, settings: GateSettings) -> GateCheck:
    """Check whether live traffic confirms that a candidate is not worse.

    :param result: None if no event that the candidate scored has feedback yet.
    """
    events = result.events if result else 0
    if result is None or events < settings.shadow_events:
        return GateCheck("shadow", False, f"shadow: {events} events with feedback; needs {settings.shadow_events}")
    passed = result.candidate_map >= result.served_map
    reason = (
        f"shadow: MAP on {events} events {result.served_map:.4f} (current model) → {result.candidate_map:.4f} "
        f"(candidate), p = {result.comparison.p:.4f}: {'not worse' if passed else 'worse'}"
    )
    return GateCheck("shadow", passed, reason, result.served_map, result.candidate_map)


def _check_query_count(current: Measurement, settings: GateSettings) -> GateCheck:
    queries = len(current.sets[PRIMARY].values(settings.metric))
    passed = queries >= settings.min_queries
    verdict = "enough" if passed else f"needs {settings.min_queries}"
    return GateCheck("queries", passed, f"{queries} held-out queries: {verdict}")


def _check_gain(current: Measurement, candidate: Measurement, settings: GateSettings, attempt: int) -> GateCheck:
    old, new = (measured.sets[PRIMARY].values(settings.metric) for measured in (current, candidate))
    if not len(old):
        return GateCheck("gain", False, f"{settings.metric} on held-out feedback: no queries to compare")
    alpha = settings.alpha_for(attempt)
    comparison = compare(new, old, _resamples(alpha))
    gain = comparison.difference.mean
    passed = gain > max(settings.min_gain, 0.0) and comparison.p < alpha
    reason = (
        f"{settings.metric} on held-out feedback {old.mean():.4f} → {new.mean():.4f} ({gain:+.4f}, "
        f"p = {comparison.p:.3g}, {comparison.wins} wins, {comparison.losses} losses, {comparison.ties} ties): "
        f"{'significantly better' if passed else f'not significantly better at p < {alpha:.3g}'}"
    )
    difference = comparison.difference
    return GateCheck("gain", passed, reason, float(old.mean()), float(new.mean()), difference.low, difference.high)


def _resamples(alpha: float) -> int:
    """Enough resamples for a p-value well below alpha. The maximum bounds the time, up to some 400 attempts at 0.05."""
    return max(RESAMPLES, min(math.ceil(_RESAMPLES_BEYOND_ALPHA / alpha), _MAX_RESAMPLES))


def _check_guards(
    reference: Measurement, candidate: Measurement, settings: GateSettings, suffix: str = ""
) -> list[GateCheck]:
    checks = []
    for name in sorted(reference.sets):
        if name == PRIMARY:
            continue
        old, new = reference.sets[name].mean("map"), candidate.sets[name].mean("map")
        tolerance = settings.tolerances.get(name, _DEFAULT_TOLERANCE)
        passed = new >= old - tolerance
        verdict = "within" if passed else "beyond"
        reason = f"{name}{suffix}: MAP {old:.4f} → {new:.4f}, {verdict} the tolerance of {tolerance:g}"
        checks.append(GateCheck(f"{name}{suffix}", passed, reason, old, new))
    return checks


def _check_calibration(
    reference: Measurement, candidate: Measurement, settings: GateSettings, suffix: str = ""
) -> GateCheck:
    old, new = reference.ece, candidate.ece
    passed = new <= old + settings.max_ece_increase
    verdict = "within" if passed else "beyond"
    reason = f"ece{suffix}: {old:.4f} → {new:.4f}, {verdict} the tolerance of {settings.max_ece_increase:g}"
    return GateCheck(f"ece{suffix}", passed, reason, old, new)


def _check_ratio(name: str, old: float, new: float, limit: float) -> GateCheck:
    ratio = new / old if old else math.inf
    passed = ratio <= limit
    verdict = "within" if passed else "beyond"
    return GateCheck(name, passed, f"{name}: {ratio:.2f} times the current model, {verdict} {limit:g}", old, new)


def load_guard_sets(general: Path | None = None, dated: Path | None = None) -> dict[str, list[Example]]:
    """Load the guard sets.

    :param general: examples of your own domain, in any of our formats. By default, the queries of the dated set with
        memories about other topics, which test for the right topic instead of the right date.
    :param dated: triplets that test dates; the bundled ones by default.
    """
    pairs = list(read_any_format(dated or bundled_dataset("dated", "dev")))
    return {"dated": pairs, "general": list(read_any_format(general)) if general else add_distractors(pairs)}


def add_distractors(examples: Sequence[Example], count: int = _DISTRACTORS) -> list[Example]:
    """Add memories of other examples as irrelevant candidates, the same on every call."""
    memory_by_text = {candidate.memory.text: candidate.memory for e in examples for candidate in e.candidates}
    extended = []
    for example in examples:
        own_texts = {memory.text for memory in example.memories}
        others = (text for text in memory_by_text if text not in own_texts)
        chosen = sorted(others, key=lambda text: digest(example.query, text))[:count]
        added = tuple(Candidate(memory_by_text[text], 0.0) for text in chosen)
        extended.append(replace(example, candidates=example.candidates + added))
    return extended
