"""Run by test_worker: work on a run in forked processes, each killed at the first step that no earlier one reached.

Prints a JSON line a process: the step it was killed at, and the version in service afterwards. The first line tells of
a copy of the loop whose process, once it trains, cannot write a checkpoint, like one whose disk is full.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import sys
from pathlib import Path

# Loaded once, before forking.
import torch

import mnemorank.export.exporter
import mnemorank.training.run  # noqa: F401
from mnemorank.learning.loop import Loop
from mnemorank.learning.runs import STORE_VARIABLE
from mnemorank.learning.worker import work
from mnemorank.memory.memory import Memory
from mnemorank.model.model import Model

LARGEST_FILE = 20_000  # less than a checkpoint, more than what is written about a run


def main(root: Path, run_id: str) -> None:
    torch.set_num_threads(1)
    print(json.dumps(on_a_full_disk(root, run_id)), flush=True)
    reached = root / "reached.txt"
    reached.touch()
    while True:
        child = os.fork()
        if child == 0:
            known = set(reached.read_text().splitlines())

            def on_step(name: str, known: set[str] = known) -> None:
                if name.startswith("train: step") and name != "train: step 1":
                    name = "train: step 2"
                if name not in known:
                    with reached.open("a") as stream:
                        stream.write(name + "\n")
                    os.kill(os.getpid(), signal.SIGKILL)

            os._exit(work(root, run_id, on_step))
        _, status = os.waitpid(child, 0)
        told = {"step": reached.read_text().splitlines()[-1], **look(root, run_id)}
        print(json.dumps(told), flush=True)
        if not os.WIFSIGNALED(status):
            return


def on_a_full_disk(root: Path, run_id: str) -> dict[str, object]:
    copy = root.with_name("full")
    shutil.copytree(root, copy, symlinks=True)
    child = os.fork()
    if child == 0:
        os.environ[STORE_VARIABLE] = str(copy / "events.db")

        def on_step(name: str) -> None:
            if name == "train: step 1":
                resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, LARGEST_FILE))

        os._exit(work(copy, run_id, on_step))
    os.waitpid(child, 0)
    left = [
        path.name for path in (copy / "runs" / run_id).iterdir() if path.name in ("torch", "onnx", "feedback.jsonl")
    ]
    return {**look(copy, run_id), "left": left}


def look(root: Path, run_id: str) -> dict[str, object]:
    """What a process that comes after finds; scoring with the current model proves that it is whole."""
    with Loop(root, store_url=str(root / "events.db")) as loop:
        current = loop.registry.current()
        model = Model.load(current.path, probe=False)
        finite = bool(model.score("topicaa aspectaa", [Memory("solid brief")]).raw[0] < 1e9)
        model.close()
        run = loop.runs.get(run_id)
    return {"current": current.name, "scores": finite, "state": run.state, "error": run.error}


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
