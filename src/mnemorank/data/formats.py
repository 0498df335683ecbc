"""Read, write and detect our dataset formats: `lists`, `triplets` and `graded`, one JSON object per line.

`lists` is what training and evaluation run on; `triplets` and `graded` are converted to it when they are read.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from mnemorank._internal.jsonio import read_json_lines
from mnemorank.data.examples import Candidate, Example, Triplet, normalize_query
from mnemorank.data.json_records import read_json_records
from mnemorank.errors import InputError
from mnemorank.memory.memory import Memory
from mnemorank.memory.moment import Moment

MAX_WEIGHT = 1000.0
GRADED_RELEVANT_FROM = 0.5
"""The lowest grade that counts as relevant. Lower grades mean "on topic, but no answer" and count in NDCG only."""

_DISTINCTIVE_KEYS = {"candidates": "lists", "positive": "triplets", "label": "graded"}


def detect_format(path: Path) -> str:
    """Return `lists`, `triplets` or `graded`, by the keys of the first record."""
    for where, record in read_json_lines(path):
        name = _format_of_record(record)
        if name is None:
            raise InputError(
                f"{where}: expected a list (candidates), a triplet (positive, negative) or a graded pair (label); "
                f"the record has {', '.join(record) or 'no keys'}"
            )
        return name
    raise InputError(f"{path}: contains no examples", code="empty")


def is_own_format(path: Path) -> bool:
    """Return whether a file is in one of our formats, rather than that of a benchmark."""
    if not path.is_file():
        return False
    _, first = next(iter(read_json_records(path)), ("", {}))
    return _format_of_record(first) is not None


def _format_of_record(record: Mapping[str, Any]) -> str | None:
    return next((name for key, name in _DISTINCTIVE_KEYS.items() if key in record), None)


def read_any_format(path: Path) -> Iterator[Example]:
    """Read a file in whichever of our formats it is."""
    return READERS[detect_format(path)](path)


def read_lists(path: Path) -> Iterator[Example]:
    """Read the `lists` format: a query with its labeled candidates per line."""
    for number, (where, record) in enumerate(read_json_lines(path)):
        yield example_from_record(record, where, str(number))


def read_triplets(path: Path) -> Iterator[Triplet]:
    """Read the `triplets` format as triplets. The group of a triplet is its `group` or `matter`."""
    for where, record in read_json_lines(path):
        sides = {}
        for side in ("positive", "negative"):
            if not isinstance(record.get(side), (dict, str)):
                raise InputError(f"{where}: {side}: expected a memory, got {record.get(side)!r:.60}")
            sides[side] = Memory.of(record[side], path=side, location=where)
        group = _group(record, "group" if "group" in record else "matter", where)
        kind = optional_text(record, "kind", where)
        yield Triplet(required_text(record, "query", where), **sides, group=group, kind=kind)


def read_triplet_examples(path: Path) -> Iterator[Example]:
    """Read the `triplets` format as examples with two candidates each."""
    for number, triplet in enumerate(read_triplets(path)):
        candidates = Candidate(triplet.positive, 1.0), Candidate(triplet.negative, 0.0)
        group = triplet.group or normalize_query(triplet.query)
        yield Example(str(number), triplet.query, candidates, group=group, source="triplets", kind=triplet.kind)


def read_graded(path: Path) -> Iterator[Example]:
    """Read the `graded` format (`query`, memory fields, `label`), collecting the pairs of a query into one example.

    Pairs with the same query but another `group` or `query_time` make another example.
    """
    candidates_by_query: dict[tuple[str, str, Moment | None], list[Candidate]] = {}
    for where, record in read_json_lines(path):
        query = required_text(record, "query", where)
        item = {key: value for key, value in record.items() if key not in ("query", "query_time", "group")}
        group = _group(record, "group", where) or normalize_query(query)
        key = query, group, optional_moment(record, "query_time", where)
        candidates_by_query.setdefault(key, []).append(_candidate(item, where))
    for number, ((query, group, time), candidates) in enumerate(candidates_by_query.items()):
        yield Example(
            str(number),
            query,
            tuple(candidates),
            query_time=time,
            group=group,
            source="graded",
            relevant_from=GRADED_RELEVANT_FROM,
        )


READERS: Mapping[str, Callable[[Path], Iterator[Example]]] = {
    "lists": read_lists,
    "triplets": read_triplet_examples,
    "graded": read_graded,
}


@contextmanager
def open_for_writing(path: Path) -> Iterator[IO[str]]:
    """Open a text file for writing, compressed if its name ends in `.gz`.

    The gzip header has no name and no time, so that the same text gives the same bytes.
    """
    if path.suffix == ".zst":
        raise InputError(f"{path}: writing .zst is not supported; use .gz or no compression")
    with path.open("wb") as raw:
        binary = gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) if path.suffix == ".gz" else raw
        # Lone surrogates have no UTF-8 encoding; their escape is valid JSON.
        with io.TextIOWrapper(binary, encoding="utf-8", errors="backslashreplace") as stream:
            yield stream


def write_lists(examples: Iterable[Example], path: Path) -> None:
    """Write examples in the `lists` format, compressed if the name ends in `.gz`."""
    with open_for_writing(path) as stream:
        for example in examples:
            stream.write(json.dumps(example_to_record(example), ensure_ascii=False) + "\n")


def write_graded(examples: Iterable[Example], path: Path) -> None:
    """Write examples in the `graded` format, one line per candidate."""
    with open_for_writing(path) as stream:
        for example in examples:
            record = example_to_record(example)
            shared = {key: record[key] for key in ("query", "query_time", "group") if key in record}
            for candidate in record["candidates"]:
                stream.write(json.dumps({**shared, **candidate}, ensure_ascii=False) + "\n")


def example_from_record(record: Mapping[str, Any], where: str, default_id: str) -> Example:
    """Read one record of the `lists` format.

    :param where: how error messages refer to the record, such as `file:line`.
    """
    candidates = record.get("candidates")
    if not isinstance(candidates, list) or not candidates:
        raise InputError(f"{where}: candidates: expected a list with at least one candidate")
    return Example(
        id=str(record.get("id", default_id)),
        query=required_text(record, "query", where),
        candidates=tuple(_candidate(item, f"{where}: candidate {i}") for i, item in enumerate(candidates)),
        query_time=optional_moment(record, "query_time", where),
        group=_group(record, "group", where),
        source=record.get("source"),
        kind=optional_text(record, "kind", where),
        answerable=record.get("answerable", True) is not False,
        missing=_missing(record, where),
        relevant_from=_number(record, "relevant_from", 0.0, 1.0, where),
        pairs=_pairs(record, len(candidates), where),
    )


def example_to_record(example: Example) -> dict[str, Any]:
    """Return an example as a record of the `lists` format."""
    record: dict[str, Any] = {
        "id": example.id,
        "query": example.query,
        "query_time": str(example.query_time) if example.query_time else None,
        "group": example.group,
        "source": example.source,
        "kind": example.kind,
        "answerable": None if example.answerable else False,
        "missing": list(example.missing) or None,
        "relevant_from": example.relevant_from or None,
        "pairs": [list(pair) for pair in example.pairs] or None,
        "candidates": [_candidate_record(candidate) for candidate in example.candidates],
    }
    return {key: value for key, value in record.items() if value is not None}


def _candidate_record(candidate: Candidate) -> dict[str, Any]:
    record = {**candidate.memory.to_dict(), "label": candidate.label}
    return record if candidate.weight == 1.0 else {**record, "weight": candidate.weight}


def required_text(record: Mapping[str, Any], key: str, where: str) -> str:
    """Return a string that must not be empty."""
    value = record.get(key)
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{where}: {key}: expected a string that is not empty, got {value!r:.60}")
    return value


def optional_text(record: Mapping[str, Any], key: str, where: str) -> str | None:
    """Return a string, or None if the key is missing or null."""
    value = record.get(key)
    if value is not None and not isinstance(value, str):
        raise InputError(f"{where}: {key}: expected a string or null, got {value!r:.60}")
    return value


def optional_moment(record: Mapping[str, Any], key: str, where: str) -> Moment | None:
    """Return a date or time, or None if the key is missing or empty."""
    value = record.get(key)
    if not value:
        return None
    try:
        return Moment.parse(value)
    except InputError as error:
        raise InputError(error.message, field=key, location=where) from None


def _candidate(item: object, where: str) -> Candidate:
    if not isinstance(item, dict):
        raise InputError(f"{where}: expected an object, got {type(item).__name__}")
    fields = {key: value for key, value in item.items() if key not in ("label", "weight")}
    weight = _number(item, "weight", 1.0, MAX_WEIGHT, where)
    return Candidate(Memory.of(fields, location=where), _label(item.get("label"), f"{where}: label"), weight)


def _label(value: object, where: str) -> float:
    if not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise InputError(f"{where}: expected a number from 0 to 1, got {value!r:.60}")
    return float(value)


def _number(record: Mapping[str, Any], key: str, default: float, high: float, where: str) -> float:
    value = record.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= high:
        raise InputError(f"{where}: {key}: expected a number from 0 to {high:g}, got {value!r:.60}")
    return float(value)


def _group(record: Mapping[str, Any], key: str, where: str) -> str | None:
    """Return a group, which is a name or a number; None if there is none."""
    value = record.get(key)
    if isinstance(value, bool) or not isinstance(value, (str, int, float, type(None))):
        raise InputError(f"{where}: {key}: expected a string or a number, got {value!r:.60}")
    return None if value is None or value == "" else str(value)


def _missing(record: Mapping[str, Any], where: str) -> tuple[float, ...]:
    return tuple(_label(label, f"{where}: missing {i}") for i, label in enumerate(_list(record, "missing", where)))


def _pairs(record: Mapping[str, Any], candidates: int, where: str) -> tuple[tuple[int, int], ...]:
    pairs = []
    for i, pair in enumerate(_list(record, "pairs", where)):
        is_pair = isinstance(pair, list) and len(pair) == 2 and all(type(position) is int for position in pair)
        if not is_pair or not all(0 <= position < candidates for position in pair):
            expected = f"two positions from 0 to {candidates - 1}"
            raise InputError(f"{where}: pairs {i}: expected {expected}, got {pair!r:.60}")
        pairs.append((pair[0], pair[1]))
    return tuple(pairs)


def _list(record: Mapping[str, Any], key: str, where: str) -> list[Any]:
    value = record.get(key)
    if value is not None and not isinstance(value, list):
        raise InputError(f"{where}: {key}: expected a list, got {value!r:.60}")
    return value or []
