"""The container image: its build context must contain everything that the wheel is built from."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def copied() -> set[str]:
    """Return what the build stage copies from the context."""
    stage = DOCKERFILE.partition("\nFROM ")[2].partition("\nFROM ")[0]
    lines = re.findall(r"^COPY (?!--from)(.+)$", stage, re.MULTILINE)
    return {source.rstrip("/") for line in lines for source in line.split()[:-1]}


def built_from() -> set[str]:
    """Return the files and top-level folders that the wheel is built from, by pyproject.toml."""
    project, hatch = PROJECT["project"], PROJECT["tool"]["hatch"]
    wheel = hatch["build"]["targets"]["wheel"]
    named = [*wheel["packages"], *wheel.get("force-include", {}), hatch["version"]["path"]]
    named += ["pyproject.toml", project["readme"], *project["license-files"]]
    return {Path(name).parts[0] for name in named}


def test_the_image_copies_everything_the_wheel_needs():
    assert copied() == built_from()
    assert all((ROOT / name).exists() for name in copied())


def test_the_dockerignore_file_lets_through_what_the_image_copies():
    lines = (ROOT / ".dockerignore").read_text().split()
    assert lines[0] == "*", "everything else is excluded"
    assert {line[1:] for line in lines if line.startswith("!")} == copied()


@pytest.mark.parametrize("extra", re.findall(r"^ARG EXTRAS=(.+)$", DOCKERFILE, re.MULTILINE)[0].split(","))
def test_the_extras_of_the_image_exist(extra):
    assert extra in PROJECT["project"]["optional-dependencies"]


@pytest.mark.parametrize("instructions", [DOCKERFILE, (ROOT / "docs" / "guides" / "deployment.md").read_text()])
def test_the_instructions_give_the_key_file_to_the_user_of_the_image(instructions):
    """`--new-key` makes it readable by its owner alone, who is not the container's user."""
    (user,) = re.findall(r"^USER (\d+)$", DOCKERFILE, re.MULTILINE)
    assert f"chown {user} keys.toml" in instructions
    assert instructions.index("--new-key") < instructions.index(f"chown {user} keys.toml")
