"""Options of a ranking: everything around the model that a caller may choose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Literal, get_args

from mnemorank._internal.validation import check_number
from mnemorank.artifact.manifest import PipelineWeights
from mnemorank.errors import InputError

FirstStageSource = Literal["auto", "given", "bm25", "none"]
FirstStageMethod = Literal["score", "rank"]
Recency = Literal["none", "linear", "exponential"]
SupersessionMode = Literal["demote", "drop", "off"]

_CHOICES: Mapping[str, tuple[str | None, ...]] = {
    "first_stage": get_args(FirstStageSource),
    "first_stage_method": (None, *get_args(FirstStageMethod)),
    "recency": get_args(Recency),
    "supersession": get_args(SupersessionMode),
}
_SHARES = ("recency_weight", "temporal_weight", "proof_weight", "trust_weight", "tie_margin")
_OPTIONAL_SHARES = ("floor", "diversity", "replace_margin", "abstain_below")
_COUNTS = ("token_budget", "max_scored")


@dataclass(frozen=True, slots=True)
class Options:
    """How to rank, for one call or as the defaults of a `Reranker`.

    A memory that lacks the data for a factor (a date, a proof count, a trust value) is not affected by it.

    :param first_stage: the source of first-stage evidence: the memories' own scores (`given`), BM25 over the pool
        (`bm25`), the scores if there are any and BM25 otherwise (`auto`), or `none`.
    :param first_stage_method: standardize the first stage's `score` or its `rank`; the model's choice by default.
    :param weights: overrides of the model's pipeline weights by name, such as `{"same_day": 0}`; see `PipelineWeights`.
    :param recency: how age counts. `none` by default, since the model reads the dates itself.
    :param recency_weight: strength of the recency factor.
    :param recency_days: age at which linear recency reaches its minimum.
    :param half_life_days: half-life of exponential recency.
    :param temporal_weight: strength of the factor for memories inside the call's `time_range`.
    :param proof_weight: strength of the factor for memories with a `proof_count`.
    :param trust_weight: strength of the factor for memories with a `trust` value.
    :param supersession: give the place of outdated memories to their successor (`demote`), leave them out before
        `top_k` (`drop`), or ignore supersession (`off`).
    :param supersede_similar: let the model judge which of two similar memories replaces the other, if it was trained
        for that. Such memories are demoted, never dropped.
    :param detect_past_questions: keep outdated memories in place when the query asks about the past, if the model was
        trained to tell.
    :param max_scored: score at most this many candidates, the best of the first stage; the others follow unscored.
    :param floor: leave out memories with a relevance below this, and unscored ones.
    :param diversity: lambda of maximal marginal relevance: 1 is relevance alone, lower diversifies more. None turns it
        off.
    :param tie_margin: scores this close are ties, and the newer memory goes first.
    :param token_budget: stop before the results exceed this many tokens; the first is always kept.
    :param replace_margin: keep the first stage's top k except for one memory, which is replaced only if a better one
        beats the weakest by this much.
    :param abstain_below: the relevance that the best memory must reach, else the ranking abstains. The model's
        choice by default; 0 never abstains.
    """

    first_stage: FirstStageSource = "auto"
    first_stage_method: FirstStageMethod | None = None
    weights: Mapping[str, float] = field(default_factory=dict, hash=False)
    recency: Recency = "none"
    recency_weight: float = 0.2
    recency_days: float = 365.0
    half_life_days: float = 90.0
    temporal_weight: float = 0.2
    proof_weight: float = 0.1
    trust_weight: float = 0.2
    supersession: SupersessionMode = "demote"
    supersede_similar: bool = True
    detect_past_questions: bool = True
    max_scored: int | None = None
    floor: float | None = None
    diversity: float | None = None
    tie_margin: float = 0.0
    token_budget: int | None = None
    replace_margin: float | None = None
    abstain_below: float | None = None

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if not (value is None or isinstance(value, str)) or value not in choices:
                expected = ", ".join(str(choice) for choice in choices if choice is not None)
                raise InputError(f"expected one of {expected}; got {value!r:.60}", field=name)
        for name in ("supersede_similar", "detect_past_questions"):
            if not isinstance(getattr(self, name), bool):
                raise InputError(f"expected True or False, got {getattr(self, name)!r:.60}", field=name)
        for name in ("recency_days", "half_life_days"):
            check_number(name, getattr(self, name), 0)
            if not getattr(self, name):
                raise InputError(f"expected a number above 0, got {getattr(self, name)!r}", field=name)
        for name in _SHARES:
            check_number(name, getattr(self, name), 0, 1)
        for name in _OPTIONAL_SHARES:
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), 0, 1)
        for name in _COUNTS:
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), 1, whole=True)
        if self.replace_margin is not None and self.diversity not in (None, 1):
            raise InputError("cannot be combined with diversity, which changes what it keeps", field="replace_margin")
        object.__setattr__(self, "weights", _check_weights(self.weights))

    def __repr__(self) -> str:
        defaults = Options()
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        changed = [f"{name}={value!r}" for name, value in values.items() if value != getattr(defaults, name)]
        return f"Options({', '.join(changed)})"

    @classmethod
    def model_only(cls) -> Options:
        """Return options that rank by the model's calibrated relevance alone."""
        return cls(
            first_stage="none",
            weights={weight.name: 0.0 for weight in fields(PipelineWeights)},
            proof_weight=0.0,
            trust_weight=0.0,
            temporal_weight=0.0,
            supersession="off",
            abstain_below=0.0,
        )


def _check_weights(weights: object) -> Mapping[str, float]:
    if not isinstance(weights, Mapping):
        raise InputError(f"expected a mapping of names to numbers, got {weights!r:.60}", field="weights")
    known = {weight.name: weight for weight in fields(PipelineWeights)}
    for name, value in weights.items():
        if name not in known:
            raise InputError(f"unknown weight; expected one of {', '.join(known)}", field=f"weights.{name!s:.60}")
        check_number(f"weights.{name}", value, 0, known[name].metadata["maximum"])
    return dict(weights)
