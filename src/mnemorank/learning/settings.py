"""Settings of the learning loop, read from `learning.toml` in the loop's folder. Every key is optional."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from mnemorank._internal.config import ConfigModel, read_toml, validate_config
from mnemorank.errors import InputError
from mnemorank.learning.schedule import next_run

FILE = "learning.toml"

Count = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(ge=0, le=1)]
RedactionPattern = Literal["key", "email", "card", "phone"]
REDACTION_PATTERNS: tuple[RedactionPattern, ...] = ("key", "email", "card", "phone")


class PrivacySettings(ConfigModel):
    """What the event store keeps.

    :param texts: store the texts of shown memories. Without them, mining needs a lookup by memory id.
    :param queries: store the texts of queries.
    :param redact: built-in patterns that are removed from every text before it is written.
    :param patterns: additional patterns, name → regular expression; a match becomes `[name]`.
    :param retention_days: age at which events are deleted; None keeps them.
    :param late_after_days: signals that arrive later than this after their event do not count.
    :param test_tenants: tenants whose traffic is test traffic.
    """

    texts: bool = False
    queries: bool = True
    redact: tuple[RedactionPattern, ...] = REDACTION_PATTERNS
    patterns: Mapping[str, str] = Field(default_factory=dict)
    retention_days: Annotated[float, Field(gt=0)] | None = 365.0
    late_after_days: Annotated[float, Field(gt=0)] = 30.0
    test_tenants: tuple[str, ...] = ("test",)

    @field_validator("patterns")
    @classmethod
    def _check_patterns(cls, patterns: Mapping[str, str]) -> Mapping[str, str]:
        for name, pattern in patterns.items():
            try:
                re.compile(pattern)
            except re.error as error:
                raise InputError(f"invalid regular expression: {error}", field=name) from None
        return patterns


class MiningSettings(ConfigModel):
    """How feedback becomes training examples.

    :param clip: upper limit of the position correction of a signal.
    :param skip_weight: weight of a memory that was skipped, before correction.
    :param weighted: weight each label by the corrected votes for it; otherwise all labels weigh the same.
    :param min_agreement: share of the votes, by weight and by head count, that must agree on a label. Memories below
        it are disputed and left out.
    :param max_queries_per_user: queries on which one user of a tenant has a vote; `max_share_per_user` of the
        tenant's queries if that is more. The only user of a tenant has a vote on all of them.
    :param max_users_per_key: users behind one API key who have a vote on a query, if users behind other keys voted on
        it, too.
    :param min_users: users that must have voted for a memory before it becomes a positive.
    :param min_support: a positive needs votes from more than this share of the users who voted on the query. Applies
        from four users on; without it a few accounts could push a memory that nobody else looked at.
    :param max_positives: positives kept per query, by weight.
    :param max_negatives: negatives kept per query, by weight.
    :param easy_negatives: negatives taken from other queries when a query has only positives.
    :param held_out: share of the queries that are reserved for the gate and never trained on.
    :param max_unjudged: memories without feedback that a held-out example includes, from the top of the ranking.
    """

    clip: Annotated[float, Field(ge=1)] = 5.0
    skip_weight: Annotated[float, Field(ge=0)] = 0.3
    weighted: bool = True
    min_agreement: Annotated[float, Field(gt=0.5, le=1)] = 2 / 3
    max_queries_per_user: Count = 20
    max_share_per_user: Fraction = 0.1
    max_users_per_key: Count = 10
    min_users: Count = 1
    min_support: Fraction = 1 / 3
    max_positives: Count = 3
    max_negatives: Annotated[int, Field(ge=0)] = 8
    easy_negatives: Annotated[int, Field(ge=0)] = 3
    held_out: Annotated[float, Field(gt=0, lt=1)] = 0.3
    max_unjudged: Annotated[int, Field(ge=0)] = 30


class TrainingSettings(ConfigModel):
    """How candidates are trained.

    :param recipe: a TOML file, or the name of a bundled recipe.
    :param overrides: changes to the recipe, each `key=value`.
    :param model: the model that becomes version 0001: `mini`, a folder, or a Hugging Face Hub id.
    :param base: a torch folder to train from when the current version has no torch weights.
    :param replay: examples mixed with the feedback against forgetting; the bundled dated triplets by default.
    :param replay_weight: sampling weight of a replayed example, relative to an example from feedback.
    :param max_replay: replayed examples; twice the number of examples from feedback by default.
    :param min_examples: training does not start with fewer examples.
    :param quantize: quantization of the exported candidate.
    :param nice: niceness of the training process.
    :param attempts: how many times a run may be started, the first time included, before it fails.
    """

    recipe: str = "feedback"
    overrides: tuple[str, ...] = ()
    model: str = "mini"
    base: str | None = None
    replay: Path | None = None
    replay_weight: Annotated[float, Field(ge=0)] = 1.0
    max_replay: Count | None = None
    min_examples: Annotated[int, Field(ge=1, le=10**9)] = 20
    quantize: Literal["none", "int8", "int8-static", "int4"] = "int8"
    threads: Annotated[int, Field(ge=1, le=1024)] = 1
    nice: Annotated[int, Field(ge=0, le=19)] = 10
    attempts: Annotated[int, Field(ge=1, le=100)] = 3


class GateSettings(ConfigModel):
    """When a candidate is good enough to be promoted.

    :param metric: primary metric, measured on the held-out feedback.
    :param alpha: significance level of the two-sided paired randomization test. Attempt k since the last promotion is
        tested at alpha/(k·(k+1)), which keeps the probability of any false promotion below alpha.
    :param min_queries: held-out queries without which nothing is promoted.
    :param min_gain: required gain in the primary metric.
    :param tolerances: guard set → how much its MAP may drop, against both the current and the baseline version.
    :param max_ece_increase: how much the calibration error may increase, against the same two versions.
    :param max_latency_ratio: time per pair, relative to the current model.
    :param max_size_ratio: size in bytes, relative to the current model.
    :param shadow_events: scored events with feedback that a shadow candidate needs before it may be promoted.
    """

    metric: Literal["map", "mrr@10", "ndcg@10", "hit@1"] = "map"
    alpha: Annotated[float, Field(gt=0, lt=1)] = 0.05
    min_queries: Annotated[int, Field(ge=0)] = 30
    min_gain: float = 0.0
    tolerances: Mapping[str, float] = Field(default_factory=lambda: {"general": 0.01, "dated": 0.02})
    max_ece_increase: float = 0.05
    max_latency_ratio: Annotated[float, Field(gt=0)] = 1.5
    max_size_ratio: Annotated[float, Field(gt=0)] = 1.5
    shadow_events: Count = 30

    def alpha_for(self, attempt: int) -> float:
        """Return the significance level of an attempt, counted from 1 since the last promotion."""
        return self.alpha / (attempt * (attempt + 1))


class GuardSettings(ConfigModel):
    """Evaluation sets on which a candidate must not get worse.

    :param general: examples of your own domain, in any of our formats.
    :param dated: triplets that test dates; the bundled ones by default.
    """

    general: Path | None = None
    dated: Path | None = None


class ScheduleSettings(ConfigModel):
    """When the loop runs on its own: at the times of a cron expression, after a number of new examples, or both.

    :param cron: five fields, such as `0 3 * * *`.
    """

    cron: str | None = None
    after_examples: Count | None = None

    @field_validator("cron")
    @classmethod
    def _check_cron(cls, cron: str | None) -> str | None:
        if cron is not None:
            try:
                next_run(cron, datetime.now())
            except InputError as error:
                raise ValueError(error.message) from None  # the field is known to pydantic
        return cron


class LearningSettings(ConfigModel):
    """All settings of a loop.

    :param store: database URL; `events.db` in the loop's folder by default.
    :param store_timeout_seconds: how long recording an event may wait for the database.
    :param versions: folder of the model versions; `versions` in the loop's folder by default.
    :param explore: probability of swapping two neighbors of a ranking; see `mnemorank.learning.exploration`.
    :param explore_seed: makes exploration reproducible, for tests and simulations.
    :param shadow: score live traffic with a candidate that passed the gate before it is promoted.
    :param keep: versions that remain when old ones are removed.
    """

    store: str | None = None
    store_timeout_seconds: Annotated[float, Field(gt=0)] = 1.0
    versions: Path | None = None
    explore: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    explore_seed: int | None = None
    shadow: bool = False
    keep: Count = 5
    privacy: PrivacySettings = PrivacySettings()
    mining: MiningSettings = MiningSettings()
    training: TrainingSettings = TrainingSettings()
    gate: GateSettings = GateSettings()
    guards: GuardSettings = GuardSettings()
    schedule: ScheduleSettings = ScheduleSettings()

    @classmethod
    def from_table(cls, table: Mapping[str, Any], source: str = "settings") -> LearningSettings:
        """Validate a table.

        :param source: where it comes from, for errors.
        """
        return validate_config(cls, table, source)

    def to_table(self) -> dict[str, Any]:
        """Return JSON values, without the database URL, which may contain a password."""
        return self.model_dump(mode="json", exclude={"store"})

    def with_training(self, **changes: Any) -> LearningSettings:
        """Return a copy with other training settings."""
        return self.model_copy(update={"training": self.training.model_copy(update=changes)})


def load_settings(root: Path) -> LearningSettings:
    """Read the settings of a loop's folder; without a `learning.toml`, all defaults."""
    path = root / FILE
    return LearningSettings.from_table(read_toml(path), str(path)) if path.exists() else LearningSettings()
