"""Run by test_worker: work on a run in forked processes, each killed at the first step that no earlier one reached.

Prints a JSON line a process: the step it was killed at, and the version in service afterwards.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

# Loaded once, before forking.
import torch

import mnemorank.export
import mnemorank.training.run  # noqa: F401
from mnemorank.learning.loop import Loop
from mnemorank.learning.worker import work
from mnemorank.memory import Memory
from mnemorank.model import Model


def main(root: Path, run_id: str) -> None:
    torch.set_num_threads(1)
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
        with Loop(root) as loop:
            current = loop.registry.current()
            model = Model.load(current.path, probe=False)
            finite = bool(model.score("topicaa aspectaa", [Memory("solid brief")]).raw[0] < 1e9)
            model.close()
            run = loop.runs.get(run_id)
        steps = reached.read_text().splitlines()
        told = {"step": steps[-1], "current": current.name, "scores": finite, "state": run.state, "error": run.error}
        print(json.dumps(told), flush=True)
        if not os.WIFSIGNALED(status):
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
