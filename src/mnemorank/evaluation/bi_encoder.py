"""A bi-encoder folder in sentence-transformers' layout: cosine of query and memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mnemorank._internal.arrays import Floats
from mnemorank.artifact.manifest import MANIFEST
from mnemorank.errors import ArtifactError, MissingExtraError
from mnemorank.evaluation.baselines import Answer, Question
from mnemorank.evaluation.files import digest_of_code, digest_of_folder

PREFIX = "bi:"


def is_bi_encoder(folder: Path) -> bool:
    """A sentence-transformers folder whose last step pools tokens into a vector, and not one of our artifacts."""
    modules = folder / "modules.json"
    return modules.is_file() and not (folder / MANIFEST).exists() and "Pooling" in modules.read_text(encoding="utf-8")


class BiEncoder:
    """Long memories are cut into windows of words and count by their best window.

    :param words: the longest window; None fits the model's length.
    """

    def __init__(self, folder: Path, name: str | None = None, words: int | None = None) -> None:
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError as error:
            raise MissingExtraError(
                f"{folder}: a bi-encoder needs `pip install 'mnemorank[train]'` ({error})"
            ) from error
        if not folder.is_dir():
            raise ArtifactError(f"{folder}: is not a folder with a bi-encoder")
        try:
            self._model: Any = SentenceTransformer(str(folder), device="cpu")
        except (OSError, ValueError, KeyError) as error:
            raise ArtifactError(f"{folder}: cannot be loaded as a bi-encoder: {error}") from error
        self.name = name or folder.resolve().name
        # About 1.4 tokens a word of English, with room for the special tokens.
        self._words = words or max(int((self._model.max_seq_length or 256) / 1.4) - 2, 8)
        self.fingerprint = f"bi-{self._words}-{digest_of_folder(folder)}-{digest_of_code()}"
        self._known: dict[str, Floats] = {}

    def answer(self, question: Question) -> Answer:
        query = self._model.encode([question.query], normalize_embeddings=True, show_progress_bar=False)[0]
        windows = [self._windows(memory.text) for memory in question.memories]
        self._encode([window for own in windows for window in own])
        best = [max((float(self._known[w] @ query) for w in own), default=-1.0) for own in windows]
        return Answer(np.array(best))

    def _windows(self, text: str) -> list[str]:
        """Overlapping by a fifth, like the pipeline's."""
        words = text.split()
        step = max(int(self._words * 0.8), 1)
        starts = range(0, max(len(words) - self._words // 5, 1), step)
        return [" ".join(words[start : start + self._words]) for start in starts] if words else []

    def _encode(self, windows: Sequence[str]) -> None:
        """Windows of sessions that several questions share are encoded once."""
        if len(self._known) > 200_000:
            self._known.clear()
        new = [window for window in dict.fromkeys(windows) if window not in self._known]
        if new:
            vectors = self._model.encode(new, normalize_embeddings=True, show_progress_bar=False, batch_size=32)
            self._known.update(zip(new, np.asarray(vectors, dtype=np.float64), strict=True))
