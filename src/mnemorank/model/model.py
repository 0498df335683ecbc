"""A model: scores memories for a query (format, passages, scorer, best passage)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from mnemorank._internal.deadline import Deadline
from mnemorank._internal.validation import check_number
from mnemorank.artifact.manifest import Manifest
from mnemorank.artifact.resolve import load_artifact
from mnemorank.errors import QueryTooLongError
from mnemorank.memory.memory import Memory
from mnemorank.model.judge import Judge
from mnemorank.model.passages import MemoryPassage, PassageReader
from mnemorank.model.prepare import Prepared, not_split, prepare
from mnemorank.model.probe import warn_if_failing
from mnemorank.scorers import Scorer, open_scorer
from mnemorank.scorers.protocol import Scores
from mnemorank.scorers.states import StateStore

if TYPE_CHECKING:
    from mnemorank.scorers.state_file import StateFile

# Memories are tokenized and scored in chunks. That bounds the memory in use, and small chunks keep a deadline.
_CHUNK_MEMORIES = 2048
_DEADLINE_CHUNK_MEMORIES = 64
_DEADLINE_CHUNK_CHARACTERS = 16_384
_MAX_WORD_LENGTH = 40
_MEGABYTE = 1_000_000


@dataclass(frozen=True, slots=True)
class Scored:
    """The raw scores of a pool.

    :param raw: a score for each memory; NaN if it was not reached before the deadline or has no text.
    :param matched: the best window of each memory, None for memories that were read whole.
    :param manifest: of the model that scored, for calibration and thresholds.
    :param judge: further judgments of that model, if it makes any.
    """

    raw: Scores
    matched: list[str | None]
    manifest: Manifest
    judge: Judge | None = None

    def windowed_share(self) -> float:
        """Return the share of the scored memories that were read only in windows."""
        read = [window is not None for window, raw in zip(self.matched, self.raw, strict=True) if np.isfinite(raw)]
        return sum(read) / len(read) if read else 0.0

    def passage(self, position: int, memory: Memory) -> str:
        """Return the part of the memory at this position that was read: its best window, or the whole text."""
        return self.matched[position] or memory.text


class Scoring(Protocol):
    """A model, or a chain of models, as the pipeline sees it: memories in, raw scores out."""

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
    """A manifest and the scorer that runs its weights. Create one with `Model.load`.

    :param state_file: what `prepare` writes to; closed together with the model.
    """

    manifest: Manifest
    scorer: Scorer
    fingerprint: str = ""
    state_file: StateFile | None = None

    @classmethod
    def load(
        cls,
        name: str | Path = "mini",
        *,
        verify: bool = True,
        probe: bool | None = None,
        states: str | Path | StateStore | None = None,
        states_megabytes: float | None = None,
        **options: Any,
    ) -> Model:
        """Load a model by name.

        :param name: a bundled model (`mini`), a folder, a Hugging Face Hub id (`org/name`) or the address of a remote
            model (`tei:http://127.0.0.1:8080`).
        :param verify: check the files against the manifest's hashes first.
        :param probe: score a few obvious pairs and warn if the model fails on them. By default this is done for torch
            models and for folders without a manifest, where the template, the answer tokens or the head may be wrong.
        :param states: for split models, the folder in which what they read of memories is kept for other processes.
        :param states_megabytes: the size limit of that folder, which remembers it; beyond it, the oldest are deleted.
            16,000 at first.
        :param options: for the scorer; see `open_scorer`.
        """
        artifact = load_artifact(name)
        if states is not None and artifact.manifest.family != "split":
            raise not_split(artifact.manifest.name, "states")
        if states_megabytes is not None:
            check_number("states_megabytes", states_megabytes, 1)
        if verify:
            artifact.verify()
        state_file = None
        if isinstance(states, (str, Path)):
            from mnemorank.scorers.state_file import StateFile

            max_bytes = None if states_megabytes is None else int(states_megabytes * _MEGABYTE)
            state_file = states = StateFile(states, artifact.reading_fingerprint, max_bytes=max_bytes)
        if states is not None:
            options["states"] = states
        try:
            scorer = open_scorer(artifact, **options)
        except BaseException:
            if state_file is not None:
                state_file.close()
            raise
        model = cls(artifact.manifest, scorer, artifact.fingerprint, state_file)
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
        """Score each memory by its best passage.

        :param deadline: memories are tokenized and scored in the given order until it expires.
        """
        raw = np.full(len(memories), np.nan)
        matched: list[str | None] = [None] * len(memories)
        reader = PassageReader.create(self.scorer, self.manifest, query, instruction, deadline)
        for first, chunk in _chunks(memories, has_deadline=deadline is not None):
            if deadline is not None and deadline.expired:
                break
            passages = reader.read(chunk)
            scores = self.scorer.score(
                query, [each.passage for each in passages], instruction=instruction, deadline=deadline
            )
            for owner, (score, window) in _best_passages(passages, scores).items():
                raw[first + owner], matched[first + owner] = score, window
        return Scored(raw, matched, self.manifest, Judge.of(self.scorer, self.manifest))

    def prepare(self, memories: Sequence[Memory]) -> Prepared:
        """Compute what a split model reads of memories, so that ranking them is fast for every later query.

        It is kept in the folder `states`; without one, in this process only, up to the option `cache_megabytes`.
        """
        return prepare(self.scorer, self.manifest, memories, self.state_file)

    def passages(self, query: str, memories: Sequence[Memory], instruction: str | None = None) -> list[MemoryPassage]:
        """Return the passages to score: each memory whole, or the best windows of those that are too long."""
        return PassageReader.create(self.scorer, self.manifest, query, instruction).read(memories)

    def count_tokens(self, memories: Sequence[Memory]) -> list[int]:
        """Return the number of tokens in each memory's text."""
        return [passage.length for passage in self.scorer.prepare([memory.text for memory in memories])]

    def close(self) -> None:
        """Release the model's memory."""
        self.scorer.close()
        if self.state_file is not None:
            self.state_file.close()


