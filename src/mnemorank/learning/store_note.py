"""Which store a loop was last opened with, where that was not the one its settings name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mnemorank.errors import InputError
from mnemorank.learning.database import address


@dataclass(frozen=True, slots=True)
class StoreNote:
    """:param own: the store that the settings name."""

    path: Path
    own: str

    def check(self, given: str | None) -> None:
        """Refuse to open the settings' own store by default where the events are in another."""
        if given is not None or not self.path.exists():
            return
        told = self.path.read_text(encoding="utf-8").strip()
        if told != address(self.own):
            raise InputError(
                f"store: the events of this loop are in {told}; name it with --store or MNEMORANK_STORE. "
                f"To begin anew with {address(self.own)}, remove {self.path}"
            )

    def write(self, used: str) -> None:
        """Without password: the note tells where, not how to get in."""
        told = address(used)
        if told == address(self.own):
            self.path.unlink(missing_ok=True)
        elif not self.path.exists() or self.path.read_text(encoding="utf-8").strip() != told:
            self.path.write_text(told + "\n", encoding="utf-8")
