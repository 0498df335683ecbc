"""Read, write and detect our dataset formats: `lists`, `triplets` and `graded`, one JSON object per line.

`lists` is what training and evaluation run on; `triplets` and `graded` are converted to it when they are read.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from mnemorank.data.examples import Candidate, Example, Triplet, normalize_query
from mnemorank.data.records import Record, read_lines, read_records
from mnemorank.errors import InputError
from mnemorank.memory.memory import Memory
from mnemorank.memory.moment import Moment

MAX_WEIGHT = 1000.0
GRADED_RELEVANT_FROM = 0.5
"""The lowest grade that counts as relevant. Lower grades mean "on topic, but no answer" and count in NDCG only."""

_DISTINCTIVE_KEYS = {"candidates": "lists", "positive": "triplets", "label": "graded"}


def detect_format(path: Path) -> str:
    """Return `lists`, `triplets` or `graded`, by the keys of the first record."""
    for record in read_lines(path):
        name = _format_of(record)
        if name is None:
            raise record.error(
                "expected a list (candidates), a triplet (positive, negative) or a graded pair (label); "
                f"the object has {', '.join(record.values) or 'no keys'}"
            )
        return name
    raise InputError("contains no examples", code="empty", location=str(path))


def is_own_format(path: Path) -> bool:
    """Return whether a file is in one of our formats, rather than that of a benchmark."""
    if not path.is_file():
        return False
    first = next(iter(read_records(path)), None)
    return first is not None and _format_of(first) is not None


def _format_of(record: Record) -> str | None:
    return next((name for key, name in _DISTINCTIVE_KEYS.items() if key in record.values), None)


def read_any_format(path: Path) -> Iterator[Example]:
    """Read a file in any of our formats."""
    return READERS[detect_format(path)](path)


def read_lists(path: Path) -> Iterator[Example]:
    """Read the `lists` format: a query with its labeled candidates per line."""
    for number, record in enumerate(read_lines(path)):
        yield example_from_record(record, str(number))


def read_triplets(path: Path) -> Iterator[Triplet]:
    """Read the `triplets` format as triplets. The group of a triplet is its `group` or `matter`."""
    for record in read_lines(path):
        sides = {}
        for side in ("positive", "negative"):
            value = record.values.get(side)
            if not isinstance(value, (dict, str)):
                raise record.error(f"expected a memory, got {value!r:.60}", side)
            sides[side] = Memory.of(value, path=side, location=record.location)
        group = _group(record, "group" if "group" in record.values else "matter")
        yield Triplet(record.text("query"), **sides, group=group, kind=record.optional_text("kind"))


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
    shared_keys = ("query", "query_time", "group")
    for record in read_lines(path):
        query = record.text("query")
        key = query, _group(record) or normalize_query(query), record.moment("query_time")
        candidates_by_query.setdefault(key, []).append(_candidate(record, ignored=shared_keys))
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
        raise InputError("writing .zst is not supported; use .gz or no compression", location=str(path))
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


def example_from_record(record: Record, default_id: str) -> Example:
    """Read one object of the `lists` format."""
    candidates = record.objects("candidates")
    if not candidates:
        raise record.error("expected at least one candidate", "candidates", code="empty")
    return Example(
        id=str(record.values.get("id", default_id)),
        query=record.text("query"),
        candidates=tuple(_candidate(candidate) for candidate in candidates),
        query_time=record.moment("query_time"),
        group=_group(record),
        source=record.values.get("source"),
        kind=record.optional_text("kind"),
        answerable=record.values.get("answerable", True) is not False,
        missing=_missing(record),
        relevant_from=record.number("relevant_from", 0.0, 1.0),
        pairs=_pairs(record, len(candidates)),
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


def _candidate(record: Record, ignored: Collection[str] = ()) -> Candidate:
    """Read a memory with its `label` and `weight`.

    :param ignored: keys that do not belong to the memory.
    """
    fields = {key: value for key, value in record.values.items() if key not in ("label", "weight", *ignored)}
    memory = Memory.of(fields, path=record.path, location=record.location)
    return Candidate(
        memory, _label(record.values.get("label"), record, "label"), record.number("weight", 1, MAX_WEIGHT)
    )


def _label(value: object, record: Record, key: str) -> float:
    if not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise record.error(f"expected a number from 0 to 1, got {value!r:.60}", key)
    return float(value)


def _group(record: Record, key: str = "group") -> str | None:
    """Return a group, which is a name or a number; None if there is none."""
    value = record.values.get(key)
    if isinstance(value, bool) or not isinstance(value, (str, int, float, type(None))):
        raise record.error(f"expected a string or a number, got {value!r:.60}", key)
    return None if value is None or value == "" else str(value)


def _missing(record: Record) -> tuple[float, ...]:
    labels = record.optional_list("missing")
    return tuple(_label(label, record, f"missing.{i}") for i, label in enumerate(labels))


def _pairs(record: Record, candidates: int) -> tuple[tuple[int, int], ...]:
    pairs = []
    for i, pair in enumerate(record.optional_list("pairs")):
        is_pair = isinstance(pair, list) and len(pair) == 2 and all(type(position) is int for position in pair)
        if not is_pair or not all(0 <= position < candidates for position in pair):
            raise record.error(f"expected two positions from 0 to {candidates - 1}, got {pair!r:.60}", f"pairs.{i}")
        pairs.append((pair[0], pair[1]))
    return tuple(pairs)
