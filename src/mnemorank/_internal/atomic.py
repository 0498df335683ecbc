"""Write files so that a crash leaves either the old or the new content, never part of it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_atomic(path: Path, content: str | bytes) -> None:
    """Replace the content of a file; readers see either all of the old or all of the new content."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    data = content.encode("utf-8") if isinstance(content, str) else content
    try:
        with partial.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    sync_folder(path.parent)


def append_json_line(path: Path, record: Mapping[str, Any]) -> None:
    """Append a record to a JSON Lines file and wait until it is on disk."""
    line = json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"
    with path.open("ab") as stream:
        stream.write(line.encode("utf-8"))
        stream.flush()
        os.fsync(stream.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until the directory entries of a folder are on disk; Windows neither has nor needs this."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
