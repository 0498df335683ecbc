"""Registry: immutable model versions, one of them current, and a history of how it came to be.

    ROOT/versions/0001/   a model folder (mnemorank.json, model.onnx, …), `torch/` to train on from, version.json
    ROOT/current          a link to one of them, changed by an atomic rename
    ROOT/history.jsonl    who did what and why, appended to and never rewritten

A process may be killed at any moment: `current` then is what it was or what it was to be, never anything else.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mnemorank.artifact.resolve import load_artifact
from mnemorank.errors import ArtifactError, InputError, MnemorankError

VERSION_FILE = "version.json"
TORCH = "torch"
SERVED = ("promote", "rollback")


@dataclass(frozen=True, slots=True)
class Version:
    """:param parent: the version it was trained from; None for an imported model.
    :param facts: what is known of it: run, examples, measures, the gate's decision.
    """

    name: str
    path: Path
    made_at: float
    parent: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def age(self) -> tuple[int, str]:
        """Sorts versions by when they were added; names are numbers of four digits or more."""
        return len(self.name), self.name

    @property
    def torch_path(self) -> Path | None:
        """The folder to go on training from, where the version has one."""
        folder = self.path / TORCH
        return folder if folder.is_dir() else None


def no_step(_name: str) -> None:
    """Called between the steps of every change; tests kill the process here."""


class Registry:
    """:param on_step: called with the name of each step just before it is taken."""

    def __init__(self, root: Path, *, on_step: Callable[[str], None] = no_step) -> None:
        self.root = Path(root)
        self._versions = self.root / "versions"
        self._step = on_step
        self.history = History(self.root / "history.jsonl")
        self._versions.mkdir(parents=True, exist_ok=True)

    @property
    def current_path(self) -> Path:
        """The link that servers follow; a model folder like any other."""
        return self.root / "current"

    def current(self) -> Version | None:
        """The version in service, None before the first."""
        name = self._current_name()
        if name is None and not os.path.lexists(self.current_path) and not self._served():
            return None
        if name is None or self.find(name) is None:
            known = ", ".join(version.name for version in self.versions()) or "none"
            raise ArtifactError(
                f"{self.current_path}: is missing or points to no version; "
                f"`mnemorank learn rollback VERSION` puts one back in service; there are: {known}"
            )
        return self.version(name)

    def previous(self) -> Version | None:
        """The version that the current one took the place of, if it still exists, else the one before that.

        What was rolled back is none of them: going back once more goes further back.
        """
        current = self.current()
        names, _ = self._standing()
        if current is not None and current.name in names:
            names = names[: names.index(current.name)]
        return next((found for name in reversed(names) if (found := self.find(name)) is not None), None)

    def floor(self) -> Version | None:
        """The version that none may fall below for good: the first in service, or the last put there by force."""
        names, forced = self._standing()
        first = max((place for place, name in enumerate(names) if name in forced), default=0)
        return next((found for name in names[first:] if (found := self.find(name)) is not None), None)

    def versions(self) -> list[Version]:
        """All versions, oldest first."""
        names = [path.name for path in self._versions.iterdir() if not path.name.startswith(".")]
        return sorted((self.version(name) for name in names), key=lambda version: version.age)

    def version(self, name: str) -> Version:
        path = self._versions / name
        if not name or name.startswith(".") or "/" in name or not (path / VERSION_FILE).is_file():
            known = sorted(entry.name for entry in self._versions.iterdir() if not entry.name.startswith("."))
            raise InputError(f"no version {name!r}; there are: {', '.join(known) or 'none'}", field="version")
        try:
            record = json.loads((path / VERSION_FILE).read_text(encoding="utf-8"))
            return Version(name, path, record["made_at"], record["parent"], record["facts"])
        except (KeyError, TypeError, ValueError) as error:
            raise ArtifactError(f"{path / VERSION_FILE}: is damaged: {error!r:.80}; remove the folder") from error

    def find(self, name: str) -> Version | None:
        """A version that may have been collected."""
        return self.version(name) if name and (self._versions / name).is_dir() else None

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
        """Copy a model folder in as a new version, which is not yet in service.

        :param torch: the folder that training made, kept to train on from.
        """
        artifact = load_artifact(model)
        artifact.verify()
        with self._locked():
            name = self._next_name()
            staged = self._versions / f".staged-{name}-{os.getpid()}"
            shutil.rmtree(staged, ignore_errors=True)
            self._step("add: copy")
            _copy_model(artifact.path, staged)
            if torch is not None:
                self._step("add: copy torch")
                shutil.copytree(torch, staged / TORCH, ignore=shutil.ignore_patterns("checkpoint*", "*.partial"))
            record = {"made_at": time.time(), "parent": parent, "facts": dict(facts or {})}
            (staged / VERSION_FILE).write_text(json.dumps(record, indent=2, ensure_ascii=False), encoding="utf-8")
            self._step("add: sync")
            _sync_tree(staged)
            self._step("add: rename")
            os.rename(staged, self._versions / name)
            _sync(self._versions)
            self._step("add: record")
            self.history.append(action="add", version=name, who=who, why=why, parent=parent, facts=record["facts"])
        return self.version(name)

    def promote(
        self,
        name: str,
        *,
        who: str = "",
        why: str = "",
        facts: Mapping[str, Any] | None = None,
        instead_of: str | None = None,
    ) -> Version:
        """Put a version in service. It is checked first; a damaged one is refused and nothing changes.

        :param instead_of: the version that it was found better than; refused where that is no longer in service.
        """
        return self._serve("promote", name, who, why, facts or {}, instead_of)

    def rollback(self, name: str | None = None, *, who: str = "", why: str = "") -> Version:
        """Put an earlier version back in service.

        :param name: any version, a later one too; the one before the current by default.
        """
        return self._serve("rollback", self._before() if name is None else name, who, why, {})

    def collect(self, keep: int = 5, *, who: str = "", spare: Collection[str] = ()) -> list[str]:
        """Remove the oldest versions beyond `keep`, never the current or the previous one; returns their names.

        :param spare: names of others that stay.
        """
        if keep < 1:
            raise InputError(f"expected a whole number from 1, got {keep}", field="keep")
        with self._locked():
            kept = {version.name for version in (self.current(), self.previous()) if version is not None}
            known = [version.name for version in self.versions()]
            kept |= set(spare) & set(known)
            others = [name for name in known if name not in kept]
            removed = others[: max(len(others) + len(kept) - keep, 0)]
            for name in removed:
                self._step("collect: rename")
                trash = self._versions / f".trash-{name}"
                os.rename(self._versions / name, trash)
                self._step("collect: remove")
                shutil.rmtree(trash)
                self._step("collect: record")
                self.history.append(action="collect", version=name, who=who)
            self._sweep()
        return removed

    def _serve(
        self, action: str, name: str, who: str, why: str, facts: Mapping[str, Any], instead_of: str | None = None
    ) -> Version:
        version = self.version(name)
        with self._locked():
            previous = self._current_name()
            if instead_of is not None and previous != instead_of:
                message = f"{name} passed the gate against {instead_of}, but {previous} is in service now"
                raise InputError(f"{message}; evaluate it again", field="version")
            self._step(f"{action}: verify")
            _check(version)
            link = self.root / f".current-{os.getpid()}"
            link.unlink(missing_ok=True)
            self._step(f"{action}: link")
            link.symlink_to(Path("versions") / name)
            self._step(f"{action}: swap")
            os.replace(link, self.current_path)
            _sync(self.root)
            self._step(f"{action}: record")
            self.history.append(action=action, version=name, previous=previous, who=who, why=why, facts=dict(facts))
            self._step(f"{action}: done")
        return version

    def _before(self) -> str:
        """Name of the version before the current one."""
        current, previous = self.current(), self.previous()
        if previous is not None:
            return previous.name
        if current is None:
            raise InputError("there is no earlier version to go back to", field="version")
        others = ", ".join(version.name for version in self.versions() if version.name != current.name)
        way_out = f"; name the one to put in service: {others}" if others else ""
        raise InputError(f"there is no earlier version than {current.name} to go back to{way_out}", field="version")

    def _reconcile(self) -> None:
        """A process killed between swap and record leaves a current that the history does not know: record it."""
        served, current = self._served(), self._current_name()
        if current is not None and (not served or served[-1] != current) and self.find(current) is not None:
            previous = served[-1] if served else None
            why = "recorded afterwards: the process that did it was stopped"
            self.history.append(action="promote", version=current, previous=previous, who="recovery", why=why)

    def _current_name(self) -> str | None:
        """What `current` points to, whether it is there or not; None where it is no link."""
        try:
            return Path(os.readlink(self.current_path)).name
        except OSError:
            return None

    def _served(self) -> list[str]:
        """Names of the versions that were put in service, in this order."""
        return [entry["version"] for entry in self.history.entries() if entry["action"] in SERVED]

    def _standing(self) -> tuple[list[str], set[str]]:
        """The versions that led to the current one, and which were put in service by force.

        Going back to a version undoes whatever came after it.
        """
        names: list[str] = []
        forced: set[str] = set()
        for entry in self.history.entries():
            if entry["action"] not in SERVED:
                continue
            name = entry["version"]
            if entry.get("facts", {}).get("forced"):
                forced.add(name)
            elif entry["action"] == "promote" and name not in names:
                forced.discard(name)  # once by force and rolled back, it has now passed the gate
            names = names[: names.index(name)] if name in names else names
            names.append(name)
        return names, forced

    def _sweep(self) -> None:
        for leftover in (*self._versions.glob(".staged-*"), *self._versions.glob(".trash-*")):
            shutil.rmtree(leftover)
        for link in self.root.glob(".current-*"):
            link.unlink()

    def _next_name(self) -> str:
        """Numbers are never used twice, not even of versions that were collected."""
        used = [path.name for path in self._versions.iterdir()] + [e["version"] for e in self.history.entries()]
        return f"{max((int(name) for name in used if name.isdigit()), default=0) + 1:04d}"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One process changes the registry at a time; a killed one leaves no lock behind."""
        with (self.root / ".lock").open("w") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            self._reconcile()
            yield


