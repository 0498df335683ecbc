"""What training begins from: the torch folder of a version, or one made of its ONNX file."""

from __future__ import annotations

from pathlib import Path

from mnemorank.artefact import resolve
from mnemorank.learning.registry import Version


def training_base(version: Version, stated: str | None, folder: Path) -> Path:
    """The folder to train from.

    :param stated: what the settings name; used where the version came without torch weights of its own.
    :param folder: where weights restored from the version's ONNX file are put.
    """
    if version.torch_path is not None:
        return version.torch_path
    if stated is not None:
        return resolve(stated)
    from mnemorank.learning.restore import restore

    return restore(version.path, folder)
