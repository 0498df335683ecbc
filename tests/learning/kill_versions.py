"""Run by test_versions.py: change the versions in a forked process that is killed at each step in turn.

Prints a JSON line per kill: what the next process finds.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import onnxruntime  # noqa: F401  (loaded once, before forking)

from mnemorank.learning.versions import VersionStore, check_version
from mnemorank.memory.memory import Memory
from mnemorank.model.model import Model


def change_versions(root: Path, model: Path, kill_at: int) -> list[str]:
    """Make every kind of change, and be killed before step `kill_at`; return the steps if there are fewer."""
    steps: list[str] = []

    def on_step(name: str) -> None:
        if len(steps) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        steps.append(name)

    versions = VersionStore(root, on_step=on_step)
    for number in (2, 3, 4):
        versions.add(model, torch=model, facts={"number": number}, who="test", why="candidate")
    versions.promote("0002", who="test", why="better")
    versions.promote("0003", who="test", why="better still")
    versions.rollback(who="test", why="complaints")
    versions.prune(keep=2)
    return steps


def inspect(root: Path) -> dict[str, object]:
    """What the next process finds. That the current model scores proves that it is complete."""
    versions = VersionStore(root)
    current = versions.current()
    model = Model.load(versions.current_path)
    score = float(model.score("ruby", [Memory("ruby")]).raw[0])
    model.close()
    for version in versions.all():
        check_version(version)
    versions.rollback(current.name, who="inspect", why="the next change completes the history")
    served = [entry for entry in versions.history.entries() if entry["action"] in ("promote", "rollback")]
    return {
        "current": current.name,
        "score": score,
        "recorded": served[-2]["version"] if len(served) > 1 else served[-1]["version"],
        "versions": [version.name for version in versions.all()],
    }


def main(folder: Path, model: Path) -> None:
    start = folder / "start"
    versions = VersionStore(start)
    versions.add(model)
    versions.promote("0001", who="test", why="import")
    kill_at = 0
    while True:
        root = folder / f"killed-{kill_at}"
        shutil.copytree(start, root, symlinks=True)
        child = os.fork()
        if child == 0:
            steps = change_versions(root, model, kill_at)
            (folder / "steps.json").write_text(json.dumps(steps))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        was_killed = os.WIFSIGNALED(status)
        print(json.dumps({"kill_at": kill_at, "was_killed": was_killed, **inspect(root)}), flush=True)
        if not was_killed:
            return
        kill_at += 1


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
