"""Files that are there whole or not at all: written beside their place, flushed to disk, then renamed."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mnemorank.errors import MnemorankError

_NAME = re.compile(r"checkpoint-(\d+)")
_PARTIAL = "partial-"


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A folder to write into, which takes its place when the block is done and vanishes when it fails.

    A disk that is full is told as an error that says so; what was there before stays as it was.
    """
    partial = path.with_name(_PARTIAL + path.name)
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        yield partial
        for file in partial.rglob("*"):
            if file.is_file():
                _flush(file)
        if path.exists():
            shutil.rmtree(path)
        partial.rename(path)
        _flush(path.parent)
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        if _is_disk_error(error):
            raise MnemorankError(
                f"{path}: cannot be written ({_reason(error)}); what was saved before is whole"
            ) from None
        raise


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Like `whole_folder` for a single file."""
    partial = path.with_name(_PARTIAL + path.name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(partial)
        _flush(partial)
        os.replace(partial, path)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        if _is_disk_error(error):
            raise MnemorankError(
                f"{path}: cannot be written ({_reason(error)}); what was saved before is whole"
            ) from None
        raise


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a stage, oldest first."""
    found = [(int(match[1]), path) for path in folder.glob("checkpoint-*") if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


def keep_last(folder: Path, count: int) -> None:
    for path in checkpoints(folder)[:-count]:
        shutil.rmtree(path)


def trainable(model: nn.Module) -> dict[str, Tensor]:
    """The weights that training changes, by name."""
    return {name: parameter.detach() for name, parameter in model.named_parameters() if parameter.requires_grad}


def save_weights(weights: Mapping[str, Tensor], path: Path) -> None:
    save_file({name: weight.detach().cpu().contiguous().clone() for name, weight in weights.items()}, path)


def load_weights(model: nn.Module, path: Path) -> None:
    """Put saved weights into the model; exactly those that training changes must be there."""
    put_weights(model, load_file(path), str(path))


def put_weights(model: nn.Module, weights: Mapping[str, Tensor], where: str = "weights") -> None:
    own = trainable(model)
    if set(own) != set(weights):
        differing = sorted(set(own) ^ set(weights))
        raise MnemorankError(f"{where}: is of another model: {differing[0]} is in one of them only")
    for name, weight in weights.items():
        own[name].copy_(weight)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_disk_error(error: BaseException) -> bool:
    """OSError of any kind; torch and safetensors tell a failed write in kinds of their own."""
    return (
        isinstance(error, OSError) or "PytorchStreamWriter" in str(error) or type(error).__name__ == "SafetensorError"
    )


def _reason(error: BaseException) -> str:
    text = getattr(error, "strerror", None) or str(error).splitlines()[0]
    return str(text)
