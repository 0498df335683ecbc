import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from mnemorank import ArtifactError, InputError, Reranker
from mnemorank.artifact.manifest import Manifest, write_manifest
from mnemorank.errors import ConflictError, NotFoundError
from mnemorank.learning.versions import VersionStore


@pytest.fixture(scope="module")
def model(tiny_onnx: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with a manifest, whose hashes reveal damage."""
    folder = tmp_path_factory.mktemp("versions") / "model"
    shutil.copytree(tiny_onnx, folder)
    write_manifest(folder, Manifest("tiny", max_length=64))
    return folder


@pytest.fixture
def versions(tmp_path: Path, model: Path) -> VersionStore:
    """Three versions; the first and then the second were promoted."""
    versions = VersionStore(tmp_path / "versions")
    for _ in range(3):
        versions.add(model, torch=model, who="test")
    versions.promote("0001", who="ann", why="import")
    versions.promote("0002", who="bob", why="better", facts={"map": 0.9})
    return versions


def test_without_versions_there_is_no_current_one(tmp_path):
    versions = VersionStore(tmp_path)
    assert versions.current() is None
    assert versions.all() == []
    with pytest.raises(ConflictError) as error:
        versions.rollback()
    assert error.value.code == "no_previous"
    with pytest.raises(NotFoundError) as error:
        versions.promote("0001")
    assert error.value.field == "version"


def test_current_is_a_model_folder(versions):
    with Reranker(versions.current_path) as reranker:
        assert reranker.rerank("ruby", ["cat", "ruby"])[0].text == "ruby"
    assert os.readlink(versions.current_path) == "0002"
    assert versions.current().torch_path.is_dir()


def test_repeated_rollbacks_go_further_back(versions):
    versions.promote("0003")
    assert versions.previous().name == "0002"
    assert [versions.rollback(who="ann", why="complaints").name for _ in range(2)] == ["0002", "0001"]
    assert versions.previous() is None
    with pytest.raises(ConflictError, match="0002, 0003") as error:
        versions.rollback()
    assert error.value.code == "no_previous"
    assert versions.current().name == "0001"


def test_a_rollback_can_name_any_version(versions):
    versions.rollback()
    assert versions.rollback("0003").name == "0003"
    assert versions.previous().name == "0001"
    assert versions.rollback("0002").name == "0002"
    assert versions.previous().name == "0003"


def test_a_rollback_skips_removed_versions(versions, model):
    versions.promote("0003")
    assert versions.prune(keep=2) == ["0001"]
    versions.add(model)
    versions.promote("0004")
    assert versions.prune(keep=2) == ["0002"]
    assert versions.rollback().name == "0003"
    with pytest.raises(ConflictError) as error:
        versions.rollback()
    assert error.value.code == "no_previous"


def test_the_history_records_who_what_and_why(versions):
    versions.rollback(who="ann", why="complaints")
    entries = versions.history.entries()
    assert [(e["action"], e["version"], e.get("previous"), e["who"], e["why"]) for e in entries[3:]] == [
        ("promote", "0001", None, "ann", "import"),
        ("promote", "0002", "0001", "bob", "better"),
        ("rollback", "0001", "0002", "ann", "complaints"),
    ]
    assert entries[4]["facts"] == {"map": 0.9}


def test_a_damaged_version_is_not_promoted_and_nothing_changes(versions):
    path = versions.get("0003").path / "model.onnx"
    path.write_bytes(path.read_bytes()[:-10])
    before = versions.history.path.read_bytes()
    with pytest.raises(ArtifactError, match=r"model\.onnx"):
        versions.promote("0003")
    assert versions.current().name == "0002"
    assert versions.history.path.read_bytes() == before


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "0009", ".staged-0001-1", "/etc"])
def test_a_name_cannot_leave_the_folder(versions, name):
    with pytest.raises(NotFoundError):
        versions.promote(name)


def test_pruning_keeps_the_current_and_the_previous_version(versions, model):
    for _ in range(3):
        versions.add(model)
    assert versions.prune(keep=3) == ["0003", "0004", "0005"]
    assert [version.name for version in versions.all()] == ["0001", "0002", "0006"]
    assert versions.prune(keep=1) == ["0006"]
    assert (versions.current().name, versions.previous().name) == ("0002", "0001")
    assert versions.add(model).name == "0007"
    with pytest.raises(InputError) as error:
        versions.prune(keep=0)
    assert error.value.field == "keep"


def test_an_incomplete_line_of_the_history_is_skipped_and_ended(versions):
    with versions.history.path.open("a") as stream:
        stream.write('{"action": "promo')
    versions.rollback()
    assert [entry["action"] for entry in versions.history.entries()[-2:]] == ["promote", "rollback"]


def test_unicode_line_separators_do_not_split_an_entry(versions):
    versions.rollback(why="next\u2028line\u0085and\u2029more")
    assert versions.history.entries()[-1]["why"] == "next\u2028line\u0085and\u2029more"


def broken_links(versions: VersionStore):
    link = versions.current_path
    link.unlink()
    yield "missing"
    link.unlink()
    link.symlink_to("0009")
    yield "dangling"
    link.unlink()
    link.write_text("0002")
    yield "a file"


def test_a_broken_link_is_an_error_that_a_rollback_repairs(versions):
    for _ in broken_links(versions):
        with pytest.raises(ArtifactError, match="rollback VERSION"):
            versions.current()
        assert versions.rollback("0002").name == "0002"
        assert versions.current().name == "0002"
    assert [version.name for version in versions.all()] == ["0001", "0002", "0003"]


def test_a_damaged_version_file_is_an_error(versions):
    (versions.get("0001").path / "version.json").write_text("{")
    with pytest.raises(ArtifactError, match=r"0001/version.json"):
        versions.all()
    assert versions.rollback("0002").name == "0002"


def test_versions_beyond_9999_are_ordered(versions, model):
    versions.get("0002").path.rename(versions.root / "9999")
    versions.current_path.unlink()
    versions.current_path.symlink_to("9999")
    assert versions.add(model).name == "10000"
    assert [version.name for version in versions.all()] == ["0001", "0003", "9999", "10000"]


@pytest.mark.slow
def test_a_kill_at_any_step_leaves_a_valid_current_version(tmp_path, model):
    script = Path(__file__).with_name("kill_versions.py")
    run = subprocess.run(
        [sys.executable, str(script), str(tmp_path), str(model)], capture_output=True, text=True, timeout=200
    )
    assert run.returncode == 0, run.stderr
    outcomes = [json.loads(line) for line in run.stdout.splitlines()]
    steps = json.loads((tmp_path / "steps.json").read_text())
    assert len(outcomes) == len(steps) + 1 > 30
    assert [outcome["was_killed"] for outcome in outcomes] == [True] * len(steps) + [False]
    expected = "0001"
    for outcome, step in zip(outcomes, [*steps, "the end"], strict=True):
        assert outcome["current"] == expected, f"killed before {step!r}"
        assert outcome["recorded"] == expected, f"killed before {step!r}"
        assert outcome["current"] in outcome["versions"]
        assert outcome["score"] == 0.0
        if step == "promote: swap":
            expected = "0002" if expected == "0001" else "0003"
        elif step == "rollback: swap":
            expected = "0002"
    assert outcomes[-1]["versions"] == ["0001", "0002"]


@pytest.mark.slow
def test_two_processes_add_versions_one_after_the_other(tmp_path, model):
    adder = (
        "import sys; from pathlib import Path; from mnemorank.learning.versions import VersionStore\n"
        "for _ in range(5): VersionStore(Path(sys.argv[1])).add(Path(sys.argv[2]))"
    )
    adders = [subprocess.Popen([sys.executable, "-c", adder, str(tmp_path / "r"), str(model)]) for _ in range(2)]
    assert [process.wait(timeout=100) for process in adders] == [0, 0]
    assert [version.name for version in VersionStore(tmp_path / "r").all()] == [f"{n:04d}" for n in range(1, 11)]


def test_only_the_owner_can_read_the_history(versions):
    assert stat.S_IMODE(versions.history.path.stat().st_mode) == 0o600


@pytest.mark.parametrize("change", ["added", "changed", "removed"])
def test_a_version_is_not_put_in_service_after_any_of_its_files_changed(versions, tiny_onnx, change):
    """Also those of a model without a manifest, and torch weights, which the manifest does not list."""
    version = versions.add(tiny_onnx, torch=tiny_onnx)
    versions.promote(version.name)
    versions.rollback()
    path = version.path / "torch" / ("new.json" if change == "added" else "config.json")
    path.unlink() if change == "removed" else path.write_text("{}")
    with pytest.raises(ArtifactError, match=path.name):
        versions.promote(version.name)
