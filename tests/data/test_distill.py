from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from mnemorank.data.distill import distill, teacher_score
from mnemorank.data.examples import Candidate, Example
from mnemorank.data.formats import read_lists, write_lists
from mnemorank.memory.memory import Memory
from mnemorank.model.model import Model


def example() -> Example:
    texts = ["ruby works at aurora labs", "the cat", ""]
    return Example("1", "where does ruby work", tuple(Candidate(Memory(t, metadata={"k": 1}), 0.5) for t in texts))


def test_teacher_scores_round_trip(tiny_onnx, tmp_path):
    teacher = Model.load(tiny_onnx, probe=False)
    (scored,) = distill([example()], teacher)
    expected = teacher.score(example().query, example().memories).raw
    got = [teacher_score(candidate) for candidate in scored.candidates]
    assert got[:2] == pytest.approx(expected[:2])
    assert got[2] is None
    assert scored.labels == [0.5] * 3
    assert scored.candidates[0].memory.metadata["k"] == 1
    write_lists([scored], tmp_path / "lists.jsonl")
    (read,) = read_lists(tmp_path / "lists.jsonl")
    assert [teacher_score(candidate) for candidate in read.candidates] == got


def test_probabilities_become_log_odds(tiny_onnx):
    teacher = Model.load(tiny_onnx, probe=False)

    class Judge:
        manifest = replace(teacher.manifest, score_kind="probability")

        def score(self, query, memories, **options):
            return replace(teacher.score(query, memories), raw=np.array([0.75, 0.5, np.nan]))

    (scored,) = distill([example()], Judge())
    assert teacher_score(scored.candidates[0]) == pytest.approx(math.log(3))
    assert teacher_score(scored.candidates[1]) == pytest.approx(0)
    assert teacher_score(scored.candidates[2]) is None


def test_a_query_too_long_for_the_teacher_is_truncated(tiny_onnx):
    long = replace(example(), query="where is the cat " * 400 + "ruby")
    (scored,) = distill([long], Model.load(tiny_onnx, probe=False))
    assert all(teacher_score(candidate) is not None for candidate in scored.candidates[:2])
