import json
import shutil
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

from mnemorank import ArtifactError, MissingExtraError, Model, Reranker
from mnemorank.artifact.manifest import Calibration, Manifest, read_manifest, write_manifest
from mnemorank.artifact.resolve import bundled_models, load_artifact, resolve

FILES = ["model.onnx", "tokenizer.json", "tokenizer_config.json", "config.json"]


@pytest.fixture
def artifact(tiny_onnx, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(tiny_onnx, folder)
    write_manifest(folder, Manifest("tiny", max_length=64, calibration=Calibration(2.0, 1.0)))
    return folder


def test_a_written_manifest_is_read_back(artifact):
    manifest = load_artifact(artifact).manifest
    assert manifest.calibration == Calibration(2.0, 1.0)
    assert set(manifest.files) == set(FILES)


def test_a_plain_folder_loads_with_defaults(tiny_onnx):
    artifact = load_artifact(tiny_onnx)
    assert not artifact.has_manifest
    assert (artifact.manifest.format, artifact.manifest.template, artifact.manifest.family) == ("plain", "pair", "onnx")
    assert artifact.manifest.max_length == 64


@pytest.mark.parametrize(("kind", "length"), [("bert", 50), ("roberta", 48), ("xlm-roberta-xl", 48), ("mpnet", 48)])
def test_the_length_of_a_plain_folder_is_its_usable_positions(tiny_onnx, tmp_path, kind, length):
    folder = shutil.copytree(tiny_onnx, tmp_path / "model")
    (folder / "config.json").write_text(json.dumps({"model_type": kind, "max_position_embeddings": 50}))
    assert load_artifact(folder).manifest.max_length == length


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"schema": 99}, "newer"),
        ({"schema": None}, "schema"),
        ({"name": ""}, "name"),
        ({"format": "hindsight-9"}, "format"),
        ({"template": ["pair"]}, "template"),
        ({"score_kind": "cosine"}, "score_kind"),
        ({"max_length": "512"}, "max_length"),
        ({"max_length": 10**9}, "max_length"),
        ({"calibration": {"scale": 0}}, "calibration.scale"),
        ({"calibration": {"scale": -1.0}}, "calibration.scale"),
        ({"calibration": [1, 2]}, "calibration"),
        ({"calibration": {"slope": 1}}, "calibration.slope"),
        ({"abstain_below": 1.5}, "abstain_below"),
        ({"windows": {"max_count": 0}}, "windows.max_count"),
        ({"windows": {"max_count": 10**9}}, "windows.max_count"),
        ({"files": {"../model.onnx": "0" * 64}}, "files"),
        ({"files": {"model.onnx": "abc"}}, "files"),
        ({"color": "red"}, "color"),
    ],
)
def test_an_invalid_manifest_names_the_field(artifact, change, field):
    path = artifact / "mnemorank.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ArtifactError, match=field):
        load_artifact(artifact)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"schema": 1}'])
def test_an_unreadable_manifest_is_an_artifact_error(artifact, content):
    (artifact / "mnemorank.json").write_bytes(content)
    with pytest.raises(ArtifactError, match=r"mnemorank\.json"):
        read_manifest(artifact / "mnemorank.json")


def test_a_changed_file_is_an_artifact_error(artifact):
    with (artifact / "tokenizer.json").open("a") as stream:
        stream.write(" ")
    with pytest.raises(ArtifactError, match=r"tokenizer\.json"):
        Model.load(artifact)


def test_a_missing_file_is_an_artifact_error(artifact):
    (artifact / "tokenizer.json").unlink()
    with pytest.raises(ArtifactError, match=r"tokenizer\.json"):
        Model.load(artifact)


def test_a_corrupt_model_is_an_artifact_error(artifact):
    (artifact / "mnemorank.json").unlink()
    (artifact / "model.onnx").write_bytes(b"not a model")
    with pytest.raises(ArtifactError, match=r"model\.onnx"):
        Model.load(artifact)


def test_a_corrupt_tokenizer_is_an_artifact_error(artifact):
    (artifact / "mnemorank.json").unlink()
    (artifact / "tokenizer.json").write_text("{}")
    with pytest.raises(ArtifactError, match=r"tokenizer\.json"):
        Model.load(artifact)


def test_an_unknown_name_lists_what_is_accepted(tmp_path):
    with pytest.raises(ArtifactError, match=r"mini.*org/name"):
        load_artifact("nope")
    with pytest.raises(ArtifactError, match=r"config\.json"):
        load_artifact(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ArtifactError, match="folder"):
        load_artifact(tmp_path / "file")


@pytest.fixture
def hub(monkeypatch, tiny_onnx):
    """A stand-in for the Hub that serves one model and records what is asked of it."""
    downloads = []

    def snapshot_download(repository, *, revision, allow_patterns):
        downloads.append((repository, revision))
        return str(tiny_onnx)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    return downloads


