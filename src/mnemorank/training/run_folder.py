"""The folder of a run while it lasts: which recipe and data it is of, and whether there is something to go on with."""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from mnemorank.artifact.manifest import MANIFEST, sha256
from mnemorank.data.sources import Source
from mnemorank.errors import InputError
from mnemorank.training.base_model import base_path
from mnemorank.training.checkpoints import write_whole
from mnemorank.training.recipe import Recipe

CHECKPOINTS = "checkpoints"
_CLOCK = "clock.json"


class Clock:
    """The seconds of a run over all its sittings, each up to its last `keep`."""

    def __init__(self, path: Path) -> None:
        self._path, self._started = path, time.monotonic()
        self._before = float(json.loads(path.read_text(encoding="utf-8"))["seconds"]) if path.exists() else 0.0

    @property
    def seconds(self) -> float:
        return self._before + time.monotonic() - self._started

    def keep(self) -> None:
        text = json.dumps({"seconds": self.seconds})
        write_whole(self._path, lambda partial: partial.write_text(text, encoding="utf-8"))


@dataclass(frozen=True, slots=True)
class Run:
    """:param record: of when the run began; what it goes on with, where that differs, is `resumed_with`."""

    folder: Path
    record: Mapping[str, Any]
    clock: Clock


def open_run(recipe: Recipe, output: Path, resume: bool) -> Run:
    """Start a run folder, or open the one that is there and make sure that it is of the same recipe and data."""
    if _is_folder(recipe.model.base, output):
        raise InputError(f"{output}: is the base of the recipe; choose another --output")
    folder = output / CHECKPOINTS
    record = run_record(recipe)
    now = {"recipe": recipe.to_dict(), "data": record["data"], "base": record["base"]}
    path = folder / "run.json"
    if not path.exists() or not (resume or _has_begun(folder)):
        if resume:
            raise InputError(f"--resume: {output} holds no unfinished run")
        if (output / MANIFEST).exists():
            raise InputError(f"{output}: holds a finished model already; choose another --output or delete it")
        _check_free(output, path)
        shutil.rmtree(folder, ignore_errors=True)  # what another recipe left, such as its base's scores
        text = json.dumps({**now, "record": record})
        write_whole(path, lambda partial: partial.write_text(text, encoding="utf-8"))
        return Run(folder, record, Clock(folder / _CLOCK))
    if not resume:
        raise InputError(f"{output}: holds an unfinished run; --resume goes on with it, or delete {folder}")
    then = json.loads(path.read_text(encoding="utf-8"))
    noted = [key for key in now if key in then]  # a run of an earlier version noted less
    differing = _first_difference({key: then[key] for key in noted}, json.loads(json.dumps({k: now[k] for k in noted})))
    if differing:
        raise InputError(f"--resume: {differing} is not what it was when the run began; start anew in another --output")
    return Run(folder, _begun(then.get("record", record), record), Clock(folder / _CLOCK))


def _begun(then: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """The record of when the run began, and with what it goes on where that is something else."""
    other = {key: now[key] for key in ("versions", "commit") if now[key] != then[key]}
    return {**then, "resumed_with": other} if other else dict(then)


def _is_folder(name: str, output: Path) -> bool:
    """Whether a model's name is that of the output folder."""
    return output.is_dir() and Path(name).expanduser().resolve() == output.resolve()


def _check_free(output: Path, path: Path) -> None:
    """Only nothing, an empty folder or a run of ours is written into; what a kill cut off counts as nothing."""
    if path.exists() or not output.exists():
        return
    if not output.is_dir() or any(p.is_file() and not p.name.startswith("partial-") for p in output.rglob("*")):
        raise InputError(f"{output}: holds something else than a run; choose another --output or remove it")


def _has_begun(folder: Path) -> bool:
    """Whether there is a checkpoint or a finished stage.

    A run that ended before its first checkpoint (a fault in the data, say) left nothing to go on with.
    """
    return any(folder.glob("*/checkpoint-*")) or any(folder.glob("[0-9]*-*.safetensors"))


def _first_difference(then: Any, now: Any, where: str = "") -> str | None:
    """The first key in which two recipes differ, leaving out when checkpoints are written."""
    if isinstance(then, dict) and isinstance(now, dict):
        for key in [*then, *(key for key in now if key not in then)]:
            found = _first_difference(then.get(key), now.get(key), f"{where}.{key}".lstrip("."))
            if found and key not in ("save_every", "save_minutes"):
                return found
        return None
    if isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        parts = (_first_difference(a, b, f"{where}[{i}]") for i, (a, b) in enumerate(zip(then, now, strict=True)))
        return next((part for part in parts if part), None)
    return None if then == now else where


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
        raise InputError(f"{source.path}: is not there", field="data")
    return _folder_hash(sorted(path for path in source.path.rglob("*") if path.is_file()), source.path)


def _folder_hash(paths: Sequence[Path], root: Path) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{path.relative_to(root)}\0{sha256(path)}\n".encode())
    return digest.hexdigest()
