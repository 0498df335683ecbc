"""Bulk jobs: run a task over all rows of files, block by block, and continue after an interruption."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from mnemorank.artifact.resolve import load_artifact
from mnemorank.bulk.checkpoint import Checkpoint, Failure, file_name, read_block_file, read_checkpoint, write_checkpoint
from mnemorank.bulk.files import Folder
from mnemorank.bulk.rows import Block, find_inputs, plan_blocks, read_block
from mnemorank.bulk.tasks import TASKS
from mnemorank.errors import ConflictError, InputError, MnemorankError
from mnemorank.evaluation.baselines import baselines

JOB_FILE, FAILURES_FILE, SUMMARY_FILE = "_job.json", "_failures.jsonl", "_summary.json"
_PARTIAL = ".partial"
_ROW_COLUMNS = (("file", "string"), ("line", "int64"))

Engine = Literal["local", "ray"]


@dataclass(frozen=True, slots=True)
class BulkJob:
    """What to do. Two jobs with the same output folder must be equal, whatever engine runs them.

    :param task: one of `TASKS`.
    :param inputs: files, folders or patterns of JSON Lines or Parquet, local or as fsspec URLs.
    :param output: a folder, local or as a fsspec URL. All workers must see it under this path.
    :param options: of the task, as JSON values.
    :param block_rows: rows between two checkpoints.
    """

    task: str
    inputs: tuple[str, ...]
    output: str
    options: Mapping[str, Any] = field(default_factory=dict)
    block_rows: int = 500


@dataclass(frozen=True, slots=True)
class BulkResult:
    """What a job did.

    :param rows: with a result, those of earlier runs included.
    :param continued: how many of the blocks were finished by earlier runs.
    :param processed: rows of this run, with or without a result.
    :param seconds: of this run.
    :param summary: figures of the task over all rows.
    """

    rows: int
    failures: tuple[Failure, ...]
    blocks: int
    continued: int
    processed: int
    seconds: float
    summary: Mapping[str, Any]


class TooManyFailuresError(MnemorankError):
    """More rows failed than allowed. Finished blocks stay."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What a worker needs to run the blocks of a job. Sent to other machines by pickle.

    :param job_id: marks the checkpoints of the job.
    :param redo_failures: run blocks again that have failures.
    """

    job: BulkJob
    job_id: str
    threads: int | None
    redo_failures: bool


class BlockWorker:
    """Runs blocks: the same in every engine."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        job = settings.job
        self._folder = Folder(job.output)
        self._task = TASKS[job.task](job.options, job.inputs, settings.threads)

    def run(self, block: Block) -> Checkpoint:
        """Run a block and write its checkpoint, unless it is there. Running it twice gives the same file."""
        settings = self._settings
        found = read_checkpoint(self._folder, settings.job_id, block.number)
        if found is not None and not (settings.redo_failures and found.failures):
            return found
        rows = read_block(block)
        outputs, failures = [], []
        for row, output in zip(rows, self._task.run(rows), strict=True):
            if isinstance(output, MnemorankError):
                failures.append(Failure.of(row.path, row.line, output))
            else:
                outputs.append({"file": row.path, "line": row.line, **output})
        columns = (*_ROW_COLUMNS, *self._task.columns)
        return write_checkpoint(
            self._folder, settings.job_id, block, columns, outputs, failures, dict(self._task.facts)
        )

    def close(self) -> None:
        self._task.close()


