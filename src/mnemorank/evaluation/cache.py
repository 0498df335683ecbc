"""Results of questions already answered, so that a benchmark can be stopped and resumed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from mnemorank.evaluation.baselines import Answer

FORMAT = 2


@dataclass(frozen=True, slots=True)
class Outcome:
    """A contestant's answer to one question, by position of the candidate in the file.

    :param seconds: how long it took, when it was computed.
    """

    ranking: tuple[int, ...]
    answer: Answer
    seconds: float

    def to_record(self) -> dict[str, Any]:
        relevance = self.answer.relevance
        return {
            "ranking": self.ranking,
            "scores": _numbers(self.answer.scores),
            "relevance": None if relevance is None else _numbers(relevance),
            "abstained": self.answer.abstained,
            "seconds": round(self.seconds, 6),
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Outcome:
        relevance = record["relevance"]
        answer = Answer(
            scores=np.array(record["scores"], dtype=np.float64),
            relevance=None if relevance is None else np.array(relevance, dtype=np.float64),
            abstained=record["abstained"],
        )
        return cls(tuple(record["ranking"]), answer, float(record["seconds"]))


def _numbers(values: Any) -> list[float | None]:
    return [round(float(value), 7) if np.isfinite(value) else None for value in values]


def default_folder() -> Path:
    """`$XDG_CACHE_HOME/mnemorank/bench`, by default under `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "mnemorank" / "bench"


class Cache:
    """The outcomes of one contestant on one dataset, a line each, written as they come.

    A question is known by its place in the dataset: ids repeat where files were mixed.
    A line that was cut off by an interruption is passed over, and its question asked again.

    :param key: all that the outcomes depend on: task, dataset digest, contestant fingerprint.
    """

    def __init__(self, folder: Path, key: Mapping[str, str]) -> None:
        name = hashlib.sha256(json.dumps({"format": FORMAT, **key}, sort_keys=True).encode()).hexdigest()[:24]
        self._path = folder / f"{name}.jsonl"
        self._known = self._read()
        self._stream: IO[str] | None = None

    def get(self, question: int) -> Outcome | None:
        return self._known.get(question)

    def put(self, question: int, outcome: Outcome) -> None:
        if self._stream is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._stream = self._path.open("a", encoding="utf-8")
            if self._stream.tell() and not self._path.read_bytes().endswith(b"\n"):
                self._stream.write("\n")
        self._stream.write(json.dumps({"question": question, **outcome.to_record()}, allow_nan=False) + "\n")
        self._stream.flush()

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _read(self) -> dict[int, Outcome]:
        known: dict[int, Outcome] = {}
        if not self._path.is_file():
            return known
        for line in self._path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                record = json.loads(line)
                known[record["question"]] = Outcome.from_record(record)
            except (json.JSONDecodeError, KeyError, TypeError, ValueError):
                continue
        return known
