"""Where our own dated triplets lie in the package."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

_NAMES = {"train": "train.jsonl.gz", "dev": "dev.jsonl", "test": "test.jsonl"}


def shipped(part: str) -> Path:
    """The file of a part: `train`, `dev` or `test`."""
    return Path(str(files("mnemorank") / "datasets" / "dated" / _NAMES[part]))
