"""A calibrated tiny model, and a reranker with it that has no first stage."""

from __future__ import annotations

import shutil

import pytest

from mnemorank import Options, Reranker
from mnemorank.artifact.manifest import Calibration, Manifest, PipelineWeights, Windows, write_manifest


@pytest.fixture(scope="session")
def folder(tiny_onnx, tmp_path_factory):
    target = tmp_path_factory.mktemp("calibrated") / "model"
    shutil.copytree(tiny_onnx, target)
    manifest = Manifest(
        "overlap",
        format="hindsight-2",
        max_length=64,
        calibration=Calibration(1.0, -0.5),
        weights=PipelineWeights(first_stage=0.5),
        long_query_terms=8,
        abstain_below=0.3,
        windows=Windows(overlap=0.2, max_count=3),
    )
    write_manifest(target, manifest)
    return target


@pytest.fixture(scope="session")
def reranker(folder):
    with Reranker(folder, options=Options(first_stage="none")) as made:
        yield made
