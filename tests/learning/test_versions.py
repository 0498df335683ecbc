import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mnemorank import ArtifactError, InputError, Reranker
from mnemorank.artifact.manifest import Manifest, write_manifest
from mnemorank.learning.versions import Registry


@pytest.fixture(scope="module")
def model(tiny_onnx: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with a manifest, so that damage shows."""
    import shutil

    folder = tmp_path_factory.mktemp("registry") / "model"
    shutil.copytree(tiny_onnx, folder)
    write_manifest(folder, Manifest("tiny", max_length=64), ["model.onnx", "tokenizer.json"])
    return folder


@pytest.fixture
def registry(tmp_path: Path, model: Path) -> Registry:
    """Three versions, the second promoted after the first."""
    registry = Registry(tmp_path / "registry")
    for _ in range(3):
        registry.add(model, torch=model, who="test")
    registry.promote("0001", who="ann", why="import")
    registry.promote("0002", who="bob", why="better", facts={"map": 0.9})
    return registry


def test_an_empty_registry_has_nothing_current(tmp_path):
    registry = Registry(tmp_path)
    assert registry.current() is None
    assert registry.versions() == []
    with pytest.raises(InputError, match="no earlier version"):
        registry.rollback()
    with pytest.raises(InputError, match="no version '0001'; there are: none"):
        registry.promote("0001")


def test_current_is_a_model_folder_like_any_other(registry):
    with Reranker(registry.current_path) as reranker:
        assert reranker.rerank("ruby", ["cat", "ruby"])[0].text == "ruby"
    assert os.readlink(registry.current_path) == "versions/0002"
    assert registry.current().torch_path.is_dir()


def test_rollback_goes_on_back_and_never_to_what_was_rolled_back(registry):
    registry.promote("0003")
    assert registry.previous().name == "0002"
    assert [registry.rollback(who="ann", why="complaints").name for _ in range(2)] == ["0002", "0001"]
    assert registry.previous() is None
    message = "no earlier version than 0001 to go back to; name the one to put in service: 0002, 0003"
    with pytest.raises(InputError, match=message):
        registry.rollback()
    assert registry.current().name == "0001"


def test_rollback_goes_to_any_version_by_name(registry):
    registry.rollback()
    assert registry.rollback("0003").name == "0003"
    assert registry.previous().name == "0001"
    assert registry.rollback("0002").name == "0002"
    assert registry.previous().name == "0003"


def test_rollback_passes_over_what_was_collected(registry, model):
    registry.promote("0003")
    assert registry.collect(keep=2) == ["0001"]
    registry.add(model)
    registry.promote("0004")
    assert registry.collect(keep=2) == ["0002"]
    assert registry.rollback().name == "0003"
    with pytest.raises(InputError, match="no earlier version than 0003"):
        registry.rollback()


def test_the_history_tells_who_what_and_why(registry):
    registry.rollback(who="ann", why="complaints")
    told = [(e["action"], e["version"], e.get("previous"), e["who"], e["why"]) for e in registry.history.entries()[3:]]
    assert told == [
        ("promote", "0001", None, "ann", "import"),
        ("promote", "0002", "0001", "bob", "better"),
        ("rollback", "0001", "0002", "ann", "complaints"),
    ]
    assert registry.history.entries()[4]["facts"] == {"map": 0.9}


def test_a_damaged_version_is_refused_and_nothing_changes(registry):
    path = registry.version("0003").path / "model.onnx"
    path.write_bytes(path.read_bytes()[:-10])
    before = registry.history.path.read_bytes()
    with pytest.raises(ArtifactError, match=r"version 0003 was refused: .*does not match the hash"):
        registry.promote("0003")
    assert registry.current().name == "0002"
    assert registry.history.path.read_bytes() == before


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "0009", ".staged-0001-1", "/etc"])
def test_a_name_never_leaves_the_registry(registry, name):
    with pytest.raises(InputError, match="no version"):
        registry.promote(name)


def test_collection_never_touches_current_or_previous(registry, model):
    for _ in range(3):
        registry.add(model)
    assert registry.collect(keep=3) == ["0003", "0004", "0005"]
    assert [version.name for version in registry.versions()] == ["0001", "0002", "0006"]
    assert registry.collect(keep=1) == ["0006"]
    assert (registry.current().name, registry.previous().name) == ("0002", "0001")
    assert registry.add(model).name == "0007"
    with pytest.raises(InputError, match="keep"):
        registry.collect(keep=0)


def test_a_line_cut_short_is_passed_over_and_closed(registry):
    with registry.history.path.open("a") as stream:
        stream.write('{"action": "promo')
    registry.rollback()
    entries = registry.history.entries()
    assert [e["action"] for e in entries[-2:]] == ["promote", "rollback"]


def test_line_ends_of_other_kinds_do_not_cut_an_entry(registry):
    registry.rollback(why="next\u2028line\u0085and\u2029more")
    assert registry.history.entries()[-1]["why"] == "next\u2028line\u0085and\u2029more"


def test_a_kill_at_any_step_leaves_a_valid_current(tmp_path, model):
    script = Path(__file__).with_name("killed_registry.py")
    run = subprocess.run(
        [sys.executable, str(script), str(tmp_path), str(model)], capture_output=True, text=True, timeout=200
    )
    assert run.returncode == 0, run.stderr
    outcomes = [json.loads(line) for line in run.stdout.splitlines()]
    steps = json.loads((tmp_path / "steps.json").read_text())
    assert len(outcomes) == len(steps) + 1 > 30
    assert [outcome["killed"] for outcome in outcomes] == [True] * len(steps) + [False]
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


def test_two_processes_do_not_change_a_registry_at_once(tmp_path, model):
    adder = (
        "import sys; from pathlib import Path; from mnemorank.learning.versions import Registry\n"
        "for _ in range(5): Registry(Path(sys.argv[1])).add(Path(sys.argv[2]))"
    )
    adders = [subprocess.Popen([sys.executable, "-c", adder, str(tmp_path / "r"), str(model)]) for _ in range(2)]
    assert [process.wait(timeout=100) for process in adders] == [0, 0]
    assert [version.name for version in Registry(tmp_path / "r").versions()] == [f"{n:04d}" for n in range(1, 11)]
