"""A cache of a teacher's grades on disk: a JSON line per pair, appended as soon as it is graded."""

from __future__ import annotations

import hashlib
import json
import threading
from pathlib import Path
from typing import IO

from mnemorank.errors import InputError


def pair_key(*parts: str) -> str:
    """Return the cache key of a grade, which depends on model, prompt, query and text."""
    return hashlib.sha256("\0".join(parts).encode(errors="surrogatepass")).hexdigest()[:32]


class GradeCache:
    """Grades by key. Thread-safe, but for one process at a time.

    A line that was cut off when the process was killed is ignored.

    :param path: the file; None keeps the grades in memory only.
    """

    def __init__(self, path: Path | None) -> None:
        self._grades: dict[str, float] = {}
        self._lock = threading.Lock()
        self._stream: IO[str] | None = None
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            content = self._read(path) if path.exists() else ""
            self._stream = path.open("a", encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"could not be opened as a grade cache: {error}", location=str(path)) from None
        if content and not content.endswith("\n"):
            self._stream.write("\n")

    def get(self, key: str) -> float | None:
        return self._grades.get(key)

    def put(self, key: str, grade: float) -> None:
        with self._lock:
            self._grades[key] = grade
            if self._stream is not None:
                self._stream.write(json.dumps({"key": key, "grade": grade}) + "\n")
                self._stream.flush()

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()

    def _read(self, path: Path) -> str:
        content = path.read_text(encoding="utf-8")
        lines = content.splitlines()
        for number, line in enumerate(lines, 1):
            try:
                record = json.loads(line) if line.strip() else None
                if record is not None:
                    self._grades[str(record["key"])] = float(record["grade"])
            except (ValueError, KeyError, TypeError):
                is_cut_off = number == len(lines) or line.startswith('{"key"')
                if not is_cut_off:
                    raise InputError("not a line of a grade cache", location=f"{path}:{number}") from None
        return content
