"""What training and evaluation run on: a query with labelled candidates. Triplets and graded pairs convert to it."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from mnemorank._internal.jsonio import read_json_lines
from mnemorank.errors import InputError
from mnemorank.memory.memory import Memory
from mnemorank.memory.moment import Moment
from mnemorank.text.words import words

MOST_WEIGHT = 1000.0
GRADED_RELEVANT_FROM = 0.5


@dataclass(frozen=True, slots=True)
class Candidate:
    """:param label: how relevant, 0 to 1.
    :param weight: how much the label counts in a loss; 0 for one that only stands in the list, its label a guess.
    """

    memory: Memory
    label: float
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Example:
    """A query and its candidates.

    :param id: unique in its file.
    :param group: what must not be split between train and test: the persona, conversation or query.
    :param kind: the question type, for reports by type.
    :param answerable: False where no candidate answers by design, for abstention.
    :param missing: labels of the relevant memories that are not among the candidates.
    :param relevant_from: the label from which a candidate counts as relevant in binary measures; 0 stands for any
        label above 0.
    :param pairs: positions of a right and a wrong candidate that the data sets against each other (triplets).
    """

    id: str
    query: str
    candidates: tuple[Candidate, ...]
    query_time: Moment | None = None
    group: str | None = None
    source: str | None = None
    kind: str | None = None
    answerable: bool = True
    missing: tuple[float, ...] = ()
    relevant_from: float = 0.0
    pairs: tuple[tuple[int, int], ...] = ()

    @property
    def memories(self) -> list[Memory]:
        return [candidate.memory for candidate in self.candidates]

    @property
    def labels(self) -> list[float]:
        return [candidate.label for candidate in self.candidates]


@dataclass(frozen=True, slots=True)
class Triplet:
    """R0's record: for the query, `positive` is right and `negative` is not.

    :param group: what must not be split between train and test; the record's `group` or `matter`.
    """

    query: str
    positive: Memory
    negative: Memory
    group: str | None = None
    kind: str | None = None


def read_lists(path: Path) -> Iterator[Example]:
    """Our `lists` format, an example a line."""
    for number, (where, record) in enumerate(read_json_lines(path)):
        yield example_of(record, where, str(number))


def example_of(record: Mapping[str, Any], where: str, default_id: str) -> Example:
    """Read one record of the `lists` format.

    :param where: how errors name it.
    """
    candidates = record.get("candidates")
    if not isinstance(candidates, list) or not candidates:
        raise InputError(f"{where}: candidates: expected a list with at least one candidate")
    time = record.get("query_time")
    return Example(
        id=str(record.get("id", default_id)),
        query=text_of(record, "query", where),
        candidates=tuple(_candidate(item, f"{where}: candidate {i}") for i, item in enumerate(candidates)),
        query_time=_moment(time, f"{where}: query_time") if time else None,
        group=_group(record, "group", where),
        source=record.get("source"),
        kind=optional_text(record, "kind", where),
        answerable=record.get("answerable", True) is not False,
        missing=_missing(record, where),
        relevant_from=_relevant_from(record, where),
        pairs=_pairs(record, len(candidates), where),
    )


def read_triplets(path: Path) -> Iterator[Triplet]:
    """R0's record, a triplet a line."""
    for where, record in read_json_lines(path):
        sides = {}
        for side in ("positive", "negative"):
            if not isinstance(record.get(side), (dict, str)):
                raise InputError(f"{where}: {side}: expected a memory, got {record.get(side)!r:.60}")
            sides[side] = Memory.of(record[side], path=side, location=where)
        group = _group(record, "group" if "group" in record else "matter", where)
        kind = optional_text(record, "kind", where)
        yield Triplet(text_of(record, "query", where), **sides, group=group, kind=kind)


def triplet_examples(triplets: Iterable[Triplet]) -> Iterator[Example]:
    """Each triplet as an example of two candidates, in its own group or that of its query."""
    for number, triplet in enumerate(triplets):
        pair = Candidate(triplet.positive, 1.0), Candidate(triplet.negative, 0.0)
        group = triplet.group or question_group(triplet.query)
        yield Example(str(number), triplet.query, pair, group=group, source="triplets", kind=triplet.kind)


def read_graded(path: Path) -> Iterator[Example]:
    """Graded pairs (`query`, memory fields, `label`, `group`), gathered into one example a question, in file order.

    The same words in another `group` or at another `query_time` are another question. A teacher's .2 says "on topic,
    no answer": such pairs weigh in NDCG but are not relevant in MAP.
    """
    gathered: dict[tuple[str, str, Moment | None], list[Candidate]] = {}
    for where, record in read_json_lines(path):
        query = text_of(record, "query", where)
        time = record.get("query_time")
        asked = _moment(time, f"{where}: query_time") if time else None
        item = {key: value for key, value in record.items() if key not in ("query", "query_time", "group")}
        key = query, _group(record, "group", where) or question_group(query), asked
        gathered.setdefault(key, []).append(_candidate(item, where))
    for number, ((query, group, asked), candidates) in enumerate(gathered.items()):
        yield Example(
            str(number),
            query,
            tuple(candidates),
            query_time=asked,
            group=group,
            source="graded",
            relevant_from=GRADED_RELEVANT_FROM,
        )


