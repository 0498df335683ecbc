"""The memories of an agent: what the tools need of them, and a file of them in JSON Lines."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol
from uuid import uuid4

from filelock import FileLock

from mnemorank._internal.atomic import append_json_line, write_atomic
from mnemorank._internal.jsonio import parse_json
from mnemorank.errors import InputError
from mnemorank.memory.memory import Memory
from mnemorank.memory.moment import When
from mnemorank.options import Options
from mnemorank.reranker import Reranker
from mnemorank.results import Ranking

logger = logging.getLogger(__name__)


class Memories(Protocol):
    """What the tools need of an agent's memories. `MemoryFile` and `MemoryIndex` have it."""

    def search(self, query: str, top_k: int | None = 10, *, as_of: When | None = None) -> Ranking:
        """Return the best memories, with ids."""
        ...

    def get(self, id: str) -> Memory | None:
        """Return a memory, None if there is none with this id."""
        ...

    def add(self, memories: Sequence[Memory]) -> list[str]:
        """Store memories and return their ids; they are on disk when this returns."""
        ...

    def delete(self, ids: Iterable[str]) -> int:
        """Delete memories and return how many there were."""
        ...


@dataclass(frozen=True, slots=True)
class _Entry:
    line: str
    memory: Memory


def is_memory_file(path: str | Path) -> bool:
    """Return whether a path names a JSON Lines file, and not an index."""
    return Path(path).suffix in (".jsonl", ".ndjson")


class MemoryFile:
    """Memories in a JSON Lines file, which people may read and edit.

    Several processes may use the same file: it is locked for writing, and read again when it has changed.

    :param path: created with the first memory.
    :param max_scored: how many memories the model scores for a query, the best by BM25.
    """

    def __init__(self, path: str | Path, reranker: Reranker, *, max_scored: int = 200) -> None:
        self.path = Path(path).expanduser()
        self._reranker = reranker
        self._options = Options(max_scored=max_scored, first_stage="bm25")
        self._lock = threading.Lock()
        self._version: tuple[int, int, int] | None = None
        self._entries: list[_Entry] = []

    def __len__(self) -> int:
        return len(self._read())

    def search(self, query: str, top_k: int | None = 10, *, as_of: When | None = None) -> Ranking:
        pool = [entry.memory for entry in self._read()]
        return self._reranker.rerank(query, pool, top_k=top_k, as_of=as_of, options=self._options)

    def get(self, id: str) -> Memory | None:
        return next((entry.memory for entry in self._read() if entry.memory.id == id), None)

    def add(self, memories: Sequence[Memory]) -> list[str]:
        with self._writing():
            known = {entry.memory.id for entry in self._read()}
            ids = []
            for memory in memories:
                if memory.id in known:
                    raise InputError(f"there is already a memory with the id {memory.id!r}", field="id")
                stored = memory if memory.id is not None else replace(memory, id=_new_id(known))
                append_json_line(self.path, stored.to_dict())
                known.add(stored.id)
                ids.append(str(stored.id))
            return ids

    def delete(self, ids: Iterable[str]) -> int:
        unwanted = set(ids)
        with self._writing():
            entries = self._read()
            kept = [entry.line for entry in entries if entry.memory.id not in unwanted]
            if len(kept) < len(entries):
                write_atomic(self.path, "".join(f"{line}\n" for line in kept))
            return len(entries) - len(kept)

    def _writing(self) -> FileLock:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return FileLock(self.path.with_name(self.path.name + ".lock"))

    def _read(self) -> list[_Entry]:
        with self._lock:
            try:
                status = os.stat(self.path)
            except FileNotFoundError:
                self._version, self._entries = None, []
                return []
            version = (status.st_mtime_ns, status.st_size, status.st_ino)
            if version != self._version:
                self._entries = _read_entries(self.path)
                self._version = version
            return self._entries


def _read_entries(path: Path) -> list[_Entry]:
    lines = path.read_text(encoding="utf-8-sig").splitlines()
    return [_Entry(line, _read_line(line, path, number)) for number, line in enumerate(lines, 1) if line.strip()]


def _read_line(line: str, path: Path, number: int) -> Memory:
    """Read a memory. One without an id gets one that is made of its content."""
    record = parse_json(line, str(path), number)
    memory = Memory.of(record, location=f"{path}:{number}", on_error="skip", report=logger.warning)
    if memory.id is not None:
        return memory
    content = json.dumps(record, sort_keys=True).encode("utf-8", "replace")
    return replace(memory, id=hashlib.blake2b(content, digest_size=6).hexdigest())


def _new_id(known: set[str | None]) -> str:
    while (name := uuid4().hex[:12]) in known:
        pass
    return name
