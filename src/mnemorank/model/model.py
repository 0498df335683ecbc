"""Model: an artifact with its scorer, from memories to raw scores (format, windows, scoring, best window)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from mnemorank._internal.deadline import Deadline
from mnemorank.artifact.manifest import Manifest
from mnemorank.artifact.resolve import load_artifact
from mnemorank.errors import QueryTooLongError
from mnemorank.memory.memory import Memory
from mnemorank.model.passages import Reader, Reading
from mnemorank.model.probe import warn_if_failing
from mnemorank.scorers import Scorer, open_scorer
from mnemorank.scorers.protocol import Scores

# Memories made ready at a time: bounds memory whatever the pool, and keeps a deadline from passing in preparation.
_MEMORIES_AT_ONCE = 2048
_MEMORIES_BEFORE_A_DEADLINE = 64


@dataclass(frozen=True, slots=True)
class Scored:
    """Raw scores of a pool.

    :param raw: one a memory; NaN where the deadline came first or there is no text.
    :param matched: for memories read in windows, the part of the text that scored best; None for those read whole.
    :param manifest: of the model that scored, for calibration and thresholds.
    """

    raw: Scores
    matched: list[str | None]
    manifest: Manifest

    def windowed_share(self) -> float:
        """Return the share of the scored memories that were read only in windows."""
        read = [window is not None for window, raw in zip(self.matched, self.raw, strict=True) if np.isfinite(raw)]
        return sum(read) / len(read) if read else 0.0

    def passage(self, position: int, memory: Memory) -> str:
        """What was read of the memory at this position: its best window, or all of it."""
        return self.matched[position] or memory.text


class Scoring(Protocol):
    """What the pipeline asks of a model, or of a chain of models: memories in, raw scores out."""

    @property
    def manifest(self) -> Manifest: ...

    def score(
        self,
        query: str,
        memories: Sequence[Memory],
        *,
        instruction: str | None = None,
        deadline: Deadline | None = None,
    ) -> Scored: ...

    def count_tokens(self, memories: Sequence[Memory]) -> list[int]: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Model:
    """One model. `Model.load("mini")`, a folder, or `hf:org/name`."""

    manifest: Manifest
    scorer: Scorer
    fingerprint: str = ""

    @classmethod
    def load(
        cls, name: str | Path = "mini", *, verify: bool = True, probe: bool | None = None, **options: Any
    ) -> Model:
        """:param verify: check the files against the manifest's hashes first.
        :param probe: try the model on a few obvious pairs and warn if it fails; by default done for models on torch
            and those without a manifest, where template, token ids or head may be wrong.
        :param options: for the scorer; see `open_scorer`.
        """
        artifact = load_artifact(name)
        if verify:
            artifact.verify()
        model = cls(artifact.manifest, open_scorer(artifact, **options), artifact.fingerprint)
        if probe is None:
            probe = artifact.manifest.family in ("torch", "lora", "yes-no") or not artifact.has_manifest
        if probe:
            warn_if_failing(model)
        return model

    def score(
        self,
        query: str,
        memories: Sequence[Memory],
        *,
        instruction: str | None = None,
        deadline: Deadline | None = None,
    ) -> Scored:
        """Score each memory by its best window.

        :param deadline: memories are then scored in the given order.
        """
        raw = np.full(len(memories), np.nan)
        matched: list[str | None] = [None] * len(memories)
        step = _MEMORIES_AT_ONCE if deadline is None else _MEMORIES_BEFORE_A_DEADLINE
        for first in range(0, len(memories), step):
            if deadline is not None and deadline.expired:
                break
            readings = self.readings(query, memories[first : first + step], instruction)
            passages = [reading.passage for reading in readings]
            scores = self.scorer.score(query, passages, instruction=instruction, deadline=deadline)
            for owner, (score, window) in best_of(readings, scores).items():
                raw[first + owner], matched[first + owner] = score, window
        return Scored(raw, matched, self.manifest)

    def count_tokens(self, memories: Sequence[Memory]) -> list[int]:
        """How many of the model's tokens each memory's own text has."""
        return [passage.length for passage in self.scorer.prepare([memory.text for memory in memories])]

    def close(self) -> None:
        self.scorer.close()

    def readings(self, query: str, memories: Sequence[Memory], instruction: str | None = None) -> list[Reading]:
        """The passages to score: each memory whole, or what is worth reading of those that are too long."""
        return Reader.of(self.scorer, self.manifest, query, instruction).read(memories)


def best_of(readings: Sequence[Reading], scores: Scores) -> dict[int, tuple[float, str | None]]:
    """Each memory's best score and the window it was for; a memory with a window not scored in time is left out."""
    best: dict[int, tuple[float, str | None]] = {}
    unfinished = {reading.owner for reading, score in zip(readings, scores, strict=True) if np.isnan(score)}
    for reading, score in zip(readings, scores, strict=True):
        if reading.owner not in unfinished and (reading.owner not in best or score > best[reading.owner][0]):
            best[reading.owner] = float(score), reading.window
    return best


_LONGEST_WORD = 40


def score_by_the_end(
    model: Scoring,
    query: str,
    memories: Sequence[Memory],
    *,
    instruction: str | None = None,
    deadline: Deadline | None = None,
) -> tuple[Scored, str]:
    """The scores, and what of the query was read: all of it, or its end where the whole leaves a memory no room."""
    asked = query
    while True:
        try:
            return model.score(asked, memories, instruction=instruction, deadline=deadline), asked
        except QueryTooLongError as error:
            asked = end_of(asked, error.max_tokens / (2 * error.tokens))
            if not asked.strip():
                raise


def end_of(text: str, share: float) -> str:
    """The last share of a text, from the beginning of a word where there is one near: not every script parts them."""
    start = len(text) - int(len(text) * share)
    border = text.find(" ", start, start + _LONGEST_WORD)
    return text[border + 1 :] if 0 <= border < len(text) - 1 else text[start:]