def run_bulk(
    job: BulkJob,
    *,
    engine: Engine = "local",
    workers: int | None = None,
    threads: int | None = None,
    address: str | None = None,
    max_failures: int | None = None,
    retry_failures: bool = False,
    on_progress: Callable[[int, int, int, int], None] | None = None,
) -> BulkResult:
    """Run a job to its end, or continue it.

    Each row gives one row of the output or one failure, however often the job or a part of it was interrupted.

    :param engine: `local` for this process, `ray` for a Ray cluster.
    :param workers: actors on Ray, each on one core; by default as many as the cluster has cores.
    :param threads: of each worker's model; by default all cores for `local`, one for `ray`.
    :param address: of the Ray cluster; by default RAY_ADDRESS, or a cluster on this machine alone.
    :param max_failures: stop with a TooManyFailuresError after more failures than this.
    :param retry_failures: run blocks again that have failures.
    :param on_progress: called with the finished blocks, all blocks, and the rows and failures so far.
    """
    folder = Folder(job.output)
    inputs = find_inputs(job.inputs)
    job_id = _claim(folder, job, [asdict(file) for file in inputs])
    blocks = plan_blocks(inputs, job.block_rows)
    present = folder.names()
    done: dict[int, Checkpoint] = {}
    for block in blocks:
        found = read_checkpoint(folder, job_id, block.number) if file_name(block.number) in present else None
        if found is not None and not (retry_failures and found.failures):
            done[block.number] = found
    continued = len(done)
    pending = [block for block in blocks if block.number not in done]
    settings = WorkerSettings(job, job_id, threads, retry_failures)
    started = time.perf_counter()

    rows = sum(checkpoint.rows for checkpoint in done.values())
    failed = sum(len(checkpoint.failures) for checkpoint in done.values())
    processed = -(rows + failed)

    def report() -> None:
        if on_progress is not None:
            on_progress(len(done), len(blocks), rows, failed)
        if max_failures is not None and failed > max_failures:
            first = _failures(done)[0]
            raise TooManyFailuresError(f"{failed} rows failed, more than {max_failures}, the first: {first}")

    try:
        report()
        for checkpoint in _run(engine, settings, pending, workers, address):
            done[checkpoint.block] = checkpoint
            rows, failed = rows + checkpoint.rows, failed + len(checkpoint.failures)
            report()
        _check_complete(folder, blocks)
    finally:
        _write_failures(folder, _failures(done))
    seconds = time.perf_counter() - started
    summary = TASKS[job.task].summarize(_tables(folder, blocks)) if rows else {}
    _finish(folder, blocks, {"rows": rows, "failures": failed, **summary})
    processed += rows + failed
    return BulkResult(rows, _failures(done), len(blocks), continued, processed, seconds, summary)


def _run(
    engine: Engine, settings: WorkerSettings, blocks: Sequence[Block], workers: int | None, address: str | None
) -> Iterator[Checkpoint]:
    if not blocks:
        return
    if engine == "ray":
        from mnemorank.bulk.ray_engine import run_on_ray

        yield from run_on_ray(settings, blocks, workers, address)
        return
    worker = BlockWorker(settings)
    try:
        for block in blocks:
            yield worker.run(block)
    finally:
        worker.close()


def _claim(folder: Folder, job: BulkJob, inputs: Sequence[Mapping[str, Any]]) -> str:
    """Write down what the folder is for, or check that it is for this job; return the id of the job."""
    description = {
        "task": job.task,
        "model": _model_fingerprint(job),
        "options": json.loads(json.dumps(job.options)),
        "block_rows": job.block_rows,
        "inputs": list(inputs),
    }
    content = folder.read(JOB_FILE)
    if content is None:
        folder.create()
        folder.write(JOB_FILE, json.dumps(description, indent=2, ensure_ascii=False).encode())
    else:
        try:
            found = json.loads(content)
            changed = [key for key, value in description.items() if found.get(key) != value]
        except (ValueError, AttributeError):
            raise InputError(f"{JOB_FILE} is damaged; delete it", location=job.output) from None
        if changed:
            message = f"{job.output} holds another job, with another value of {changed[0]}; choose another folder"
            raise ConflictError(message, field="output", code="other_job")
    return hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()[:16]


def _model_fingerprint(job: BulkJob) -> str | None:
    """Return what identifies the model; a name that is wrong fails here, before any worker starts."""
    model = job.options.get("model")
    if model is None or (job.task == "evaluate" and model in baselines):
        return model
    return load_artifact(model).fingerprint


def _failures(done: Mapping[int, Checkpoint]) -> tuple[Failure, ...]:
    return tuple(failure for number in sorted(done) for failure in done[number].failures)


def _write_failures(folder: Folder, failures: Sequence[Failure]) -> None:
    lines = [json.dumps(asdict(failure), ensure_ascii=False) + "\n" for failure in failures]
    if lines or FAILURES_FILE in folder.names():
        folder.write(FAILURES_FILE, "".join(lines).encode("utf-8", "backslashreplace"))


def _check_complete(folder: Folder, blocks: Sequence[Block]) -> None:
    missing = {file_name(block.number) for block in blocks} - folder.names()
    if missing:
        message = f"{min(missing)} was written on another machine; use a folder that all machines share, or a URL"
        raise InputError(message, field="output", location=folder.path)


def _finish(folder: Folder, blocks: Sequence[Block], summary: Mapping[str, Any]) -> None:
    """Write the summary, and remove what killed workers left."""
    expected = {file_name(block.number) for block in blocks}
    for name in folder.names():
        if name.endswith(_PARTIAL) and name.partition(".parquet")[0] + ".parquet" in expected:
            folder.remove(name)
    folder.write(SUMMARY_FILE, json.dumps(summary, indent=2).encode())


def _tables(folder: Folder, blocks: Sequence[Block]) -> Iterator[Any]:
    for block in blocks:
        yield read_block_file(folder, file_name(block.number))[1]
