"""Settings of the learning loop: a folder, and in it an optional `learning.toml`."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from mnemorank._internal.old_config import read_table
from mnemorank.errors import InputError
from mnemorank.learning.gate import GateRules
from mnemorank.learning.mining.rules import MiningRules
from mnemorank.learning.schedule import Cron
from mnemorank.learning.store.redaction import Policy

FILE = "learning.toml"


@dataclass(frozen=True, slots=True)
class Training:
    """How candidates are trained.

    :param recipe: a TOML file, or the name of a recipe that comes along.
    :param changes: to the recipe, `key=value` each.
    :param model: what version 0001 is made of when the registry is empty: `mini`, a folder, or `hf:org/name`.
    :param base: a torch folder to train from where the current version has none and none can be made of its ONNX file.
    :param replay: examples trained on beside the feedback, against forgetting; our own dated triplets by default.
    :param replay_weight: how often a replayed example comes up, relative to one of the feedback.
    :param replay_most: the most examples replayed, drawn by the recipe's seed; None for twice the feedback's.
    :param least_examples: below which nothing is trained.
    :param quantize: how the candidate is exported: `int8`, `int8-static`, `int4` or `none`.
    :param nice: how far the training stands back for everything else on the machine, 0 to 19.
    :param attempts: how often a training that was killed is taken up again.
    """

    recipe: str = "feedback"
    changes: tuple[str, ...] = ()
    model: str = "mini"
    base: str | None = None
    replay: Path | None = None
    replay_weight: float = 1.0
    replay_most: int | None = None
    least_examples: int = 20
    quantize: str = "int8"
    threads: int = 1
    nice: int = 10
    attempts: int = 3

    def __post_init__(self) -> None:
        if self.quantize not in ("none", "int8", "int8-static", "int4"):
            raise InputError(f"expected none, int8, int8-static or int4, got {self.quantize!r}", field="quantize")
        for name, low, high in (
            ("threads", 1, 1024),
            ("nice", 0, 19),
            ("attempts", 1, 100),
            ("least_examples", 1, 10**9),
        ):
            if not low <= getattr(self, name) <= high:
                raise InputError(f"expected a whole number from {low} to {high}, got {getattr(self, name)}", field=name)
        if not self.replay_weight >= 0:
            raise InputError(f"expected a number from 0, got {self.replay_weight}", field="replay_weight")
        if self.replay_most is not None and self.replay_most < 1:
            raise InputError(f"expected a number from 1, got {self.replay_most}", field="replay_most")


@dataclass(frozen=True, slots=True)
class Guards:
    """:param general: examples that the gate's floor is measured on, in any of our formats.
    :param dated: triplets that test dates; our own by default.
    """

    general: Path | None = None
    dated: Path | None = None


@dataclass(frozen=True, slots=True)
class Schedule:
    """When the loop runs by itself: at the times of a cron expression, or after so many new examples, or both.

    :param cron: five fields, such as `0 3 * * *`.
    """

    cron: str | None = None
    after_examples: int | None = None

    def __post_init__(self) -> None:
        if self.cron is not None:
            Cron.parse(self.cron).next_after(datetime.now())
        if self.after_examples is not None and self.after_examples < 1:
            raise InputError(f"expected a whole number from 1, got {self.after_examples}", field="after_examples")


@dataclass(frozen=True, slots=True)
class Settings:
    """:param store: database URL; `events.db` in the folder by default.
    :param registry: folder of the versions; `registry` in the folder by default.
    :param explore: the probability of swapping two neighbours of a ranking; see `mnemorank.learning.exploration`.
    :param explore_seed: draws the same each time the server is started, for tests and simulations.
    :param shadow: a candidate that passed the gate is first scored beside live traffic, and promoted by hand.
    :param keep: versions that collection leaves.
    """

    store: str | None = None
    registry: Path | None = None
    explore: float = 0.0
    explore_seed: int | None = None
    shadow: bool = False
    keep: int = 5
    privacy: Policy = Policy()
    mining: MiningRules = MiningRules()
    training: Training = Training()
    gate: GateRules = GateRules()
    guards: Guards = Guards()
    schedule: Schedule = Schedule()

    def __post_init__(self) -> None:
        if not 0 <= self.explore <= 0.5:
            raise InputError(f"expected a probability from 0 to 0.5, got {self.explore}", field="explore")


def settings_to_table(settings: Settings) -> dict[str, Any]:
    """As JSON values, without the store's URL, which may hold a password."""
    table: dict[str, Any] = json.loads(json.dumps(asdict(settings), default=str))
    return {**table, "store": None}


def settings_from_table(table: Mapping[str, Any]) -> Settings:
    return read_table(Settings, table, "settings")


def load_settings(root: Path) -> Settings:
    """The settings of a loop's folder; all defaults without a `learning.toml`."""
    path = root / FILE
    if not path.exists():
        return Settings()
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{path}: cannot be read as TOML: {error}") from None
    return read_table(Settings, table, str(path))
