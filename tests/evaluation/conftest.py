"""A small benchmark for the tests of evaluation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

QUESTIONS = (
    ("where does ruby work now", "ruby works at aurora labs now", "work"),
    ("when was the dentist visit", "the dentist visit was in march 2024", "health"),
    ("who lives in berlin", "the cat lives in berlin", "home"),
    ("what is the plan of the trip to lisbon", "flight to lisbon in april", "travel"),
)


@pytest.fixture
def lists_file(tmp_path: Path) -> Path:
    """Four questions over the same five memories, with the relevant one first, and one unanswerable question."""
    pool = [text for _, text, _ in QUESTIONS] + ["go and python and rust"]
    path = tmp_path / "small.jsonl"
    with path.open("w") as stream:
        for number, (query, relevant, kind) in enumerate(QUESTIONS):
            texts = [relevant, *(text for text in pool if text != relevant)]
            candidates = [{"text": text, "label": float(text == relevant)} for text in texts]
            stream.write(
                json.dumps({"id": f"q{number}", "query": query, "kind": kind, "candidates": candidates}) + "\n"
            )
        candidates = [{"text": text, "label": 0.0} for text in pool]
        stream.write(
            json.dumps({"id": "none", "query": "who is the doctor", "answerable": False, "candidates": candidates})
        )
    return path
