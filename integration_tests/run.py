"""Test the adapters against the real packages, each in an environment of its own.

    python integration_tests/run.py              all
    python integration_tests/run.py langchain    one

Environments are created in `.integrations`, or in the folder that MNEMORANK_INTEGRATIONS names, and kept until
their packages change.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
import venv
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent
FOLDER = Path(os.environ.get("MNEMORANK_INTEGRATIONS", ROOT / ".integrations")).resolve()
TEST_PACKAGES = ["pytest==8.4.2", "pytest-timeout==2.4.0"]


def main(names: list[str]) -> int:
    environments = tomllib.loads((HERE / "environments.toml").read_text(encoding="utf-8"))
    unknown = sorted(set(names) - environments.keys())
    if unknown:
        print(f"unknown environment {unknown[0]}; expected one of {', '.join(environments)}", file=sys.stderr)
        return 2
    failed = [name for name in names or environments if not run(name, environments[name])]
    print(f"failed: {', '.join(failed)}" if failed else "all integrations passed")
    return 1 if failed else 0


def run(name: str, environment: dict[str, Any]) -> bool:
    """Test one framework and run the examples of its page."""
    print(f"== {name}: {', '.join(environment['packages'])}", flush=True)
    python = build(name, environment)
    tests = [HERE / f"test_{test}.py" for test in environment.get("tests", [name])]
    pages = [ROOT / "docs/integrations" / f"{page}.md" for page in environment.get("pages", [name])]
    commands = [[python, "-m", "pytest", "-c", HERE / "pytest.ini", "--rootdir", HERE, *tests]]
    if pages:
        commands.append([python, "-m", "tests.docs.runner", *pages])
    settings = {**os.environ, "PYTHONPATH": str(ROOT), **environment.get("variables", {})}
    statuses = [subprocess.run(command, cwd=ROOT, env=settings).returncode for command in commands]
    return not any(statuses)


def build(name: str, environment: dict[str, Any]) -> Path:
    """Create the environment, unless it already has these packages; return its Python."""
    folder = FOLDER / name
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    extras = environment.get("extras", [])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needs = [project.get(name) for name in ("dependencies", "optional-dependencies", "entry-points")]
    wanted = json.dumps([environment, TEST_PACKAGES, needs])
    stamp = folder / "installed.json"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return python
    venv.create(folder, clear=True, with_pip=True)
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for step in environment.get("first", []):  # torch on its own, or pip would look for other builds of it
        subprocess.run([*install, step], check=True)
    source = str(ROOT) + (f"[{','.join(extras)}]" if extras else "")
    subprocess.run([*install, "-e", source, *TEST_PACKAGES, *environment["packages"]], check=True)
    stamp.write_text(wanted, encoding="utf-8")
    return python


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
