"""Which models the server may load, by name. A name from a request is looked up here, never used as a path."""

from __future__ import annotations

from pathlib import Path

from mnemorank.artefact import bundled_models
from mnemorank.server.settings import Settings


class Catalogue:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def names(self) -> list[str]:
        return sorted(self._listed())

    def find(self, name: str | None = None) -> str | Path | None:
        """What to load for a name; None if there is no such model. Without a name: the one to serve by default."""
        return self.default() if name is None else self._listed().get(name)

    def default(self) -> str | Path:
        """The registry's current version if there is one, else the configured model."""
        return self.registered() or self._settings.model

    def registered(self) -> Path | None:
        """The registry's current version."""
        return current_version(self._settings.registry) if self._settings.registry else None

    def _listed(self) -> dict[str, str | Path]:
        listed: dict[str, str | Path] = {name: name for name in bundled_models()}
        folder = self._settings.models_dir
        if folder is not None and folder.is_dir():
            listed.update({entry.name: entry for entry in folder.iterdir() if entry.is_dir()})
        return listed


def current_version(registry: Path) -> Path | None:
    """The folder that the registry's `current` names; None if nothing was promoted yet.

    `current` is a link to a version's folder, or a file that holds its name.
    """
    pointer = registry / "current"
    if pointer.is_dir():
        return pointer.resolve()
    if pointer.is_file():
        name = pointer.read_text(encoding="utf-8").strip()
        places = (registry / name, registry / "versions" / name)
        return next((place.resolve() for place in places if name and place.is_dir()), None)
    return None
