"""Model versions: immutable folders, one of them in service, and a history of every change.

    ROOT/0001/           a model folder (mnemorank.json, model.onnx, …), `torch/` to train from, version.json
    ROOT/current         a link to one of them, changed by an atomic rename
    ROOT/history.jsonl   who did what and why; append-only

A process may be killed at any moment: `current` then names the old or the new version, and both are complete.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock

from mnemorank._internal.atomic import append_json_line, read_json_lines, sync_folder, sync_tree
from mnemorank.artifact.manifest import VERSION_FILE, sha256
from mnemorank.artifact.resolve import load_artifact
from mnemorank.errors import ArtifactError, ConflictError, InputError, MnemorankError, NotFoundError
from mnemorank.memory.memory import Memory
from mnemorank.model.model import Model

TORCH = "torch"
SERVING_ACTIONS = ("promote", "rollback")


@dataclass(frozen=True, slots=True)
class Version:
    """A model version.

    :param created_at: seconds since 1970.
    :param parent: the version it was trained from; None for an imported model.
    :param facts: the run that trained it and the number of its examples.
    :param files: the SHA-256 of every file.
    """

    name: str
    path: Path
    created_at: float
    parent: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def torch_path(self) -> Path | None:
        """The torch folder to continue training from, if the version has one."""
        folder = self.path / TORCH
        return folder if folder.is_dir() else None


def ignore_step(_name: str) -> None:
    """Default of `on_step`: do nothing."""


class VersionStore:
    """The versions in a folder.

    :param on_step: called with the name of each step just before it is taken; tests kill the process there.
    """

    def __init__(self, root: Path, *, on_step: Callable[[str], None] = ignore_step) -> None:
        self.root = Path(root)
        self.root.mkdir(parents=True, exist_ok=True)
        self.history = History(self.root / "history.jsonl")
        self._on_step = on_step

    @property
    def current_path(self) -> Path:
        """The link that servers follow."""
        return self.root / "current"

    def current(self) -> Version | None:
        """Return the version in service, or None before the first promotion."""
        name = self._current_name()
        if name is None and not os.path.lexists(self.current_path) and not self._served_names():
            return None
        version = self.find(name) if name else None
        if version is None:
            known = ", ".join(self._names()) or "none"
            raise ArtifactError(
                f"{self.current_path}: missing, or not a link to a version; "
                f"run `mnemorank learn rollback VERSION` with one of: {known}"
            )
        return version

    def previous(self) -> Version | None:
        """Return the version that the current one replaced, or the next older one that still exists.

        Versions that were rolled back are skipped, so repeated rollbacks go further back.
        """
        current = self.current()
        names, _ = self._lineage()
        if current is not None and current.name in names:
            names = names[: names.index(current.name)]
        return next((version for name in reversed(names) if (version := self.find(name)) is not None), None)

    def baseline(self) -> Version | None:
        """Return the version that the gate protects against gradual loss: the first, or the last one forced."""
        names, forced = self._lineage()
        start = max((index for index, name in enumerate(names) if name in forced), default=0)
        return next((version for name in names[start:] if (version := self.find(name)) is not None), None)

    def all(self) -> list[Version]:
        """Return all versions, oldest first."""
        return [self.get(name) for name in self._names()]

    def get(self, name: str) -> Version:
        path = self.root / name
        if not name.isdecimal() or not (path / VERSION_FILE).is_file():
            known = ", ".join(self._names()) or "none"
            raise NotFoundError(f"no version {name!r}; expected one of: {known}", field="version")
        try:
            record = json.loads((path / VERSION_FILE).read_text(encoding="utf-8"))
            return Version(name, path, record["created_at"], record["parent"], record["facts"], record["files"])
        except (KeyError, TypeError, ValueError) as error:
            raise ArtifactError(f"{path / VERSION_FILE}: damaged: {error!r:.80}; remove the folder") from error

    def find(self, name: str) -> Version | None:
        """Return a version, or None if it does not exist, such as one that was removed."""
        return self.get(name) if name.isdecimal() and (self.root / name).is_dir() else None

    def add(
        self,
        model: Path,
        *,
        torch: Path | None = None,
        parent: str | None = None,
        facts: Mapping[str, Any] | None = None,
        who: str = "",
        why: str = "",
    ) -> Version:
        """Copy a model folder in as a new version, without putting it in service.

        :param torch: the folder with torch weights, to continue training from.
        """
        artifact = load_artifact(model)
        artifact.verify()
        with self._lock():
            name = self._next_name()
            staged = self.root / f".staged-{name}-{os.getpid()}"
            shutil.rmtree(staged, ignore_errors=True)
            self._on_step("add: copy")
            _copy_model(artifact.path, staged)
            if torch is not None:
                self._on_step("add: copy torch")
                shutil.copytree(torch, staged / TORCH, ignore=shutil.ignore_patterns("checkpoint*", "*.partial"))
            record = {
                "created_at": time.time(),
                "parent": parent,
                "facts": dict(facts or {}),
                "files": _hash_files(staged),
            }
            (staged / VERSION_FILE).write_text(json.dumps(record, indent=2, ensure_ascii=False), encoding="utf-8")
            self._on_step("add: sync")
            sync_tree(staged)
            self._on_step("add: rename")
            os.rename(staged, self.root / name)
            sync_folder(self.root)
            self._on_step("add: record")
            self.history.append(action="add", version=name, who=who, why=why, parent=parent, facts=record["facts"])
        return self.get(name)

    def promote(
        self,
        name: str,
        *,
        who: str = "",
        why: str = "",
        facts: Mapping[str, Any] | None = None,
        expected_current: str | None = None,
    ) -> Version:
        """Put a version in service. A damaged version raises `ArtifactError`, and nothing changes.

        :param expected_current: the version it was compared with; `ConflictError` if another one is in service.
        """
        return self._serve("promote", name, who, why, facts or {}, expected_current)

    def rollback(self, name: str | None = None, *, who: str = "", why: str = "") -> Version:
        """Put an earlier version back in service.

        :param name: any version, including a later one; the previous one by default.
        """
        return self._serve("rollback", self._previous_name() if name is None else name, who, why, {})

    def prune(self, keep: int = 5, *, who: str = "", protect: Collection[str] = ()) -> list[str]:
        """Remove the oldest versions beyond `keep`, but never the current or the previous one; return their names.

        :param protect: names of other versions to keep.
        """
        if keep < 1:
            raise InputError(f"expected a whole number from 1, got {keep}", field="keep")
        with self._lock():
            protected = {version.name for version in (self.current(), self.previous()) if version is not None}
            names = self._names()
            protected |= set(protect) & set(names)
            others = [name for name in names if name not in protected]
            removed = others[: max(len(others) + len(protected) - keep, 0)]
            for name in removed:
                self._on_step("prune: rename")
                trash = self.root / f".trash-{name}"
                os.rename(self.root / name, trash)
                self._on_step("prune: remove")
                shutil.rmtree(trash)
                self._on_step("prune: record")
                self.history.append(action="remove", version=name, who=who)
            self._remove_leftovers()
        return removed

    def _serve(
        self, action: str, name: str, who: str, why: str, facts: Mapping[str, Any], expected_current: str | None = None
    ) -> Version:
        version = self.get(name)
        with self._lock():
            previous = self._current_name()
            if expected_current is not None and previous != expected_current:
                message = f"{name} was compared with {expected_current}, but {previous} is in service now"
                raise ConflictError(f"{message}; evaluate it again", field="version", code="outdated")
            self._on_step(f"{action}: verify")
            check_version(version)
            link = self.root / f".current-{os.getpid()}"
            link.unlink(missing_ok=True)
            self._on_step(f"{action}: link")
            link.symlink_to(name)
            self._on_step(f"{action}: swap")
            os.replace(link, self.current_path)
            sync_folder(self.root)
            self._on_step(f"{action}: record")
            self.history.append(action=action, version=name, previous=previous, who=who, why=why, facts=dict(facts))
            self._on_step(f"{action}: done")
        return version

    def _previous_name(self) -> str:
        current, previous = self.current(), self.previous()
        if previous is not None:
            return previous.name
        if current is None:
            raise ConflictError("no version is in service yet", field="version", code="no_previous")
        others = ", ".join(name for name in self._names() if name != current.name)
        hint = f"; name one of: {others}" if others else ""
        raise ConflictError(f"no version came before {current.name}{hint}", field="version", code="no_previous")

    def _record_missing_promotion(self) -> None:
        """Record the current version if a process was killed between the swap and the entry in the history."""
        served, current = self._served_names(), self._current_name()
        if current is not None and (not served or served[-1] != current) and self.find(current) is not None:
            previous = served[-1] if served else None
            why = "recorded afterwards: the process was killed"
            self.history.append(action="promote", version=current, previous=previous, who="recovery", why=why)

    def _current_name(self) -> str | None:
        """The name that `current` links to, whether it exists or not; None if `current` is not a link."""
        try:
            return Path(os.readlink(self.current_path)).name
        except OSError:
            return None

    def _served_names(self) -> list[str]:
        """Names of the versions that were put in service, in order."""
        return [entry["version"] for entry in self.history.entries() if entry["action"] in SERVING_ACTIONS]

    def _lineage(self) -> tuple[list[str], set[str]]:
        """The promotions that led to the current version, and which of them were forced.

        A rollback undoes everything that came after the version it returns to.
        """
        names: list[str] = []
        forced: set[str] = set()
        for entry in self.history.entries():
            if entry["action"] not in SERVING_ACTIONS:
                continue
            name = entry["version"]
            if entry.get("facts", {}).get("forced"):
                forced.add(name)
            elif entry["action"] == "promote" and name not in names:
                forced.discard(name)  # forced once and rolled back, it has passed the gate now
            names = names[: names.index(name)] if name in names else names
            names.append(name)
        return names, forced

    def _names(self) -> list[str]:
        """Names of all versions, oldest first."""
        names = [path.name for path in self.root.iterdir() if path.name.isdecimal() and path.is_dir()]
        return sorted(names, key=lambda name: (len(name), name))

    def _next_name(self) -> str:
        """Numbers are never reused, not even those of removed versions."""
        used = [*self._names(), *(entry["version"] for entry in self.history.entries())]
        return f"{max((int(name) for name in used if name.isdecimal()), default=0) + 1:04d}"

    def _remove_leftovers(self) -> None:
        """Remove what killed processes left behind."""
        for leftover in (*self.root.glob(".staged-*"), *self.root.glob(".trash-*")):
            shutil.rmtree(leftover)
        for link in self.root.glob(".current-*"):
            link.unlink()

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Let one process at a time change the versions. The operating system releases the lock of a killed one."""
        with FileLock(self.root / ".lock"):
            self._record_missing_promotion()
            yield


