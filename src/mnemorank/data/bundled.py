"""Datasets that come with the package."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from mnemorank.errors import NotFoundError

_FILES = {
    "dated": {"train": "train.jsonl.gz", "dev": "dev.jsonl", "test": "test.jsonl"},
    "everyday": {split: f"{split}.jsonl.gz" for split in ("train", "dev", "test", "plain-dev", "plain-test")},
}


def bundled_dataset(name: str, split: str) -> Path:
    """Return the file of a bundled dataset.

    :param name: `dated`, triplets about facts that change over time, or `everyday`, stores of short facts.
    :param split: `train`, `dev` or `test`; `everyday` also has `plain-dev` and `plain-test`.
    """
    try:
        file = _FILES[name][split]
    except KeyError:
        known = ", ".join(f"{dataset}/{part}" for dataset, parts in _FILES.items() for part in parts)
        raise NotFoundError(f"unknown bundled dataset '{name}/{split}'; expected one of {known}") from None
    return Path(str(files("mnemorank") / "assets" / "datasets" / name / file))
