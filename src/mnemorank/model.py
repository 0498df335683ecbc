"""Model: an artefact with its scorer, from memories to raw scores (format, windows, scoring, best window)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from mnemorank.artefact import Manifest, load_artefact
from mnemorank.formats import Formatted, formats
from mnemorank.memory import Memory
from mnemorank.ranking.lexical import bm25
from mnemorank.ranking.windows import Span, best_windows, split
from mnemorank.scorers import Passage, Scorer, open_scorer
from mnemorank.scorers.base import Scores
from mnemorank.scorers.probe import warn_if_failing


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
        deadline: float | None = None,
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
        artefact = load_artefact(name)
        if verify:
            artefact.verify()
        model = cls(artefact.manifest, open_scorer(artefact, **options), artefact.fingerprint)
        if probe is None:
            probe = artefact.manifest.family in ("torch", "lora", "yes-no") or not artefact.has_manifest
        if probe:
            warn_if_failing(model)
        return model

    def score(
        self,
        query: str,
        memories: Sequence[Memory],
        *,
        instruction: str | None = None,
        deadline: float | None = None,
    ) -> Scored:
        """Score each memory by its best window.

        :param deadline: a `time.monotonic()` value; memories are then scored in the given order.
        """
        readings = self.readings(query, memories, instruction)
        passages = [reading.passage for reading in readings]
        scores = self.scorer.score(query, passages, instruction=instruction, deadline=deadline)
        raw = np.full(len(memories), np.nan)
        matched: list[str | None] = [None] * len(memories)
        unfinished = set()
        for reading, score in zip(readings, scores, strict=True):
            if np.isnan(score):
                unfinished.add(reading.owner)
            elif not raw[reading.owner] >= score:
                raw[reading.owner], matched[reading.owner] = score, reading.window
        raw[list(unfinished)] = np.nan
        return Scored(raw, matched, self.manifest)

    def count_tokens(self, memories: Sequence[Memory]) -> list[int]:
        """How many of the model's tokens each memory's own text has."""
        return [passage.length for passage in self.scorer.prepare([memory.text for memory in memories])]

    def close(self) -> None:
        self.scorer.close()

    def readings(self, query: str, memories: Sequence[Memory], instruction: str | None = None) -> list[Reading]:
        """What to score: each memory whole, or the best windows of those that are too long. Empty ones are left out."""
        write = formats[self.manifest.format].write
        room = self.scorer.room(query, instruction)
        limit = min(room, self.manifest.windows.tokens or room)
        filled = [i for i, memory in enumerate(memories) if memory.text.strip()]
        written = {i: write(memories[i]) for i in filled}
        whole = dict(zip(filled, self.scorer.prepare([written[i].text for i in filled]), strict=True))
        long = {i: self._windows(written[i], limit) for i in filled if whole[i].length > limit}
        chosen = self._best_windows(query, long)
        return [
            reading
            for i in filled
            for reading in (
                self._read_windows(i, long[i][0], chosen[i], limit) if i in long else [Reading(i, whole[i])]
            )
        ]

    def _windows(self, written: Formatted, limit: int) -> tuple[Formatted, list[Span]]:
        """Windows of the body. A heading that leaves the text no room (a very long context) is read as text itself."""
        around = self.scorer.prepare([written.before, written.after])
        room = limit - sum(part.length for part in around)
        if room < max(limit // 4, 8):
            written, room = Formatted("", written.text), limit
        return written, split(written.body, self.scorer.offsets(written.body), room, self.manifest.windows.overlap)

    def _best_windows(self, query: str, long: dict[int, tuple[Formatted, list[Span]]]) -> dict[int, list[Span]]:
        """The windows worth scoring: the best by BM25 over all windows of the pool."""
        most = self.manifest.windows.most
        if all(len(spans) <= most for _, spans in long.values()):
            return {i: spans for i, (_, spans) in long.items()}
        scores = bm25(query, [written.body[slice(*span)] for written, spans in long.values() for span in spans])
        chosen = {}
        done = 0
        for i, (_, spans) in long.items():
            own = scores[done : done + len(spans)]
            chosen[i] = [spans[position] for position in best_windows(own, most)]
            done += len(spans)
        return chosen

    def _read_windows(self, owner: int, written: Formatted, spans: list[Span], limit: int) -> list[Reading]:
        windows = [written.body[slice(*span)].strip() for span in spans]
        passages = self.scorer.prepare([written.before + window + written.after for window in windows])
        return [
            reading
            for window, passage in zip(windows, passages, strict=True)
            for reading in self._fitting(owner, written, window, passage, limit)
        ]

    def _fitting(self, owner: int, written: Formatted, window: str, passage: Passage, limit: int) -> list[Reading]:
        """The window, or two halves of it: cut out of its text, a word may be tokenized longer than it was inside."""
        if passage.length <= limit or len(window) < 2:
            return [Reading(owner, passage, window)]
        tokens = self.scorer.offsets(window)
        halves = split(window, tokens, max((len(tokens) + 1) // 2, 1), overlap=0)
        if len(halves) < 2:
            halves = [(0, len(window) // 2), (len(window) // 2, len(window))]
        return self._read_windows(owner, written, halves, limit)


@dataclass(frozen=True, slots=True)
class Reading:
    """A passage to score for the memory at `owner`, and the window's text if it is one of several."""

    owner: int
    passage: Passage
    window: str | None = None
