"""Write files so that a crash leaves either the old or the new content, never half of it."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def write_atomic(path: Path, content: str | bytes) -> None:
    """Replace the content of a file; readers see either all of the old or all of the new content."""
    with atomic_path(path) as partial:
        partial.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a path to write to, which replaces `path` when the block succeeds and is deleted when it fails."""
    partial = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}.partial")
    try:
        yield partial
        _sync(partial)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    sync_folder(path.parent)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a new folder that replaces `path` when the block succeeds and is deleted when it fails."""
    partial, old = (path.with_name(f"{path.name}.{suffix}") for suffix in ("partial", "old.partial"))
    if old.exists() and not path.exists():
        old.rename(path)  # a crash came between the two renames below
    for leftover in (partial, old):
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        yield partial
        sync_tree(partial)
        if path.exists():
            path.rename(old)  # a folder cannot be replaced in one step, and deleting it in place takes time
        partial.rename(path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        if old.exists() and not path.exists():
            old.rename(path)
        raise
    sync_folder(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def append_json_line(path: Path, record: Mapping[str, Any]) -> None:
    """Append a record to a JSON Lines file, readable only by its owner, and wait until it is on disk.

    An incomplete last line, left by a crash, is ended first.
    """
    line = json.dumps(record, ensure_ascii=False, allow_nan=False).encode("utf-8") + b"\n"
    create_private(path)
    with path.open("a+b", buffering=0) as stream:
        if stream.seek(0, os.SEEK_END) > 0:
            stream.seek(-1, os.SEEK_END)
            line = line if stream.read(1) == b"\n" else b"\n" + line
        stream.write(line)  # a single write, so that appends of other processes cannot interleave
        os.fsync(stream.fileno())


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Return the records of a file of `append_json_line`, without lines that a crash cut short."""
    if not path.exists():
        return []
    records = []
    # Not `splitlines`, which also splits at U+2028.
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return records


def create_private(path: Path) -> None:
    """Create an empty file that only its owner can read, unless it exists."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))


def sync_folder(folder: Path) -> None:
    """Wait until the directory entries of a folder are on disk; Windows neither has nor needs this."""
    if os.name != "nt":
        _sync(folder)


def sync_tree(folder: Path) -> None:
    """Wait until a folder and everything in it are on disk."""
    for path in folder.rglob("*"):
        if path.is_dir():
            sync_folder(path)
        else:
            _sync(path)
    sync_folder(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY if os.name != "nt" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
