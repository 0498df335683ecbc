"""The result cache, which lets an interrupted benchmark resume, and the digests that make up its keys."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import IO

from mnemorank.errors import InputError
from mnemorank.evaluation.protocol import Prediction

FORMAT = 3
# Code that does not influence predictions.
_UNRELATED = {"cli", "server", "learning", "training", "export", "report", "audits"}


class ResultCache:
    """The predictions of one system on one dataset, one JSON object per line, appended as they come.

    A question is identified by its position in the dataset, since ids may repeat in mixed files. A line that was cut
    off by an interruption is skipped.

    :param key: everything the predictions depend on: task, digest of the dataset, fingerprint of the system.
    """

    def __init__(self, folder: Path, key: Mapping[str, str]) -> None:
        name = hashlib.sha256(json.dumps({"format": FORMAT, **key}, sort_keys=True).encode()).hexdigest()[:24]
        self._path = folder / f"{name}.jsonl"
        self._predictions = self._read()
        self._stream: IO[str] | None = None

    def get(self, question: int) -> Prediction | None:
        return self._predictions.get(question)

    def put(self, question: int, prediction: Prediction) -> None:
        if self._stream is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._stream = self._path.open("a", encoding="utf-8")
            if self._stream.tell() and not self._path.read_bytes().endswith(b"\n"):
                self._stream.write("\n")
        self._stream.write(json.dumps({"question": question, **prediction.to_record()}, allow_nan=False) + "\n")
        self._stream.flush()

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _read(self) -> dict[int, Prediction]:
        predictions: dict[int, Prediction] = {}
        if not self._path.is_file():
            return predictions
        for line in self._path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                record = json.loads(line)
                predictions[record["question"]] = Prediction.from_record(record)
            except (json.JSONDecodeError, KeyError, TypeError, ValueError):
                continue
        return predictions


def default_cache_folder() -> Path:
    """Return `$XDG_CACHE_HOME/mnemorank/bench`, by default under `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "mnemorank" / "bench"


def file_digest(paths: Iterable[Path]) -> str:
    """Return a digest of the content of files, in the given order."""
    digest = hashlib.sha256()
    for path in paths:
        try:
            with path.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror or error}", location=str(path)) from None
    return digest.hexdigest()[:16]


def folder_digest(folder: Path) -> str:
    """Return a digest of the names, sizes and modification times of a folder's files.

    The files are not read: they may be gigabytes of weights.
    """
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    stats = [(str(path.relative_to(folder)), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    return hashlib.sha256(repr(stats).encode()).hexdigest()[:16]


@cache
def code_digest() -> str:
    """Return a digest of the package's own source, so that results of other versions are not reused."""
    root = Path(str(files("mnemorank")))
    return file_digest(sorted(p for p in root.rglob("*.py") if not _UNRELATED & set(p.relative_to(root).parts)))
