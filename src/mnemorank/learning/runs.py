"""Training runs: one folder each, worked on by a process of its own that outlives whoever started it.

    ROOT/runs/ID/run.json        what it is and how far it is, replaced atomically
    ROOT/runs/ID/progress.json   of the stage under way
    ROOT/runs/ID/log.txt         all that the process printed
    ROOT/runs/ID/feedback.jsonl  what it trains on; removed at the end

A process that works on a run holds a lock on it, so that nobody mistakes a dead run for a live one.
"""

from __future__ import annotations

import fcntl
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

from mnemorank.errors import InputError

WAITING, RUNNING, DONE, FAILED, CANCELLED = "waiting", "running", "done", "failed", "cancelled"
OPEN_STATES = (WAITING, RUNNING)
FEEDBACK = "feedback.jsonl"
_WORKING_FOLDERS = ("torch", "onnx", "onnx.partial", "base", "base.partial")
STORE_VARIABLE = "MNEMORANK_LEARNING_STORE"


@dataclass(frozen=True, slots=True)
class Run:
    """:param promote: put the candidate in service if it passes the gate.
    :param settings: of the loop as they were when the run was begun.
    :param stage: what is being done: train, export, register, evaluate, promote.
    :param attempt: how many processes have worked on it.
    :param version: the candidate, once registered.
    :param decision: the gate's.
    :param error: why it failed.
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

    def summary(self) -> dict[str, Any]:
        """What is told about a run: all but its settings."""
        return {name: value for name, value in asdict(self).items() if name != "settings"}


class Runs:
    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)

    def folder(self, run_id: str) -> Path:
        path = self.root / run_id
        if not run_id or "/" in run_id or run_id.startswith(".") or not (path / "run.json").is_file():
            raise InputError(f"no run {run_id!r}", field="run")
        return path

    def all(self) -> list[Run]:
        """Oldest first."""
        found = [self.get(path.parent.name) for path in self.root.glob("*/run.json")]
        return sorted(found, key=lambda run: (run.created, run.id))

    def get(self, run_id: str) -> Run:
        return Run(**json.loads((self.folder(run_id) / "run.json").read_text(encoding="utf-8")))

    def create(self, **fields: Any) -> Run:
        """A new run, not yet worked on."""
        run = Run(id=f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}", created=time.time(), **fields)
        (self.root / run.id).mkdir()
        self._write(run)
        return run

    def update(self, run_id: str, **changes: Any) -> Run:
        run = replace(self.get(run_id), **changes)
        self._write(run)
        return run

    def is_alive(self, run_id: str) -> bool:
        """Whether a process works on it right now."""
        with (self.folder(run_id) / ".lock").open("w") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    @contextmanager
    def working(self, run_id: str) -> Iterator[bool]:
        """Hold the run's lock; False if another process has it."""
        with (self.folder(run_id) / ".lock").open("w") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True

    @contextmanager
    def one_at_a_time(self) -> Iterator[None]:
        """Two processes that want to begin a run do so one after the other; `forget` waits until one has begun."""
        with (self.root / ".lock").open("w") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield

    def open_run(self) -> Run | None:
        """The run that is waiting or under way, if there is one."""
        return next((run for run in reversed(self.all()) if run.state in OPEN_STATES), None)

    def start(self, run: Run, root: Path, store_url: str, threads: int) -> subprocess.Popen[bytes]:
        """Begin to work on a run, or go on with it, in a process of its own that survives this one.

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

    def cancel(self, run_id: str, wait: float = 30.0) -> Run:
        """Stop a run for good; returns once its process has gone."""
        run = self.get(run_id)
        if run.state not in OPEN_STATES:
            raise InputError(f"{run_id} is {run.state} already", field="run")
        (self.folder(run_id) / "cancel").touch()
        deadline = time.monotonic() + wait
        while self.is_alive(run_id):
            pid = self.get(run_id).pid
            if pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM if time.monotonic() < deadline else signal.SIGKILL)
            time.sleep(0.2)
        return self.end(run_id, CANCELLED)

    def end(self, run_id: str, state: str, **changes: Any) -> Run:
        """Close a run that no process works on any more."""
        self.clean(run_id)
        return self.update(run_id, state=state, finished=time.time(), **changes)

    def clean(self, run_id: str) -> None:
        """Remove what a run works with: nothing of the feedback, and no second copy of the model, stays behind."""
        for name in _WORKING_FOLDERS:
            shutil.rmtree(self.folder(run_id) / name, ignore_errors=True)
        (self.folder(run_id) / FEEDBACK).unlink(missing_ok=True)

    def is_cancelled(self, run_id: str) -> bool:
        return (self.folder(run_id) / "cancel").exists()

    def progress(self, run_id: str) -> dict[str, Any] | None:
        path = self.folder(run_id) / "progress.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    def write_progress(self, run_id: str, progress: Mapping[str, Any]) -> None:
        _replace(self.folder(run_id) / "progress.json", json.dumps(progress, allow_nan=False))

    def log(self, run_id: str, last: int = 200) -> list[str]:
        """The last lines that the run's process printed."""
        path = self.folder(run_id) / "log.txt"
        if not path.exists():
            return []
        with path.open("rb") as stream:
            return _tail(stream).decode("utf-8", "replace").splitlines()[-last:]

    def forget(self, example_ids: set[str]) -> None:
        """Take deleted examples out of the files of all runs, those that are just being written included."""
        if not example_ids:
            return
        with self.one_at_a_time():
            for path in self.root.glob(f"*/{FEEDBACK}"):
                was_changed = _keep_examples(path, lambda example_id: example_id not in example_ids)
                if was_changed and self.get(path.parent.name).state not in OPEN_STATES:
                    path.unlink(missing_ok=True)

    def keep_only(self, run_id: str, example_ids: Set[str]) -> None:
        """Take all other examples out of the file of one run."""
        with self.one_at_a_time():
            _keep_examples(self.folder(run_id) / FEEDBACK, lambda example_id: example_id in example_ids)

    def _write(self, run: Run) -> None:
        _replace(self.root / run.id / "run.json", json.dumps(asdict(run), indent=2, allow_nan=False))


def _keep_examples(path: Path, is_kept: Callable[[str], bool]) -> bool:
    """Take examples out of a run's file; whether there were any to take."""
    try:
        # Not `splitlines`: U+2028 and the like stand unescaped in JSON.
        lines = [line for line in path.read_text(encoding="utf-8").split("\n") if line]
    except FileNotFoundError:
        return False  # the run has just ended and taken its file away
    kept = [line for line in lines if is_kept(json.loads(line)["id"])]
    if len(kept) == len(lines):
        return False
    _replace(path, "".join(f"{line}\n" for line in kept))
    return True


def _replace(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    with partial.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(partial, path)


def _tail(stream: IO[bytes], most: int = 256 * 1024) -> bytes:
    size = stream.seek(0, os.SEEK_END)
    stream.seek(max(size - most, 0))
    return stream.read()
