"""The wheel: built, inspected and installed into a fresh environment, as users get it."""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAX_BYTES = 50 * 2**20

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a fresh environment with nothing but the wheel and its dependencies."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, str(wheel)], check=True, capture_output=True, text=True)
    return python


def run(python: Path, *arguments: str, cwd: Path) -> str:
    done = subprocess.run([str(python), *arguments], capture_output=True, text=True, cwd=cwd, env={"PATH": ""})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_holds_the_package_and_its_assets_and_nothing_else(wheel: Path):
    assert wheel.stat().st_size < MAX_BYTES
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"mnemorank", "haystack_integrations"}
    # A namespace that other packages share: an __init__.py in it would hide theirs.
    assert [name for name in names if name.startswith("haystack_")] == [
        "haystack_integrations/components/rankers/mnemorank/__init__.py"
    ]
    for asset in (
        "models/mini/model.onnx",
        "models/mini/mnemorank.json",
        "samples/memories.jsonl",
        "console/app.js",
        "recipes/hindsight.toml",
        "datasets/dated/dev.jsonl",
    ):
        assert f"mnemorank/assets/{asset}" in names
    assert "mnemorank/py.typed" in names
    assert not [name for name in names if "mini_data" in name or "/tests/" in name or "research" in name]


def test_needs_three_dependencies(installed: Path, tmp_path: Path):
    code = "import importlib.metadata as m; print([r for r in m.requires('mnemorank') if 'extra' not in r])"
    required = run(installed, "-c", code, cwd=tmp_path)
    assert sorted(name for name in ("numpy", "onnxruntime", "tokenizers") if name in required) == [
        "numpy",
        "onnxruntime",
        "tokenizers",
    ]
    assert required.count(",") == 2


def test_reranks_in_a_fresh_environment(installed: Path, tmp_path: Path):
    assert "Ruby" in run(installed, "-m", "mnemorank", "demo", cwd=tmp_path)
    code = (
        "from mnemorank import Reranker\n"
        "best = Reranker().rerank('Where does Ruby work?', ['Ruby works at Aurora Labs.', 'Tea is hot.'])[0]\n"
        "print(best.index)"
    )
    assert run(installed, "-c", code, cwd=tmp_path).strip() == "0"


def test_a_command_without_its_extra_says_what_to_install(installed: Path, tmp_path: Path):
    done = subprocess.run(
        [str(installed), "-m", "mnemorank", "serve"], capture_output=True, text=True, cwd=tmp_path, env={"PATH": ""}
    )
    assert done.returncode != 0
    assert "mnemorank[serve]" in done.stderr
    assert "Traceback" not in done.stderr
