"""What the loop sets in the recipe and in the manifest of a candidate."""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from mnemorank import InputError
from mnemorank.artifact.manifest import Calibration, Manifest, PipelineWeights, Windows
from mnemorank.learning.settings import LearningSettings, TrainingSettings
from mnemorank.learning.versions import Version
from mnemorank.learning.worker import inherit_pipeline, recipe_overrides
from mnemorank.training.recipe import load_recipe


def load_sources(tiny_onnx, tmp_path, settings: TrainingSettings, examples: int):
    feedback = tmp_path / "feedback.jsonl"
    feedback.write_text("{}")
    parent = Version("0001", Path(tiny_onnx), time.time())
    recipe = load_recipe("feedback", recipe_overrides(settings, tmp_path, parent, feedback, examples))
    return {source.name: source for source in recipe.stage[0].data}


def test_the_amount_of_replay_depends_on_the_feedback(tiny_onnx, tmp_path):
    sources = load_sources(tiny_onnx, tmp_path, TrainingSettings(), examples=40)
    assert sources["feedback"].max_examples is None
    assert sources["replay"].max_examples == 80


def test_replay_can_be_limited_or_turned_off(tiny_onnx, tmp_path):
    limited = load_sources(tiny_onnx, tmp_path, TrainingSettings(max_replay=7), examples=40)
    assert limited["replay"].max_examples == 7
    assert "replay" not in load_sources(tiny_onnx, tmp_path, TrainingSettings(replay_weight=0), examples=40)
    with pytest.raises(InputError) as error:
        LearningSettings.from_table({"training": {"max_replay": 0}})
    assert error.value.field == "training.max_replay"


def test_a_candidate_inherits_the_pipeline_settings_of_its_parent():
    parent = Manifest(
        "mini", "1", calibration=Calibration(0.5, -1.0),
        weights=PipelineWeights(0.3, 1.2, entity_links=2.2, same_day=0.3, query_dates=1.5, rescoring=0.4),
        first_stage_method="rank", long_query_terms=5, windows=Windows(overlap=0.1, max_count=2), abstain_below=0.2,
    )  # fmt: skip
    candidate = inherit_pipeline(Manifest("trained", quantization="int8-dynamic"), parent, "0002")
    assert candidate == replace(parent, version="0002", quantization="int8-dynamic")
    own = Calibration(0.7, 0.0)
    assert inherit_pipeline(Manifest("trained", calibration=own), parent, "0002").calibration == own
