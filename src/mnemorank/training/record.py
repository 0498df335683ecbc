"""The record of a run: what went in, with which versions, so that the result can be made again."""

from __future__ import annotations

import hashlib
import platform
import subprocess
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from mnemorank.errors import InputError
from mnemorank.manifest import sha256
from mnemorank.training.base import base_path
from mnemorank.training.recipe import Recipe, Source

_PACKAGES = ("mnemorank", "torch", "transformers", "sentence-transformers", "peft", "torchao", "tokenizers", "numpy")


def run_record(recipe: Recipe) -> dict[str, Any]:
    """Recipe as written, hashes of its data, versions, seed and commit, as JSON values."""
    return {
        "name": recipe.name,
        "tables": recipe.tables,
        "seed": recipe.seed,
        "data": data_hashes(recipe),
        "base": base_hashes(recipe),
        "versions": versions(),
        "commit": commit(),
    }


def data_hashes(recipe: Recipe) -> list[dict[str, str]]:
    """Every file the recipe reads, in order, each once."""
    sources = [("train", source) for stage in recipe.stage for source in stage.data]
    sources += [("dev", source) for source in recipe.dev.data]
    seen: dict[tuple[str, Path], dict[str, str]] = {}
    for use, source in sources:
        if (use, source.path) not in seen:
            name = source.name or source.path.name
            seen[use, source.path] = {"use": use, "name": name, "sha256": _hash(source)}
    return list(seen.values())


def base_hashes(recipe: Recipe) -> dict[str, str]:
    """The files with the base's weights."""
    folder = base_path(recipe.model.base)
    found = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("*.bin"))
    return {path.name: sha256(path) for path in found}


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def commit(source: Path = Path(__file__)) -> str | None:
    """The commit of the checkout that mnemorank runs from, with `+` where files differ from it; None if installed.

    :param source: a file of ours. An environment inside of a user's repository is not that repository's.
    """
    folder = source.parent
    try:
        _git(folder, "ls-files", "--error-unmatch", source.name)
        head = _git(folder, "rev-parse", "HEAD")
        return head + ("+" if _git(folder, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _hash(source: Source) -> str:
    if source.path.is_file():
        return sha256(source.path)
    if not source.path.is_dir():
        raise InputError(f"data: {source.path}: is not there")
    return _folder_hash(sorted(path for path in source.path.rglob("*") if path.is_file()), source.path)


def _folder_hash(paths: Sequence[Path], root: Path) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{path.relative_to(root)}\0{sha256(path)}\n".encode())
    return digest.hexdigest()