@contextmanager
def open_to_write(path: Path) -> Iterator[IO[str]]:
    """A file to write UTF-8 to, packed where it ends in `.gz`, so that it is read back by its name.

    Neither time nor name is in the packed file's header: the same text gives the same bytes.
    """
    if path.suffix == ".zst":
        raise InputError(f"{path}: .zst is only read; write it plain or as .gz")
    with path.open("wb") as raw:
        packed = gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) if path.suffix == ".gz" else raw
        # Half a character, which UTF-8 does not have, becomes the escape that JSON has for it.
        with io.TextIOWrapper(packed, encoding="utf-8", errors="backslashreplace") as stream:
            yield stream


def write_lists(examples: Iterable[Example], path: Path) -> None:
    """Write examples in our `lists` format; packed where the path ends in `.gz`."""
    with open_to_write(path) as stream:
        for example in examples:
            stream.write(json.dumps(example_record(example), ensure_ascii=False) + "\n")


def write_graded(examples: Iterable[Example], path: Path) -> None:
    """Write examples as graded pairs, such as a teacher's for the recipe `lychee`; `read_graded` gathers them again."""
    with open_to_write(path) as stream:
        for example in examples:
            whole = example_record(example)
            asked = {key: whole[key] for key in ("query", "query_time", "group") if key in whole}
            for candidate in whole["candidates"]:
                stream.write(json.dumps({**asked, **candidate}, ensure_ascii=False) + "\n")


def question_group(query: str) -> str:
    """A question however it is written: its words. The group of one that states none."""
    return " ".join(words(query)) or query


def text_of(record: Mapping[str, Any], key: str, where: str) -> str:
    value = record.get(key)
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{where}: {key}: expected a string that is not empty, got {value!r:.60}")
    return value


def optional_text(record: Mapping[str, Any], key: str, where: str) -> str | None:
    value = record.get(key)
    if value is not None and not isinstance(value, str):
        raise InputError(f"{where}: {key}: expected a string or null, got {value!r:.60}")
    return value


def label_of(record: Mapping[str, Any], where: str) -> float:
    label = record.get("label")
    if not isinstance(label, (int, float)) or not 0 <= label <= 1:
        raise InputError(f"{where}: label: expected a number from 0 to 1, got {label!r:.60}")
    return float(label)


def _candidate(item: object, where: str) -> Candidate:
    if not isinstance(item, dict):
        raise InputError(f"{where}: expected an object, got {type(item).__name__}")
    fields = {key: value for key, value in item.items() if key not in ("label", "weight")}
    return Candidate(Memory.of(fields, location=where), label_of(item, where), _weight_of(item, where))


def _weight_of(record: Mapping[str, Any], where: str) -> float:
    weight = record.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 <= weight <= MOST_WEIGHT:
        raise InputError(f"{where}: weight: expected a number from 0 to {MOST_WEIGHT:g}, got {weight!r:.60}")
    return float(weight)


def _group(record: Mapping[str, Any], key: str, where: str) -> str | None:
    """A group by its name or number; None where none is stated."""
    value = record.get(key)
    if isinstance(value, bool) or not isinstance(value, (str, int, float, type(None))):
        raise InputError(f"{where}: {key}: expected a string or a number, got {value!r:.60}")
    return None if value is None or value == "" else str(value)


def _relevant_from(record: Mapping[str, Any], where: str) -> float:
    value = record.get("relevant_from", 0.0)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise InputError(f"{where}: relevant_from: expected a number from 0 to 1, got {value!r:.60}")
    return float(value)


def _missing(record: Mapping[str, Any], where: str) -> tuple[float, ...]:
    labels = _list(record, "missing", where)
    return tuple(label_of({"label": label}, f"{where}: missing {i}") for i, label in enumerate(labels))


def _pairs(record: Mapping[str, Any], candidates: int, where: str) -> tuple[tuple[int, int], ...]:
    pairs = []
    for i, pair in enumerate(_list(record, "pairs", where)):
        is_pair = isinstance(pair, list) and len(pair) == 2 and all(type(place) is int for place in pair)
        if not is_pair or not all(0 <= place < candidates for place in pair):
            expected = f"two positions from 0 to {candidates - 1}"
            raise InputError(f"{where}: pairs: {i}: expected {expected}, got {pair!r:.60}")
        pairs.append((pair[0], pair[1]))
    return tuple(pairs)


def _list(record: Mapping[str, Any], key: str, where: str) -> list[Any]:
    """A list that may be left out."""
    value = record.get(key)
    if value is not None and not isinstance(value, list):
        raise InputError(f"{where}: {key}: expected a list, got {value!r:.60}")
    return value or []


def _moment(value: object, where: str) -> Moment:
    try:
        return Moment.parse(value)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def example_record(example: Example) -> dict[str, Any]:
    """An example as a record of the `lists` format."""
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