@pytest.mark.parametrize(
    ("name", "download"),
    [
        ("cross-encoder/ms-marco-MiniLM-L6-v2", ("cross-encoder/ms-marco-MiniLM-L6-v2", None)),
        ("hf:cross-encoder/ms-marco-MiniLM-L6-v2", ("cross-encoder/ms-marco-MiniLM-L6-v2", None)),
        ("BAAI/bge-reranker-v2-m3@main", ("BAAI/bge-reranker-v2-m3", "main")),
        ("hf:BAAI/bge-reranker-v2-m3@refs/pr/3", ("BAAI/bge-reranker-v2-m3", "refs/pr/3")),
    ],
)
def test_a_hub_id_is_downloaded_with_or_without_the_prefix(hub, tiny_onnx, name, download):
    assert load_artifact(name).path == tiny_onnx
    assert hub == [download]


def test_all_files_of_a_split_model_are_downloaded(split_onnx, monkeypatch, tmp_path):
    def snapshot_download(repository, *, revision, allow_patterns):
        shutil.copytree(split_onnx, tmp_path / "model")
        for path in (tmp_path / "model").rglob("*"):
            name = str(path.relative_to(tmp_path / "model"))
            if path.is_file() and not any(fnmatch(name, pattern) for pattern in allow_patterns):
                path.unlink()
        return str(tmp_path / "model")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    artifact = load_artifact("org/split")
    artifact.verify()
    assert {"encoder.onnx", "joint.onnx", "weights.bin"} <= set(artifact.manifest.files)


def test_a_reranker_takes_a_bare_hub_id(hub):
    with Reranker("org/overlap") as reranker:
        assert reranker.rerank("ruby", ["cat", "ruby"])[0].index == 1
    assert hub == [("org/overlap", None)] * len(hub)


def test_local_folders_and_bundled_models_win_over_the_hub(hub, tiny_onnx, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tiny_onnx, tmp_path / "org" / "name")
    assert resolve("org/name").resolve() == tmp_path / "org" / "name"
    (tmp_path / "mini").mkdir()
    assert resolve("mini").resolve() != tmp_path / "mini"
    assert hub == []
    resolve("hf:org/name")
    assert hub == [("org/name", None)]


@pytest.mark.parametrize(
    "name", ["./org/name", "../org/name", "/org/name", "~/org", "a/b/c", "org/", "name", "-a/b", ""]
)
def test_paths_are_not_taken_for_hub_ids(hub, name):
    with pytest.raises(ArtifactError):
        resolve(name)
    assert hub == []


def test_a_path_object_is_never_downloaded(hub):
    with pytest.raises(ArtifactError):
        resolve(Path("org/name"))
    assert hub == []


@pytest.mark.parametrize("name", ["hf:nobody/nothing", "nobody/nothing"])
def test_a_failed_download_is_an_artifact_error(monkeypatch, tmp_path, name):
    def snapshot_download(*_, **__):
        raise ConnectionError("no network\nand a second line")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    with pytest.raises(ArtifactError, match=f"^{name}: .*Hub.*no network and a second line"):
        load_artifact(name)


def test_an_unreachable_hub_is_an_artifact_error(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(ArtifactError, match="hf:nobody/nothing"):
        load_artifact("hf:nobody/nothing")


@pytest.mark.parametrize("name", ["hf:org/name", "org/name"])
def test_without_huggingface_hub_the_error_names_the_extra(monkeypatch, name):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)  # importing it fails
    with pytest.raises(MissingExtraError, match=r"mnemorank\[hub\]"):
        load_artifact(name)


def test_the_files_of_the_bundled_model_match_their_hashes():
    assert "mini" in bundled_models()
    load_artifact("mini").verify()


@pytest.mark.parametrize("name", ["special_tokens_map.json", "model.onnx.data", "onnx/model.onnx", "vocab.txt"])
def test_a_file_that_was_added_later_is_an_artifact_error(artifact, name):
    (artifact / name).parent.mkdir(exist_ok=True)
    (artifact / name).write_bytes(b"{}")
    with pytest.raises(ArtifactError, match="has no hash"):
        load_artifact(artifact).verify()


def test_files_that_do_not_influence_the_model_need_no_hash(artifact):
    (artifact / "README.md").write_text("# Tiny")
    (artifact / "version.json").write_text("{}")
    load_artifact(artifact).verify()


@pytest.mark.parametrize(("kind", "positions"), [("bert", 64), ("roberta", 66)])
def test_a_model_cannot_read_more_than_it_has_positions_for(artifact, kind, positions):
    config = artifact / "config.json"
    config.write_text(json.dumps({"model_type": kind, "max_position_embeddings": positions}))
    assert load_artifact(artifact).manifest.max_length == 64
    config.write_text(json.dumps({"model_type": kind, "max_position_embeddings": positions - 1}))
    with pytest.raises(ArtifactError, match="max_length"):
        load_artifact(artifact)