def _check(version: Version) -> None:
    """The files are whole and the model scores: a current that does not load would be worse than an old one."""
    from mnemorank.memory.memory import Memory
    from mnemorank.model.model import Model

    try:
        model = Model.load(version.path, probe=False)
        try:
            score = float(model.score("probe", [Memory("probe")]).raw[0])
        finally:
            model.close()
    except MnemorankError as error:
        raise ArtifactError(f"version {version.name} was refused: {error}") from error
    if score != score:
        raise ArtifactError(f"version {version.name} was refused: its probe gave no score")


def _copy_model(source: Path, target: Path) -> None:
    """The model's own files: no checkpoints, no other models below it."""
    target.mkdir()
    for path in sorted(source.iterdir()):
        if path.is_file() and path.name != VERSION_FILE and not path.name.endswith(".partial"):
            shutil.copy2(path, target / path.name)
    if (source / "onnx").is_dir():
        shutil.copytree(source / "onnx", target / "onnx")


def _sync_tree(folder: Path) -> None:
    for path in folder.rglob("*"):
        _sync(path)
    _sync(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class History:
    """A line that a kill cut short is passed over by readers and closed by the next writer."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, **entry: Any) -> None:
        """Write one entry with its time, in a single write, and wait until it is on disk."""
        line = json.dumps({"time": time.time(), **entry}, ensure_ascii=False, allow_nan=False) + "\n"
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            if not self._ends_whole(descriptor):
                line = "\n" + line
            os.write(descriptor, line.encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def entries(self) -> list[dict[str, Any]]:
        """All entries, oldest first."""
        if not self.path.exists():
            return []
        found = []
        for line in self.path.read_text(encoding="utf-8", errors="replace").split("\n"):  # U+2028 is no end
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                continue  # cut short by a kill: what it was to record is found again by Registry
        return found

    @staticmethod
    def _ends_whole(descriptor: int) -> bool:
        size = os.fstat(descriptor).st_size
        return size == 0 or os.pread(descriptor, 1, size - 1) == b"\n"