def check_version(version: Version) -> None:
    """Raise `ArtifactError` unless the version's files are those that were added and the model scores a pair."""
    changed = sorted(name for name, _ in version.files.items() ^ _hash_files(version.path).items())
    if changed:
        raise ArtifactError(f"version {version.name} is unusable: {changed[0]} was changed, added or removed")
    try:
        model = Model.load(version.path, probe=False)
        try:
            score = float(model.score("probe", [Memory("probe")]).raw[0])
        finally:
            model.close()
    except MnemorankError as error:
        raise ArtifactError(f"version {version.name} is unusable: {error}") from error
    if score != score:
        raise ArtifactError(f"version {version.name} is unusable: the model returned no score")


def _hash_files(folder: Path) -> dict[str, str]:
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path != folder / VERSION_FILE]
    return {path.relative_to(folder).as_posix(): sha256(path) for path in paths}


def _copy_model(source: Path, target: Path) -> None:
    """Copy the model's own files, without checkpoints and other models in subfolders."""
    target.mkdir()
    for path in sorted(source.iterdir()):
        if path.is_file() and path.name != VERSION_FILE and not path.name.endswith(".partial"):
            shutil.copy2(path, target / path.name)
    if (source / "onnx").is_dir():
        shutil.copytree(source / "onnx", target / "onnx")


class History:
    """An append-only JSON Lines file that only its owner can read. Readers skip a line that a crash cut short."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, **entry: Any) -> None:
        """Add an entry with the current time, and wait until it is on disk."""
        append_json_line(self.path, {"time": time.time(), **entry})

    def entries(self) -> list[dict[str, Any]]:
        """Return all entries, oldest first. If a kill cut one short, `VersionStore` records the missing promotion."""
        return read_json_lines(self.path)
