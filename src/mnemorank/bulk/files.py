"""Files of a bulk job, on this machine or on any fsspec URL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mnemorank._internal.atomic import write_atomic
from mnemorank.errors import InputError, MissingExtraError

_NEEDS = "bulk jobs need `pip install 'mnemorank[bulk]'`"


def local_or_remote(path: str) -> tuple[Any, str]:
    """Return the fsspec file system of a path or URL, and the path in it."""
    try:
        import fsspec
    except ImportError as error:
        raise MissingExtraError(f"{_NEEDS} ({error})") from error
    try:
        files, name = fsspec.core.url_to_fs(path)
    except (ValueError, ImportError) as error:  # an unknown protocol, or one whose package is not installed
        raise InputError(str(error), location=path, code="unreadable") from None
    return files, str(name)


def pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise MissingExtraError(f"{_NEEDS} ({error})") from error
    return pyarrow


def pyarrow_parquet() -> Any:
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise MissingExtraError(f"{_NEEDS} ({error})") from error
    return parquet


class Folder:
    """The output folder of a job. Files appear in it whole or not at all."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._files, self._root = local_or_remote(path)
        self._is_local = "file" in _protocols(self._files)

    def create(self) -> None:
        try:
            self._files.makedirs(self._root, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot create the folder: {error}", field="output", location=self.path) from None

    def names(self) -> set[str]:
        """Return the names of the files in the folder."""
        if not self._files.isdir(self._root):
            return set()
        return {str(name).rpartition("/")[2] for name in self._files.ls(self._root, detail=False, refresh=True)}

    def read(self, name: str) -> bytes | None:
        """Return the content of a file, None if there is none."""
        try:
            content: bytes = self._files.cat_file(f"{self._root}/{name}")
        except FileNotFoundError:
            return None
        return content

    def open(self, name: str) -> Any:
        return self._files.open(f"{self._root}/{name}", "rb")

    def write(self, name: str, content: bytes) -> None:
        if self._is_local:
            write_atomic(Path(self._root) / name, content)
        else:  # object stores show an object only once it is complete
            self._files.pipe_file(f"{self._root}/{name}", content)

    def remove(self, name: str) -> None:
        self._files.rm_file(f"{self._root}/{name}")


def _protocols(files: Any) -> tuple[str, ...]:
    return (files.protocol,) if isinstance(files.protocol, str) else tuple(files.protocol)
