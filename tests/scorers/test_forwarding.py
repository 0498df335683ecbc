"""A wrapper that overrides nothing is the scorer it wraps."""

from __future__ import annotations

import pytest

from mnemorank.artifact.resolve import load_artifact
from mnemorank.errors import ScorerError
from mnemorank.scorers import Scorer
from mnemorank.scorers.onnx import OnnxScorer
from mnemorank.scorers.protocol import ForwardingScorer


def test_a_forwarding_scorer_is_its_inner_scorer(tiny_onnx):
    inner = OnnxScorer(load_artifact(tiny_onnx))
    outer: Scorer = ForwardingScorer(inner)
    texts = ["ruby works in berlin", "the cat"]
    assert outer.name == inner.name
    assert [p.length for p in outer.prepare(texts)] == [p.length for p in inner.prepare(texts)]
    assert outer.room("ruby", "now") == inner.room("ruby", "now")
    assert outer.offsets(texts[0]) == inner.offsets(texts[0])
    assert outer.score("ruby cat", outer.prepare(texts)).tolist() == [0.0, 0.0]
    outer.close()
    with pytest.raises(ScorerError, match="closed"):
        inner.score("ruby", inner.prepare(texts))