def _chunks(memories: Sequence[Memory], *, has_deadline: bool) -> Iterator[tuple[int, Sequence[Memory]]]:
    """Yield the memories in chunks, each with the position of its first memory."""
    if not has_deadline:
        for first in range(0, len(memories), _CHUNK_MEMORIES):
            yield first, memories[first : first + _CHUNK_MEMORIES]
        return
    first = characters = 0
    for i, memory in enumerate(memories):
        is_full = i - first == _DEADLINE_CHUNK_MEMORIES or characters + len(memory.text) > _DEADLINE_CHUNK_CHARACTERS
        if i > first and is_full:
            yield first, memories[first:i]
            first, characters = i, 0
        characters += len(memory.text)
    if first < len(memories):
        yield first, memories[first:]


def _best_passages(passages: Sequence[MemoryPassage], scores: Scores) -> dict[int, tuple[float, str | None]]:
    """Return the best score of each memory and its window; a memory with an unscored passage is left out."""
    best: dict[int, tuple[float, str | None]] = {}
    unfinished = {each.owner for each, score in zip(passages, scores, strict=True) if np.isnan(score)}
    for each, score in zip(passages, scores, strict=True):
        if each.owner not in unfinished and (each.owner not in best or score > best[each.owner][0]):
            best[each.owner] = float(score), each.window
    return best


def score_with_truncation(
    model: Scoring,
    query: str,
    memories: Sequence[Memory],
    *,
    instruction: str | None = None,
    deadline: Deadline | None = None,
) -> tuple[Scored, str]:
    """Score memories for a query of any length. If it is too long for the model, only its end is read.

    :returns: the scores, and the query as the model read it.
    """
    read = query
    while True:
        try:
            return model.score(read, memories, instruction=instruction, deadline=deadline), read
        except QueryTooLongError as error:
            read = _tail(read, error.max_tokens / (2 * error.tokens))
            if not read.strip():
                raise


def readable_query(scorer: Scorer, query: str, instruction: str | None = None) -> str:
    """Return the query, or only its end if it is too long for the model."""
    while True:
        try:
            scorer.room(query, instruction)
            return query
        except QueryTooLongError as error:
            query = _tail(query, error.max_tokens / (2 * error.tokens))
            if not query.strip():
                raise


def prepare_with(model: Scoring, memories: Sequence[Memory]) -> Prepared:
    """Prepare memories with a model; raise an InputError if it cannot."""
    method = getattr(model, "prepare", None)
    if method is None:
        raise not_split(type(model).__name__, "model")
    prepared: Prepared = method(memories)
    return prepared


def _tail(text: str, share: float) -> str:
    """Return the last share of a text, from the start of a word if there is one nearby: not all scripts have spaces."""
    start = len(text) - int(len(text) * share)
    space = text.find(" ", start, start + _MAX_WORD_LENGTH)
    return text[space + 1 :] if 0 <= space < len(text) - 1 else text[start:]
