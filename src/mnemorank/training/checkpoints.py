"""The folder of a run in progress: checkpoints, weights, elapsed time, and the record of what is being trained."""

from __future__ import annotations

import hashlib
import json
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mnemorank._internal.atomic import atomic_folder, atomic_path, write_atomic
from mnemorank.artifact.manifest import MANIFEST, sha256
from mnemorank.errors import ConflictError, InputError, MnemorankError, NotFoundError
from mnemorank.training.base_model import base_path
from mnemorank.training.recipe import Recipe

CHECKPOINTS = "checkpoints"
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")
_PACKAGES = ("mnemorank", "torch", "transformers", "sentence-transformers", "peft", "torchao", "tokenizers", "numpy")


class RunClock:
    """The training time of a run over all its sessions, each up to its last `save`."""

    def __init__(self, path: Path) -> None:
        self._path, self._started = path, time.monotonic()
        self._before = float(json.loads(path.read_text(encoding="utf-8"))["seconds"]) if path.exists() else 0.0

    @property
    def seconds(self) -> float:
        return self._before + time.monotonic() - self._started

    def save(self) -> None:
        write_json(self._path, {"seconds": self.seconds})


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder of a run in progress.

    :param record: recipe, data, versions and commit when the run started; if versions or commit changed since,
    they are in `resumed_with`.
    """

    path: Path
    record: Mapping[str, Any]
    clock: RunClock


def open_run(recipe: Recipe, output: Path, resume: bool) -> RunFolder:
    """Create the run folder, or open the existing one and check that it has the same recipe, data and base."""
    if output.is_dir() and Path(recipe.model.base).expanduser().resolve() == output.resolve():
        raise InputError(f"{output} is the base of the recipe; choose another folder", field="--output")
    folder = output / CHECKPOINTS
    record = run_record(recipe)
    current = {"recipe": recipe.to_dict(), "data": record["data"], "base": record["base"]}
    path = folder / "run.json"
    if not path.exists() or not (resume or _has_progress(folder)):
        if resume:
            raise NotFoundError(f"{output} has no unfinished run", field="--resume")
        if (output / MANIFEST).exists():
            raise ConflictError(f"{output} has a finished model; choose another folder or delete it", field="--output")
        _check_free(output, path)
        shutil.rmtree(folder, ignore_errors=True)  # left by another recipe, such as the evaluation of its base
        write_json(path, {**current, "record": record})
        return RunFolder(folder, record, RunClock(folder / "clock.json"))
    if not resume:
        raise ConflictError(f"{output} has an unfinished run; add --resume, or delete {folder}", field="--output")
    saved = json.loads(path.read_text(encoding="utf-8"))
    known = [key for key in current if key in saved]  # earlier versions saved less
    difference = _first_difference({key: saved[key] for key in known}, {key: current[key] for key in known})
    if difference:
        raise ConflictError(
            f"{difference} has changed since the run started; start a new run in another --output", field="--resume"
        )
    return RunFolder(folder, _resumed_record(saved.get("record", record), record), RunClock(folder / "clock.json"))


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the complete checkpoints of a stage, oldest first."""
    numbered = [(int(match[1]), path) for path in folder.glob("*") if (match := _CHECKPOINT.fullmatch(path.name))]
    return [path for _, path in sorted(numbered)]


def prune_checkpoints(folder: Path, keep: int) -> None:
    for path in list_checkpoints(folder)[:-keep]:
        shutil.rmtree(path)


