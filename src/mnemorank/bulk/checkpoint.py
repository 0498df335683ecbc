"""Checkpoints: a finished block is a Parquet file with its rows, and its failures in the footer."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mnemorank.bulk.files import Folder, pyarrow, pyarrow_parquet
from mnemorank.bulk.rows import Block
from mnemorank.errors import InputError, MnemorankError

_KEY = b"mnemorank"


@dataclass(frozen=True, slots=True)
class Failure:
    """A row without a result.

    :param line: its line, or its row in a Parquet file, from 1.
    :param error: the kind of error.
    :param field: the field at fault, if there is one.
    """

    file: str
    line: int
    error: str
    field: str | None
    message: str

    @classmethod
    def of(cls, file: str, line: int, error: MnemorankError) -> Failure:
        if isinstance(error, InputError):
            return cls(file, line, type(error).__name__, error.field, error.message)
        return cls(file, line, type(error).__name__, None, str(error))

    def __str__(self) -> str:
        return ": ".join(part for part in (f"{self.file}:{self.line}", self.field, self.message) if part)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a finished block has: rows in its file, and failures.

    :param facts: what the task adds, the same for all blocks.
    """

    block: int
    rows: int
    failures: tuple[Failure, ...]
    facts: Mapping[str, Any]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Checkpoint:
        """Read what `dataclasses.asdict` returned."""
        failures = tuple(Failure(**failure) for failure in values["failures"])
        return cls(values["block"], values["rows"], failures, values["facts"])


def file_name(block: int) -> str:
    return f"block-{block:06d}.parquet"


def write_checkpoint(
    folder: Folder,
    job: str,
    block: Block,
    columns: Sequence[tuple[str, str]],
    rows: Sequence[Mapping[str, Any]],
    failures: Sequence[Failure],
    facts: Mapping[str, Any],
) -> Checkpoint:
    """Write a block's rows and failures in one step.

    :param job: identifies the job; blocks of other jobs are not its own.
    :param columns: names and types of the columns.
    """
    pa, parquet = pyarrow(), pyarrow_parquet()
    checkpoint = Checkpoint(block.number, len(rows), tuple(failures), facts)
    note = json.dumps({"job": job, **asdict(checkpoint)}, ensure_ascii=False)
    schema = pa.schema([(name, _type(pa, kind)) for name, kind in columns], metadata={_KEY: note})
    table = pa.Table.from_pylist([_without_nan(row) for row in rows], schema=schema)
    buffer = io.BytesIO()
    parquet.write_table(table, buffer, compression="zstd")
    folder.write(file_name(block.number), buffer.getvalue())
    return checkpoint


def read_checkpoint(folder: Folder, job: str, block: int) -> Checkpoint | None:
    """Return what a block's file says; None if it does not exist, is damaged or belongs to another job."""
    parquet = pyarrow_parquet()
    try:
        with folder.open(file_name(block)) as stream:
            note = _note(parquet.ParquetFile(stream).schema_arrow)
    except (OSError, ValueError):  # missing, or cut short by a crash where the file system cannot rename
        return None
    return Checkpoint.from_dict(note) if note.get("job") == job else None


def read_block_file(folder: Folder, name: str) -> tuple[Checkpoint, Any]:
    """Return what a block's file says, and its rows as a pyarrow table."""
    with folder.open(name) as stream:
        table = pyarrow_parquet().read_table(stream)
    return Checkpoint.from_dict(_note(table.schema)), table


def _note(schema: Any) -> dict[str, Any]:
    note: dict[str, Any] = json.loads((schema.metadata or {}).get(_KEY, b"{}"))
    return note


def _type(pa: Any, kind: str) -> Any:
    return pa.list_(_type(pa, kind[5:-1])) if kind.startswith("list<") else pa.type_for_alias(kind)


def _without_nan(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in row.items()}
