"""Run by test_version_registry: change a registry in a forked process that is killed at each step in turn.

Prints a JSON line a kill: the step, and what the registry looks like to the next process.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import onnxruntime  # noqa: F401  (loaded once, before forking)

from mnemorank.learning.versions import Registry, _check
from mnemorank.memory.memory import Memory
from mnemorank.model.model import Model


def change(root: Path, model: Path, kill_at: int) -> list[str]:
    """All changes a registry knows, killed just before step `kill_at`; returns the steps if it was never reached."""
    steps: list[str] = []

    def on_step(name: str) -> None:
        if len(steps) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        steps.append(name)

    registry = Registry(root, on_step=on_step)
    for number in (2, 3, 4):
        registry.add(model, torch=model, facts={"number": number}, who="test", why="candidate")
    registry.promote("0002", who="test", why="better")
    registry.promote("0003", who="test", why="better still")
    registry.rollback(who="test", why="complaints")
    registry.collect(keep=2)
    return steps


def look(root: Path) -> dict[str, object]:
    """What a process that comes after finds; scoring with the current model proves that it is whole."""
    registry = Registry(root)
    current = registry.current()
    model = Model.load(registry.current_path)
    score = float(model.score("ruby", [Memory("ruby")]).raw[0])
    model.close()
    for version in registry.versions():
        _check(version)
    registry.rollback(current.name, who="look", why="a later change works and repairs the history")
    served = [e for e in registry.history.entries() if e["action"] in ("promote", "rollback")]
    return {
        "current": current.name,
        "score": score,
        "recorded": served[-2]["version"] if len(served) > 1 else served[-1]["version"],
        "versions": [version.name for version in registry.versions()],
    }


def main(folder: Path, model: Path) -> None:
    start = folder / "start"
    registry = Registry(start)
    registry.add(model)
    registry.promote("0001", who="test", why="import")
    kill_at = 0
    while True:
        root = folder / f"killed-{kill_at}"
        shutil.copytree(start, root, symlinks=True)
        child = os.fork()
        if child == 0:
            steps = change(root, model, kill_at)
            (folder / "steps.json").write_text(json.dumps(steps))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        after = {"kill_at": kill_at, "killed": os.WIFSIGNALED(status), **look(root)}
        print(json.dumps(after), flush=True)
        if not after["killed"]:
            return
        kill_at += 1


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