def trainable_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights that training changes, by name."""
    return {name: parameter.detach() for name, parameter in model.named_parameters() if parameter.requires_grad}


def save_weights(weights: Mapping[str, Tensor], path: Path) -> None:
    contiguous = {name: weight.detach().cpu().contiguous().clone() for name, weight in weights.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    with disk_errors(path), atomic_path(path) as partial:
        save_file(contiguous, partial)


def load_weights(model: nn.Module, path: Path) -> None:
    """Load saved weights; they must be exactly those that training changes."""
    set_weights(model, load_file(path), str(path))


def set_weights(model: nn.Module, weights: Mapping[str, Tensor], source: str = "weights") -> None:
    current = trainable_weights(model)
    if set(current) != set(weights):
        name = min(set(current) ^ set(weights))
        raise MnemorankError(f"{source}: from another model: {name} is in only one of them")
    for name, weight in weights.items():
        current[name].copy_(weight)


def write_json(path: Path, record: Mapping[str, Any]) -> None:
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps(record))


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a folder that replaces `path` when the block succeeds and is deleted when it fails."""
    with disk_errors(path), atomic_folder(path) as folder:
        yield folder


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn failed writes, such as those on a full disk, into a `MnemorankError`."""
    try:
        yield
    except Exception as error:
        # torch and safetensors report failed writes with their own error types.
        is_write_error = "PytorchStreamWriter" in str(error) or type(error).__name__ == "SafetensorError"
        if not isinstance(error, OSError) and not is_write_error:
            raise
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise MnemorankError(f"{path}: could not be written ({reason}); what was saved before is intact") from None


def run_record(recipe: Recipe) -> dict[str, Any]:
    """Return the recipe as written, hashes of its data and base, versions, seed and commit, as JSON values."""
    base = base_path(recipe.model.base)
    weights = sorted(base.glob("*.safetensors")) or sorted(base.glob("*.bin"))
    return {
        "name": recipe.name,
        "tables": recipe.tables,
        "seed": recipe.seed,
        "data": _data_hashes(recipe),
        "base": {path.name: sha256(path) for path in weights},
        "versions": _versions(),
        "commit": source_commit(),
    }


def source_commit(source: Path = Path(__file__)) -> str | None:
    """Return the commit of the checkout that mnemorank runs from, with `+` if it is modified; None if installed.

    :param source: a file of ours. A virtual environment inside a user's repository is not part of that repository.
    """
    folder = source.parent
    try:
        _git(folder, "ls-files", "--error-unmatch", source.name)
        head = _git(folder, "rev-parse", "HEAD")
        return head + ("+" if _git(folder, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _resumed_record(saved: Mapping[str, Any], current: Mapping[str, Any]) -> dict[str, Any]:
    changed = {key: current[key] for key in ("versions", "commit") if current[key] != saved[key]}
    return {**saved, "resumed_with": changed} if changed else dict(saved)


def _check_free(output: Path, path: Path) -> None:
    """Raise unless the output is new, empty, or a run of ours; leftovers of a killed process count as empty."""
    if path.exists() or not output.exists():
        return
    if not output.is_dir() or any(p.is_file() and p.suffix != ".partial" for p in output.rglob("*")):
        raise ConflictError(f"{output} is not empty; choose another folder or empty it", field="--output")


def _has_progress(folder: Path) -> bool:
    """Return whether there is a checkpoint or a finished stage; otherwise there is nothing to resume."""
    stages = [path for path in folder.glob("*") if path.is_dir()]
    return any(list_checkpoints(stage) for stage in stages) or any(folder.glob("[0-9]*-*.safetensors"))


def _first_difference(saved: Any, current: Any, path: str = "") -> str | None:
    """The first key in which two recipes differ, apart from how often checkpoints are written."""
    if isinstance(saved, dict) and isinstance(current, dict):
        for key in [*saved, *(key for key in current if key not in saved)]:
            difference = _first_difference(saved.get(key), current.get(key), f"{path}.{key}".lstrip("."))
            if difference and key not in ("save_every", "save_minutes"):
                return difference
        return None
    if isinstance(saved, list) and isinstance(current, list) and len(saved) == len(current):
        parts = (_first_difference(a, b, f"{path}.{i}") for i, (a, b) in enumerate(zip(saved, current, strict=True)))
        return next((part for part in parts if part), None)
    return None if saved == current else path


def _data_hashes(recipe: Recipe) -> list[dict[str, str]]:
    """Every file that the recipe reads, in order, each once."""
    sources = [("train", source) for stage in recipe.stage for source in stage.data]
    sources += [("dev", source) for source in recipe.dev.data]
    hashes: dict[tuple[str, Path], dict[str, str]] = {}
    for use, source in sources:
        if (use, source.path) not in hashes:
            hashes[use, source.path] = {"use": use, "name": source.display_name, "sha256": _path_hash(source.path)}
    return list(hashes.values())


def _path_hash(path: Path) -> str:
    if path.is_file():
        return sha256(path)
    if not path.is_dir():
        raise NotFoundError(f"{path}: no such file or folder", field="data")
    digest = hashlib.sha256()
    for file in sorted(file for file in path.rglob("*") if file.is_file()):
        digest.update(f"{file.relative_to(path)}\0{sha256(file)}\n".encode())
    return digest.hexdigest()


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()
