"""What the loop sets in its recipe."""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from mnemorank import InputError
from mnemorank.artifact.manifest import Calibration, Manifest, PipelineWeights, Windows
from mnemorank.learning.settings import Training
from mnemorank.learning.versions import Version
from mnemorank.learning.worker import recipe_changes, run_like
from mnemorank.training.recipe import load_recipe


def sources(tiny_onnx, tmp_path, settings: Training, examples: int):
    feedback = tmp_path / "feedback.jsonl"
    feedback.write_text("{}")
    parent = Version("0001", Path(tiny_onnx), time.time())
    recipe = load_recipe("feedback", recipe_changes(settings, tmp_path, parent, feedback, examples))
    return {source.name: source for source in recipe.stage[0].data}


def test_replay_is_in_proportion_to_the_feedback(tiny_onnx, tmp_path):
    found = sources(tiny_onnx, tmp_path, Training(), examples=40)
    assert found["feedback"].max_examples is None
    assert found["replay"].max_examples == 80


def test_replay_can_be_bounded_or_left_out(tiny_onnx, tmp_path):
    assert sources(tiny_onnx, tmp_path, Training(replay_most=7), examples=40)["replay"].max_examples == 7
    assert "replay" not in sources(tiny_onnx, tmp_path, Training(replay_weight=0), examples=40)
    with pytest.raises(InputError, match="replay_most: expected a number from 1, got 0"):
        Training(replay_most=0)


def test_a_candidate_is_run_as_its_parent_is():
    parent = Manifest(
        "mini", "1", calibration=Calibration(0.5, -1.0),
        weights=PipelineWeights(0.3, 1.2, entity_links=2.2, same_day=0.3, query_dates=1.5, rescoring=0.4),
        first_stage_method="rank", long_query_terms=5, windows=Windows(overlap=0.1, max_count=2), abstain_below=0.2,
    )  # fmt: skip
    candidate = run_like(Manifest("trained", quantization="int8-dynamic"), parent, "0002")
    assert candidate == replace(parent, version="0002", quantization="int8-dynamic")
    own = Calibration(0.7, 0.0)
    assert run_like(Manifest("trained", calibration=own), parent, "0002").calibration == own
