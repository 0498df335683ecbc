"""Training runs: one folder each, processed by a separate process that outlives the one that started it.

    ROOT/ID/run.json        state of the run; replaced atomically
    ROOT/ID/progress.json   progress of the current stage
    ROOT/ID/curve.jsonl     loss and dev score over time
    ROOT/ID/log.txt         output of the process
    ROOT/ID/feedback.jsonl  the training examples; removed at the end

The worker process holds a lock on its run. The operating system releases the lock of a killed process, which tells dead
runs from live ones.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

from filelock import FileLock, Timeout

from mnemorank._internal.atomic import append_json_line, read_json_lines, write_atomic
from mnemorank.errors import ConflictError, NotFoundError

WAITING, RUNNING, DONE, FAILED, CANCELED = "waiting", "running", "done", "failed", "canceled"
ACTIVE_STATES = (WAITING, RUNNING)
FEEDBACK = "feedback.jsonl"
STORE_VARIABLE = "MNEMORANK_LEARNING_STORE"
_WORKING_FOLDERS = ("torch", "onnx", "onnx.partial", "base", "base.partial")


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """State of a training run.

    :param promote: promote the candidate if it passes the gate.
    :param base_version: the version that training starts from.
    :param examples: number of training examples.
    :param settings: the loop's settings when the run was created.
    :param stage: current stage: train, export, register, evaluate or promote.
    :param attempt: how many processes have worked on it.
    :param version: the candidate, once registered.
    :param decision: the gate's decision.
    :param error: why the run failed, or why its candidate was not promoted.
    """

    id: str
    created: float
    who: str
    promote: bool
    base_version: str
    examples: int
    settings: Mapping[str, Any]
    state: str = WAITING
    stage: str = ""
    pid: int | None = None
    attempt: int = 0
    finished: float | None = None
    version: str | None = None
    decision: Mapping[str, Any] | None = None
    promoted: bool = False
    error: str | None = None

    @property
    def is_active(self) -> bool:
        return self.state in ACTIVE_STATES

    def summary(self) -> dict[str, Any]:
        """Return everything but the settings."""
        return {name: value for name, value in asdict(self).items() if name != "settings"}


class RunStore:
    """The training runs in a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)

    def folder(self, run_id: str) -> Path:
        path = self.root / run_id
        if not run_id or "/" in run_id or run_id.startswith(".") or not (path / "run.json").is_file():
            raise NotFoundError(f"no run {run_id!r}", field="run")
        return path

    def all(self) -> list[TrainingRun]:
        """Return all runs, oldest first."""
        runs = [self.get(path.parent.name) for path in self.root.glob("*/run.json")]
        return sorted(runs, key=lambda run: (run.created, run.id))

    def get(self, run_id: str) -> TrainingRun:
        return TrainingRun(**json.loads((self.folder(run_id) / "run.json").read_text(encoding="utf-8")))

    def active(self) -> TrainingRun | None:
        """Return the run that is waiting or running, if any."""
        return next((run for run in reversed(self.all()) if run.is_active), None)

    def create(self, **fields: Any) -> TrainingRun:
        """Create a run that no process works on yet."""
        run = TrainingRun(id=f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}", created=time.time(), **fields)
        (self.root / run.id).mkdir(mode=0o700)  # it will hold texts of users
        self._write(run)
        return run

    def update(self, run_id: str, **changes: Any) -> TrainingRun:
        run = replace(self.get(run_id), **changes)
        self._write(run)
        return run

    def has_worker(self, run_id: str) -> bool:
        """Return whether a process works on the run right now."""
        with self.claim(run_id) as is_free:
            return not is_free

    @contextmanager
    def claim(self, run_id: str, timeout: float = 0.0) -> Iterator[bool]:
        """Hold the lock of a run; False if another process holds it for longer than the timeout."""
        lock = FileLock(self.folder(run_id) / ".lock")
        try:
            lock.acquire(timeout)
        except Timeout:
            yield False
            return
        try:
            yield True
        finally:
            lock.release()

    def lock(self) -> FileLock:
        """Return the lock that a process holds while it creates a run, or removes examples from runs."""
        return FileLock(self.root / ".lock")

    def start(self, run: TrainingRun, root: Path, store_url: str, threads: int) -> subprocess.Popen[bytes]:
        """Start or resume a run in a separate process that survives this one.

        :param root: the loop's folder.
        """
        count = str(threads)
        limits = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), count)
        environment = {**os.environ, **limits, STORE_VARIABLE: store_url, "TOKENIZERS_PARALLELISM": "false"}
        with (self.folder(run.id) / "log.txt").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "mnemorank.learning.worker", str(root.resolve()), run.id],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        threading.Thread(target=process.wait, name="mnemorank-run", daemon=True).start()
        return process

    def cancel(self, run_id: str, timeout: float = 30.0) -> TrainingRun:
        """Cancel a run and return once its process has ended.

        :param timeout: seconds before the process is killed.
        """
        run = self.get(run_id)
        if not run.is_active:
            raise ConflictError(f"{run_id} is already {run.state}", field="run", code="finished")
        (self.folder(run_id) / "cancel").touch()
        deadline = time.monotonic() + timeout
        while self.has_worker(run_id):
            pid = self.get(run_id).pid
            if pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM if time.monotonic() < deadline else signal.SIGKILL)
            time.sleep(0.2)
        return self.finish(run_id, CANCELED)

    def finish(self, run_id: str, state: str, **changes: Any) -> TrainingRun:
        """Close a run that no process works on anymore."""
        self.clean(run_id)
        return self.update(run_id, state=state, finished=time.time(), **changes)

    def clean(self, run_id: str) -> None:
        """Remove the working files, so that no feedback and no second copy of the model stays behind."""
        for name in _WORKING_FOLDERS:
            shutil.rmtree(self.folder(run_id) / name, ignore_errors=True)
        (self.folder(run_id) / FEEDBACK).unlink(missing_ok=True)

    def is_cancel_requested(self, run_id: str) -> bool:
        return (self.folder(run_id) / "cancel").exists()

    def progress(self, run_id: str) -> dict[str, Any] | None:
        path = self.folder(run_id) / "progress.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    def write_progress(self, run_id: str, progress: Mapping[str, Any]) -> None:
        write_atomic(self.folder(run_id) / "progress.json", json.dumps(progress, allow_nan=False))

    def curve(self, run_id: str, max_points: int = 500) -> list[dict[str, Any]]:
        """Return loss and dev score over time, thinned out evenly."""
        points = read_json_lines(self.folder(run_id) / "curve.jsonl")
        return points[:: len(points) // max_points + 1]

    def add_to_curve(self, run_id: str, progress: Mapping[str, Any]) -> None:
        point = {name: progress.get(name) for name in ("stage", "step", "steps", "loss", "dev")}
        append_json_line(self.folder(run_id) / "curve.jsonl", point)

    def log_lines(self, run_id: str, count: int = 200) -> list[str]:
        """Return the last lines that the run's process printed."""
        path = self.folder(run_id) / "log.txt"
        if not path.exists():
            return []
        with path.open("rb") as stream:
            return _tail(stream).decode("utf-8", "replace").splitlines()[-count:]

    def remove_examples(self, example_ids: Set[str]) -> None:
        """Remove deleted examples from the files of all runs, including one that is just being created."""
        if not example_ids:
            return
        with self.lock():
            for path in self.root.glob(f"*/{FEEDBACK}"):
                has_changed = _filter_examples(path, lambda example_id: example_id not in example_ids)
                if has_changed and not self.get(path.parent.name).is_active:
                    path.unlink(missing_ok=True)

    def keep_examples(self, run_id: str, example_ids: Set[str]) -> None:
        """Remove all other examples from the file of a run."""
        with self.lock():
            _filter_examples(self.folder(run_id) / FEEDBACK, lambda example_id: example_id in example_ids)

    def _write(self, run: TrainingRun) -> None:
        write_atomic(self.root / run.id / "run.json", json.dumps(asdict(run), indent=2, allow_nan=False))


def _filter_examples(path: Path, is_kept: Callable[[str], bool]) -> bool:
    """Remove examples from a run's file; return whether there were any to remove."""
    try:
        # Not `splitlines`: U+2028 is not escaped in JSON.
        lines = [line for line in path.read_text(encoding="utf-8").split("\n") if line]
    except FileNotFoundError:
        return False  # the run has just ended and removed its file
    kept = [line for line in lines if is_kept(json.loads(line)["id"])]
    if len(kept) == len(lines):
        return False
    write_atomic(path, "".join(f"{line}\n" for line in kept))
    return True


def _tail(stream: IO[bytes], size: int = 256 * 1024) -> bytes:
    end = stream.seek(0, os.SEEK_END)
    stream.seek(max(end - size, 0))
    return stream.read()
