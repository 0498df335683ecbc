"""The rows of input files, split into blocks that can be read one by one, on any machine."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import IO, Any

from mnemorank._internal.jsonio import parse_json, read_errors
from mnemorank.bulk.files import local_or_remote, pyarrow_parquet
from mnemorank.data.records import Record
from mnemorank.errors import InputError, MissingExtraError

_LINES = (".jsonl", ".ndjson")
_COMPRESSED = {".gz": "gzip", ".zst": "zstd"}
JSON_COLUMN = "record"
"""A column of Parquet files that holds whole records as JSON, as the tasks `mine` and `label` write them."""


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file to read.

    :param version: changes when the file changes.
    """

    path: str
    size: int
    version: str


@dataclass(frozen=True, slots=True)
class Block:
    """Some consecutive rows of a file: the unit of work, of checkpoints and of repetition.

    :param first: the number of the first line, or of the first row of a Parquet file, from 1.
    :param rows: how many lines or rows; None for all of a compressed file.
    :param offset: the position of the first line in the file, in bytes.
    :param size: of all lines, in bytes.
    """

    number: int
    path: str
    first: int = 1
    rows: int | None = None
    offset: int = 0
    size: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """A row of an input file.

    :param record: its content, or why it could not be read.
    """

    path: str
    line: int
    record: Record | InputError


def find_inputs(paths: Sequence[str]) -> list[InputFile]:
    """Return the files that paths stand for: files, folders and patterns, on this machine or on any fsspec URL."""
    found: dict[str, InputFile] = {}
    for path in paths:
        files, names = local_or_remote(path)
        try:
            expanded = sorted(files.glob(names)) if any(c in names for c in "*?[") else [names]
            matches = [name for each in expanded for name in (_in_folder(files, each) if files.isdir(each) else [each])]
            for name in matches:
                info = files.info(name)
                version = next((str(info[key]) for key in ("ETag", "mtime", "LastModified") if info.get(key)), "")
                url = files.unstrip_protocol(name) if "://" in path else name
                found[url] = InputFile(url, int(info["size"] or 0), version)
        except FileNotFoundError:
            raise InputError("no such file or folder", location=path, code="not_found") from None
        if not matches:
            raise InputError("no .jsonl, .ndjson or .parquet files", location=path, code="not_found")
    for file in found:
        if not _is_readable(file):
            raise InputError("expected a .jsonl, .ndjson or .parquet file", location=file)
    return list(found.values())


def plan_blocks(inputs: Sequence[InputFile], block_rows: int) -> list[Block]:
    """Split files into blocks. Lines are counted, which reads JSON Lines files once; Parquet files know their rows.

    A compressed file is a single block, since it cannot be read from the middle.
    """
    blocks = [block for file in inputs for block in _blocks(file.path, block_rows)]
    return [replace(block, number=number) for number, block in enumerate(blocks)]


def read_block(block: Block) -> list[Row]:
    """Return the rows of a block; blank lines are none. A file that cannot be read at all is an InputError."""
    try:
        if block.path.endswith(".parquet"):
            return list(_parquet_rows(block))
        return list(_lines(block))
    except read_errors() as error:
        message = f"cannot read the file: {error}"
        raise InputError(message, location=f"{block.path}:{block.first}", code="unreadable") from None


def _in_folder(files: Any, folder: str) -> list[str]:
    names = sorted(files.find(folder, maxdepth=1))
    return [name for name in names if _is_readable(name) and not name.rpartition("/")[2].startswith(("_", "."))]


def _is_readable(path: str) -> bool:
    for suffix in _COMPRESSED:
        path = path.removesuffix(suffix)
    return path.endswith((*_LINES, ".parquet"))


def _blocks(path: str, block_rows: int) -> Iterator[Block]:
    if path.endswith(tuple(_COMPRESSED)):
        yield Block(0, path)
        return
    if path.endswith(".parquet"):
        with _open(path) as stream:
            total = _parquet_file(path, stream).metadata.num_rows
        for first in range(0, total, block_rows):
            yield Block(0, path, first + 1, min(block_rows, total - first))
        return
    start, end, first, lines = 0, 0, 1, 0
    with _open(path) as stream:
        for line in stream:
            end, lines = end + len(line), lines + 1
            if lines == block_rows:
                yield Block(0, path, first, lines, start, end - start)
                start, first, lines = end, first + lines, 0
    if lines:
        yield Block(0, path, first, lines, start, end - start)


def _lines(block: Block) -> Iterator[Row]:
    with _open(block.path) as stream:
        stream.seek(block.offset)
        content = stream.read(-1 if block.rows is None else block.size)
    for line, data in enumerate(content.split(b"\n"), block.first):
        if data.strip():
            yield Row(block.path, line, _parse(data, block.path, line))


def _parse(data: bytes, path: str, line: int) -> Record | InputError:
    location = f"{path}:{line}"
    try:
        text = data.decode("utf-8-sig" if line == 1 else "utf-8")
    except UnicodeDecodeError as error:
        return InputError(f"not UTF-8: {error.reason} at byte {error.start + 1}", location=location)
    try:
        return _as_record(parse_json(text, path, line), location)
    except InputError as error:
        return error


def _as_record(value: object, location: str) -> Record:
    if not isinstance(value, dict):
        raise InputError(f"expected a JSON object, got {type(value).__name__}", location=location)
    return Record(value, location)


def _parquet_rows(block: Block) -> Iterator[Row]:
    with _open(block.path) as stream:
        file = _parquet_file(block.path, stream)
        start, end = block.first - 1, block.first - 1 + (block.rows or 0)
        position, groups = 0, []
        for group in range(file.metadata.num_row_groups):
            size = file.metadata.row_group(group).num_rows
            if position < end and position + size > start:
                groups.append((position, group))
            position += size
        if not groups:
            return
        # Only the row groups that the block touches are read.
        table = file.read_row_groups([group for _, group in groups])
        for line, values in enumerate(table.slice(start - groups[0][0], end - start).to_pylist(), block.first):
            location = f"{block.path}:{line}"
            text = values.get(JSON_COLUMN)
            try:
                value = _without_nulls(values) if not isinstance(text, str) else json.loads(text)
                yield Row(block.path, line, _as_record(value, location))
            except ValueError as error:
                problem = error if isinstance(error, InputError) else InputError(f"invalid JSON: {error}")
                yield Row(block.path, line, InputError(problem.message, field=JSON_COLUMN, location=location))


def _without_nulls(value: Any) -> Any:
    """Drop what is null: a column has a value in every row, an object only the keys that it has."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _parquet_file(path: str, stream: IO[bytes]) -> Any:
    try:
        return pyarrow_parquet().ParquetFile(stream)
    except (OSError, ValueError) as error:  # pyarrow's errors are kinds of ValueError
        raise InputError(f"not a Parquet file: {error}", location=path, code="unreadable") from None


def _open(path: str) -> IO[bytes]:
    files, name = local_or_remote(path)
    compression = next((kind for suffix, kind in _COMPRESSED.items() if path.endswith(suffix)), None)
    try:
        stream: IO[bytes] = files.open(name, "rb", compression=compression)
    except OSError as error:
        message = f"cannot open the file: {error.strerror or error}"
        raise InputError(message, location=path, code="unreadable") from None
    except ValueError as error:  # of fsspec, which does not know the compression
        raise MissingExtraError(f"{path}: needs `pip install zstandard` ({error})") from error
    return stream
