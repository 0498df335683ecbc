"""Load what the task `prepare` computed into a folder of prepared memories."""

from __future__ import annotations

from pathlib import Path

from mnemorank.artifact.resolve import load_artifact
from mnemorank.bulk.checkpoint import read_block_file
from mnemorank.bulk.files import Folder
from mnemorank.errors import ConflictError, InputError
from mnemorank.scorers.state_file import StateFile
from mnemorank.scorers.states import State

_MEGABYTE = 1_000_000


def load_states(output: str, model: str, states: str | Path, megabytes: int | None = None) -> tuple[int, int]:
    """Store the states of a finished job; return how many memories it has, and how many could not be stored.

    :param output: the output folder of the job.
    :param model: which must be the one that the job used.
    :param states: the folder of prepared memories; created if needed.
    :param megabytes: its size limit.
    """
    fingerprint = load_artifact(model).reading_fingerprint
    folder = Folder(output)
    names = sorted(name for name in folder.names() if name.startswith("block-") and name.endswith(".parquet"))
    memories = not_stored = 0
    store = StateFile(states, fingerprint, max_bytes=None if megabytes is None else megabytes * _MEGABYTE)
    try:
        for name in names:
            checkpoint, table = read_block_file(folder, name)
            if "fingerprint" not in checkpoint.facts:
                raise InputError("is not the output of `bulk prepare`", location=output)
            if checkpoint.facts["fingerprint"] != fingerprint:
                message = f"{output} was prepared with {checkpoint.facts['model']!r}, or another version of it"
                raise ConflictError(message, field="model", code="other_model")
            for row in table.to_pylist():
                computed = {
                    key: state
                    for key, data, embedding in zip(row["keys"], row["states"], row["embeddings"], strict=True)
                    if (state := State.from_bytes(data, len(embedding))) is not None
                }
                memories += 1
                not_stored += not store.store(computed)
    finally:
        store.close()
    return memories, not_stored
