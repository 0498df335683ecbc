"""Make the modules of research/mini_data importable, and share fixtures."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.training.conftest import tiny_bert

__all__ = ["tiny_bert"]
MINI_DATA = Path(__file__).parents[2] / "research" / "mini_data"
sys.path.insert(0, str(MINI_DATA))


@pytest.fixture
def write_questions(monkeypatch, tmp_path) -> Iterator:
    """Replaces the questions written by agents."""
    import agent_questions

    def write(*questions: dict) -> None:
        text = "".join(json.dumps(question) + "\n" for question in questions)
        (tmp_path / "questions.jsonl.gz").write_bytes(gzip.compress(text.encode()))
        monkeypatch.setattr(agent_questions, "DATA", tmp_path)
        agent_questions.read_questions.cache_clear()

    yield write
    agent_questions.read_questions.cache_clear()
