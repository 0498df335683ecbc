import json
import shutil

import pytest

from mnemorank import ArtifactError, Model
from mnemorank.artifact.manifest import Calibration, Manifest, read_manifest, write_manifest
from mnemorank.artifact.resolve import bundled_models, load_artifact

FILES = ["model.onnx", "tokenizer.json", "config.json"]


@pytest.fixture
def artifact(tiny_onnx, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(tiny_onnx, folder)
    write_manifest(folder, Manifest("tiny", max_length=64, calibration=Calibration(2.0, 1.0)), FILES)
    return folder


def test_round_trip(artifact):
    manifest = load_artifact(artifact).manifest
    assert manifest.calibration == Calibration(2.0, 1.0)
    assert set(manifest.files) == set(FILES)


def test_a_plain_folder_loads_with_defaults(tiny_onnx):
    found = load_artifact(tiny_onnx)
    assert not found.has_manifest
    assert (found.manifest.format, found.manifest.template, found.manifest.family) == ("plain", "pair", "onnx")
    assert found.manifest.max_length == 64


@pytest.mark.parametrize(("kind", "length"), [("bert", 50), ("roberta", 48), ("xlm-roberta-xl", 48), ("mpnet", 48)])
def test_a_plain_folder_is_as_long_as_its_usable_positions(tiny_onnx, tmp_path, kind, length):
    folder = shutil.copytree(tiny_onnx, tmp_path / "model")
    (folder / "config.json").write_text(json.dumps({"model_type": kind, "max_position_embeddings": 50}))
    assert load_artifact(folder).manifest.max_length == length


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"schema": 99}, "newer"),
        ({"schema": None}, "schema"),
        ({"name": ""}, "name"),
        ({"format": "hindsight-9"}, "format"),
        ({"template": ["pair"]}, "template"),
        ({"score_kind": "cosine"}, "score_kind"),
        ({"max_length": "512"}, "max_length"),
        ({"calibration": {"scale": 0}}, "calibration.scale"),
        ({"calibration": {"scale": -1.0}}, "calibration.scale"),
        ({"calibration": [1, 2]}, "calibration"),
        ({"calibration": {"slope": 1}}, "calibration.slope"),
        ({"abstain_below": 1.5}, "abstain_below"),
        ({"windows": {"most": 0}}, "windows.most"),
        ({"files": {"../model.onnx": "0" * 64}}, "files"),
        ({"files": {"model.onnx": "abc"}}, "files"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_each_fault_of_a_manifest_is_named(artifact, change, named):
    path = artifact / "mnemorank.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ArtifactError, match=named):
        load_artifact(artifact)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"schema": 1}'])
def test_unreadable_manifests(artifact, content):
    (artifact / "mnemorank.json").write_bytes(content)
    with pytest.raises(ArtifactError, match=r"mnemorank\.json"):
        read_manifest(artifact / "mnemorank.json")


def test_a_changed_file_is_noticed(artifact):
    with (artifact / "tokenizer.json").open("a") as stream:
        stream.write(" ")
    with pytest.raises(ArtifactError, match=r"tokenizer\.json.*hash"):
        Model.load(artifact)


def test_a_missing_file_is_noticed(artifact):
    (artifact / "tokenizer.json").unlink()
    with pytest.raises(ArtifactError, match=r"tokenizer\.json.*missing"):
        Model.load(artifact)


def test_a_corrupt_model_is_an_artifact_error(artifact):
    (artifact / "mnemorank.json").unlink()
    (artifact / "model.onnx").write_bytes(b"not a model")
    with pytest.raises(ArtifactError, match=r"model\.onnx.*ONNX"):
        Model.load(artifact)


def test_a_corrupt_tokenizer_is_an_artifact_error(artifact):
    (artifact / "mnemorank.json").unlink()
    (artifact / "tokenizer.json").write_text("{}")
    with pytest.raises(ArtifactError, match=r"tokenizer\.json.*tokenizer"):
        Model.load(artifact)


def test_unknown_names_say_what_there_is(tmp_path):
    with pytest.raises(ArtifactError, match=r"mini.*hf:org/name"):
        load_artifact("nope")
    with pytest.raises(ArtifactError, match="not a model folder"):
        load_artifact(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ArtifactError, match="folder"):
        load_artifact(tmp_path / "file")


def test_the_hub_out_of_reach_is_an_artifact_error(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(ArtifactError, match="hf:nobody/nothing"):
        load_artifact("hf:nobody/nothing")


def test_the_bundled_model_is_whole():
    assert "mini" in bundled_models()
    load_artifact("mini").verify()
