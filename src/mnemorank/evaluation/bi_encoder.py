"""A bi-encoder as a system: the cosine of query and memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mnemorank._internal.arrays import Floats
from mnemorank.artifact.manifest import MANIFEST
from mnemorank.data.retrieval import load_bi_encoder
from mnemorank.evaluation.cache import code_digest, folder_digest
from mnemorank.evaluation.protocol import Prediction, Question

PREFIX = "bi:"
_MAX_CACHED_WINDOWS = 200_000
_TOKENS_PER_WORD = 1.4


def is_bi_encoder(folder: Path) -> bool:
    """Return whether a folder is in the layout of sentence-transformers, pools tokens and has no manifest of ours."""
    modules = folder / "modules.json"
    return modules.is_file() and not (folder / MANIFEST).exists() and "Pooling" in modules.read_text(encoding="utf-8")


class BiEncoder:
    """Ranks by cosine. A long memory is cut into windows and scores as its best window.

    :param window_words: the length of a window; by default what fits the model's input.
    """

    def __init__(self, folder: Path, name: str | None = None, window_words: int | None = None) -> None:
        self._model = load_bi_encoder(folder)
        self.name = name or folder.resolve().name
        max_words = int((self._model.max_seq_length or 256) / _TOKENS_PER_WORD)
        self._window_words = window_words or max(max_words - 2, 8)  # leaves room for the special tokens
        self.fingerprint = f"bi-{self._window_words}-{folder_digest(folder)}-{code_digest()}"
        self._vectors: dict[str, Floats] = {}

    def rank(self, question: Question) -> Prediction:
        query = self._model.encode([question.query], normalize_embeddings=True, show_progress_bar=False)[0]
        windows_by_memory = [self._windows(memory.text) for memory in question.memories]
        self._encode([window for windows in windows_by_memory for window in windows])
        return Prediction(
            np.array(
                [
                    max((float(self._vectors[window] @ query) for window in windows), default=-1.0)
                    for windows in windows_by_memory
                ]
            )
        )

    def _windows(self, text: str) -> list[str]:
        """Return windows that overlap by a fifth, like those of the pipeline."""
        words = text.split()
        step = max(int(self._window_words * 0.8), 1)
        starts = range(0, max(len(words) - self._window_words // 5, 1), step)
        return [" ".join(words[start : start + self._window_words]) for start in starts] if words else []

    def _encode(self, windows: Sequence[str]) -> None:
        """Encode the windows that are new: questions of one conversation share most of them."""
        if len(self._vectors) > _MAX_CACHED_WINDOWS:
            self._vectors.clear()
        new = [window for window in dict.fromkeys(windows) if window not in self._vectors]
        if new:
            vectors = self._model.encode(new, normalize_embeddings=True, show_progress_bar=False, batch_size=32)
            self._vectors.update(zip(new, np.asarray(vectors, dtype=np.float64), strict=True))
