"""Run the blocks of a job on a Ray cluster: an actor per core, each with its own model."""

from __future__ import annotations

import json
import logging
import os
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from mnemorank.bulk.checkpoint import Checkpoint
from mnemorank.bulk.job import BlockWorker, WorkerSettings
from mnemorank.bulk.rows import Block
from mnemorank.errors import InputError, MissingExtraError, MnemorankError

# Ray Data keeps track of each of its tasks. A task runs some blocks, one after another.
_MAX_TASKS = 1000


class _Actor:
    """A worker as Ray Data calls it. If its machine is lost, another one runs its blocks that have no checkpoint.

    Errors of the job are results, too: Ray would hide one behind its own, and start an actor again that cannot start.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        self._worker: BlockWorker | MnemorankError
        try:
            self._worker = BlockWorker(settings)
        except MnemorankError as error:
            self._worker = error

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        try:
            if isinstance(self._worker, MnemorankError):
                raise self._worker
            checkpoint = self._worker.run(Block(**row))
        except MnemorankError as error:
            return {"checkpoint": "", "error": pickle.dumps(error)}
        return {"checkpoint": json.dumps(asdict(checkpoint)), "error": b""}


def run_on_ray(
    settings: WorkerSettings, blocks: Sequence[Block], workers: int | None, address: str | None
) -> Iterator[Checkpoint]:
    """Run blocks and yield their checkpoints as they are finished, in any order."""
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise MissingExtraError(f"the engine ray needs `pip install 'mnemorank[ray]'` ({error})") from error
    if not ray.is_initialized():
        # Without an address, Ray would also try a cluster that was started here before and may be dead.
        address = address or os.environ.get("RAY_ADDRESS") or "local"
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING, configure_logging=True)
        except ConnectionError as error:
            raise InputError(f"no Ray cluster answers: {error}", field="address", code="unreachable") from None
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    context.execution_options.preserve_order = False
    cores = int(ray.cluster_resources().get("CPU", 1))
    actors = max(1, min(workers or cores, len(blocks)))
    dataset = ray.data.from_items([asdict(block) for block in blocks], override_num_blocks=min(len(blocks), _MAX_TASKS))
    checkpoints = dataset.map(
        _Actor,
        fn_constructor_args=(replace(settings, threads=settings.threads or 1),),
        num_cpus=1,
        # All at once: growing from one actor would leave cores idle for as long as a model takes to load.
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=actors, initial_size=actors),
    )
    try:
        for row in checkpoints.iter_rows():
            if row["error"]:
                raise pickle.loads(row["error"])
            yield Checkpoint.from_dict(json.loads(row["checkpoint"]))
    except ray.exceptions.RayError as error:
        raise MnemorankError(f"the Ray cluster failed: {error}; run the same command again to continue") from error
