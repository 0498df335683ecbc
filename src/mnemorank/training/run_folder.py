"""The folder of a run while it lasts: which recipe and data it is of, and whether there is something to go on with."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mnemorank.errors import InputError
from mnemorank.manifest import MANIFEST
from mnemorank.training.checkpoints import write_whole
from mnemorank.training.recipe import Recipe
from mnemorank.training.record import run_record

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
