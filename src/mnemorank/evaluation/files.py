"""Digests of files and folders: the keys of the result cache."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from pathlib import Path

from mnemorank.errors import InputError


def digest_of_files(paths: Iterable[Path]) -> str:
    """Of the files' content, in order."""
    digest = hashlib.sha256()
    for path in paths:
        try:
            with path.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    return digest.hexdigest()[:16]


def digest_of_folder(folder: Path) -> str:
    """Of a model folder's file names, sizes and times: weights of gigabytes are not read for it."""
    entries = sorted(path for path in folder.rglob("*") if path.is_file())
    stated = [(str(path.relative_to(folder)), path.stat().st_size, path.stat().st_mtime_ns) for path in entries]
    return hashlib.sha256(repr(stated).encode()).hexdigest()[:16]


@cache
def digest_of_code() -> str:
    """Of the package's own source: results cached by other code are not ours."""
    root = Path(str(files("mnemorank")))
    left_out = {"cli", "server", "learning", "training", "export", "report", "audits"}
    sources = sorted(p for p in root.rglob("*.py") if not left_out & set(p.relative_to(root).parts))
    return digest_of_files(sources)
