"""Run by test_worker.py: work on a run in forked processes, each killed at the first step that no earlier one reached.

Prints a JSON line per process: the step at which it was killed, and the version in service afterwards. The first line
is about a copy of the loop whose process cannot write a checkpoint, as if its disk were full.
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

MAX_FILE_SIZE = 20_000  # less than a checkpoint, more than the records of a run


def main(root: Path, run_id: str) -> None:
    torch.set_num_threads(1)
    print(json.dumps(work_with_full_disk(root, run_id)), flush=True)
    reached = root / "reached.txt"
    reached.touch()
    while True:
        child = os.fork()
        if child == 0:
            known_steps = set(reached.read_text().splitlines())

            def on_step(name: str, known_steps: set[str] = known_steps) -> None:
                if name.startswith("train: step") and name != "train: step 1":
                    name = "train: step 2"
                if name not in known_steps:
                    with reached.open("a") as stream:
                        stream.write(name + "\n")
                    os.kill(os.getpid(), signal.SIGKILL)

            os._exit(work(root, run_id, on_step))
        _, status = os.waitpid(child, 0)
        print(json.dumps({"step": reached.read_text().splitlines()[-1], **inspect(root, run_id)}), flush=True)
        if not os.WIFSIGNALED(status):
            return


def work_with_full_disk(root: Path, run_id: str) -> dict[str, object]:
    copy = root.with_name("full")
    shutil.copytree(root, copy, symlinks=True)
    child = os.fork()
    if child == 0:
        os.environ[STORE_VARIABLE] = str(copy / "events.db")

        def on_step(name: str) -> None:
            if name == "train: step 1":
                resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_FILE_SIZE, MAX_FILE_SIZE))

        os._exit(work(copy, run_id, on_step))
    os.waitpid(child, 0)
    names = {path.name for path in (copy / "runs" / run_id).iterdir()}
    return {**inspect(copy, run_id), "leftovers": sorted(names & {"torch", "onnx", "feedback.jsonl"})}


def inspect(root: Path, run_id: str) -> dict[str, object]:
    """What the next process finds. That the current model scores proves that it is complete."""
    with Loop(root, store_url=str(root / "events.db")) as loop:
        current = loop.versions.current()
        model = Model.load(current.path, probe=False)
        is_usable = bool(model.score("topicaa aspectaa", [Memory("solid brief")]).raw[0] < 1e9)
        model.close()
        run = loop.runs.get(run_id)
    return {"current": current.name, "is_usable": is_usable, "state": run.state, "error": run.error}


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
