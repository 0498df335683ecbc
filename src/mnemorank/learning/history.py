"""History: an append-only file of what was done, a JSON object a line."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any


class History:
    """A line that a kill cut short is passed over by readers and closed by the next writer."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, **entry: Any) -> None:
        """Write one entry with its time, in a single write, and wait until it is on disk."""
        line = json.dumps({"time": time.time(), **entry}, ensure_ascii=False, allow_nan=False) + "\n"
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            if not self._ends_whole(descriptor):
                line = "\n" + line
            os.write(descriptor, line.encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def entries(self) -> list[dict[str, Any]]:
        """All entries, oldest first."""
        if not self.path.exists():
            return []
        found = []
        for line in self.path.read_text(encoding="utf-8", errors="replace").split("\n"):  # U+2028 is no end
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                continue  # cut short by a kill: what it was to record is found again by Registry
        return found

    @staticmethod
    def _ends_whole(descriptor: int) -> bool:
        size = os.fstat(descriptor).st_size
        return size == 0 or os.pread(descriptor, 1, size - 1) == b"\n"
