"""The tasks of bulk jobs: rows in, rows out."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

from mnemorank.artifact.resolve import load_artifact
from mnemorank.bulk.rows import JSON_COLUMN, Row, find_inputs, plan_blocks, read_block
from mnemorank.data.examples import Example
from mnemorank.data.formats import example_from_record, example_to_record
from mnemorank.data.hard_negatives import NegativeMiner, NegativeMining
from mnemorank.data.records import Record
from mnemorank.data.teacher import Teacher, TeacherSettings
from mnemorank.errors import ArtifactError, InputError, MissingExtraError, MnemorankError
from mnemorank.evaluation.benchmark import predict, question_of
from mnemorank.evaluation.metrics import MEASURES, Judgments, measure
from mnemorank.evaluation.systems import load_system
from mnemorank.memory.memory import Memory
from mnemorank.model.model import Model
from mnemorank.model.passages import PassageReader
from mnemorank.model.prepare import require_states
from mnemorank.reranker import Reranker

Columns = Sequence[tuple[str, str]]
Output = dict[str, Any] | MnemorankError

_MEMORIES_AT_ONCE = 32
_ROWS_READ_AT_ONCE = 10_000
_EXAMPLE_COLUMNS = (("id", "string"), (JSON_COLUMN, "string"))
# They concern the whole job, not a row.
_FATAL = (ArtifactError, MissingExtraError)


class Task(ABC):
    """What a job does with its rows. Each worker has one.

    :param options: of the task; see docs/reference/cli.md.
    :param inputs: the files of the job.
    :param threads: for the model; None for all cores.
    """

    columns: ClassVar[Columns]

    def __init__(self, options: Mapping[str, Any], inputs: Sequence[str], threads: int | None) -> None:
        self.options, self.inputs = options, inputs
        self.facts: Mapping[str, Any] = {}  # written to every checkpoint

    @abstractmethod
    def run(self, rows: Sequence[Row]) -> Sequence[Output]:
        """Return the output of each row, or the error that explains why there is none."""

    @classmethod
    def summarize(cls, tables: Iterator[Any]) -> dict[str, Any]:
        """Return figures over all rows of the output.

        :param tables: of all blocks, as pyarrow tables.
        """
        return {}

    def close(self) -> None:  # noqa: B027
        """Release what the task holds."""


class Score(Task):
    """The relevance of each memory of a row for the row's query."""

    columns = (("id", "string"), ("query", "string"), ("relevance", "list<double>"), ("raw_score", "list<double>"))

    def __init__(self, options: Mapping[str, Any], inputs: Sequence[str], threads: int | None) -> None:
        super().__init__(options, inputs, threads)
        self._reranker = Reranker(options["model"], **_threads(options["model"], threads))

    def run(self, rows: Sequence[Row]) -> Sequence[Output]:
        return _each(self._score, rows)

    def _score(self, record: Record, _line: int) -> dict[str, Any]:
        query, memories = record.text("query"), _memories(record, self.options.get("field"))
        scores = self._reranker.score(query, memories, instruction=self.options.get("instruction"))
        return {
            "id": _id(record),
            "query": query,
            "relevance": [score.relevance for score in scores],
            "raw_score": [score.raw_score for score in scores],
        }

    def close(self) -> None:
        self._reranker.close()


class Prepare(Task):
    """What a split model reads of a memory, once for all queries. `mnemorank prepare` loads it into a states folder."""

    columns = (
        ("id", "string"),
        ("keys", "list<binary>"),
        ("states", "list<binary>"),
        ("embeddings", "list<list<float>>"),
    )

    def __init__(self, options: Mapping[str, Any], inputs: Sequence[str], threads: int | None) -> None:
        super().__init__(options, inputs, threads)
        self._model = Model.load(options["model"], **_threads(options["model"], threads))
        self._scorer = require_states(self._model.scorer, self._model.manifest, "model")
        artifact = load_artifact(options["model"])
        self.facts = {"model": artifact.manifest.name, "fingerprint": artifact.reading_fingerprint}

    def run(self, rows: Sequence[Row]) -> Sequence[Output]:
        outputs = _each(self._read, rows)
        read = [(number, output["memory"]) for number, output in enumerate(outputs) if isinstance(output, dict)]
        for first in range(0, len(read), _MEMORIES_AT_ONCE):
            numbers, memories = zip(*read[first : first + _MEMORIES_AT_ONCE], strict=True)
            try:
                prepared: Sequence[Output] = self._prepare(memories)
            except MnemorankError as error:
                prepared = [error] * len(numbers)
            for number, output in zip(numbers, prepared, strict=True):
                outputs[number] = output
        return outputs

    def _prepare(self, memories: Sequence[Memory]) -> list[Output]:
        reader = PassageReader.create(self._model.scorer, self._model.manifest, None)
        passages = reader.read(memories)
        states = self._scorer.states([each.passage for each in passages])
        outputs: list[dict[str, Any]] = [
            {"id": memory.id, "keys": [], "states": [], "embeddings": []} for memory in memories
        ]
        for each, state in zip(passages, states, strict=True):
            output = outputs[each.owner]
            output["keys"].append(self._scorer.key(each.passage))
            output["states"].append(state.to_bytes())
            output["embeddings"].append(state.embedding.astype("float32").tolist())
        return list(outputs)

    def _read(self, record: Record, _line: int) -> dict[str, Any]:
        return {"memory": Memory.of(dict(record.values), field=self.options.get("field"), location=record.location)}

    def close(self) -> None:
        self._model.close()


class Mine(Task):
    """Examples with hard negatives from a corpus, which every worker holds in memory."""

    columns = _EXAMPLE_COLUMNS

    def __init__(self, options: Mapping[str, Any], inputs: Sequence[str], threads: int | None) -> None:
        super().__init__(options, inputs, threads)
        examples = []
        for row in _all_rows(inputs):
            if isinstance(row.record, Record):
                try:
                    examples.append(_example(row.record, row.line))
                except InputError:
                    continue  # a failure of its block, which is listed there
        corpus = None
        if options.get("corpus"):
            corpus = [_corpus_memory(row) for row in _all_rows(options["corpus"])]
        mining = NegativeMining.from_dict(options.get("mining", {}))
        self._miner = NegativeMiner(examples, mining, corpus=corpus, seed=options.get("seed", 0))

    def run(self, rows: Sequence[Row]) -> Sequence[Output]:
        return _each(self._mine, rows)

    def _mine(self, record: Record, line: int) -> dict[str, Any]:
        return _example_output(self._miner.extend([_example(record, line)], [line - 1])[0])


class Label(Task):
    """Examples with the grades of a language model as labels."""

    columns = _EXAMPLE_COLUMNS

    def __init__(self, options: Mapping[str, Any], inputs: Sequence[str], threads: int | None) -> None:
        super().__init__(options, inputs, threads)
        teacher = dict(options["teacher"])
        variable, concurrency = teacher.pop("key_variable", None), teacher.pop("concurrency", 4)
        key = os.environ.get(variable) if variable else None
        if variable and not key:
            raise InputError("the environment variable is not set", field=variable)
        # Rows are graded at the same time, each on its own, so that one that fails does not take others with it.
        self._teacher = Teacher(TeacherSettings(**teacher, key=key, concurrency=1))
        self._concurrency = concurrency

    def run(self, rows: Sequence[Row]) -> Sequence[Output]:
        with ThreadPoolExecutor(self._concurrency, thread_name_prefix="label") as pool:
            return list(pool.map(lambda row: _each(self._label, [row])[0], rows))

    def _label(self, record: Record, line: int) -> dict[str, Any]:
        first, last = self.options.get("ranks", (1, 30))
        return _example_output(self._teacher.label([_example(record, line)], ranks=(first, last))[0])

    def close(self) -> None:
        self._teacher.close()


class Evaluate(Task):
    """The ranking of each example's candidates, and its metrics."""

    columns = (
        ("id", "string"),
        ("kind", "string"),
        ("ranking", "list<int32>"),
        ("abstained", "bool"),
        *((name, "double") for name in MEASURES),
    )

    def __init__(self, options: Mapping[str, Any], inputs: Sequence[str], threads: int | None) -> None:
        super().__init__(options, inputs, threads)
        model = options["model"]
        self._system = load_system(model, model_only=options.get("model_only", False), **_threads(model, threads))

    def run(self, rows: Sequence[Row]) -> Sequence[Output]:
        return _each(self._evaluate, rows)

    def _evaluate(self, record: Record, line: int) -> dict[str, Any]:
        example = _example(record, line)
        prediction = predict(self._system, *question_of(example))
        values = measure([Judgments.of(example)], [prediction.ranking])
        return {
            "id": example.id,
            "kind": example.kind,
            "ranking": list(prediction.ranking),
            "abstained": prediction.abstained,
            **{name: float(value[0]) for name, value in values.items()},
        }

    @classmethod
    def summarize(cls, tables: Iterator[Any]) -> dict[str, Any]:
        """Return the mean of each metric over the questions with a relevant memory."""
        names = [name for name, kind in cls.columns if kind == "double"]
        values: dict[str, list[float]] = {name: [] for name in names}
        for table in tables:
            for name in names:
                values[name] += table.column(name).drop_null().to_pylist()
        means = {name: sum(known) / len(known) if known else None for name, known in values.items()}
        return {"questions_with_relevant": len(values["map"]), **means}


TASKS: Mapping[str, type[Task]] = {
    "score": Score,
    "prepare": Prepare,
    "mine": Mine,
    "label": Label,
    "evaluate": Evaluate,
}


def _each(function: Callable[[Record, int], dict[str, Any]], rows: Sequence[Row]) -> list[Output]:
    """Call a function for each row; its errors are the outputs of their rows, and do not concern others."""
    outputs: list[Output] = []
    for row in rows:
        if isinstance(row.record, InputError):
            outputs.append(row.record)
            continue
        try:
            outputs.append(function(row.record, row.line))
        except _FATAL:
            raise
        except MnemorankError as error:
            outputs.append(error)
    return outputs


def _all_rows(paths: Sequence[str]) -> Iterator[Row]:
    for block in plan_blocks(find_inputs(paths), _ROWS_READ_AT_ONCE):
        yield from read_block(block)


def _corpus_memory(row: Row) -> Memory:
    if isinstance(row.record, InputError):
        raise row.record
    return Memory.of(dict(row.record.values), location=row.record.location)


def _memories(record: Record, field: str | None) -> list[Memory]:
    """Return the memories of a row: those in `candidates` or `memories`, or the row itself without its query."""
    for name in ("candidates", "memories"):
        if name in record.values:
            values = record.get(name, list)
            if not values:
                raise record.error("expected at least one memory", name, code="empty")
            return [
                Memory.of(_unlabeled(value), field=field, path=record.field(f"{name}.{i}"), location=record.location)
                for i, value in enumerate(values)
            ]
    own = {key: value for key, value in record.values.items() if key != "query"}
    return [Memory.of(_unlabeled(own), field=field, location=record.location)]


def _unlabeled(value: Any) -> Any:
    return {k: v for k, v in value.items() if k not in ("label", "weight")} if isinstance(value, dict) else value


def _example(record: Record, line: int) -> Example:
    return example_from_record(record, str(line - 1))


def _example_output(example: Example) -> dict[str, Any]:
    return {"id": example.id, JSON_COLUMN: json.dumps(example_to_record(example), ensure_ascii=False)}


def _id(record: Record) -> str | None:
    value = record.values.get("id")
    return None if value is None else str(value)


def _threads(model: str, threads: int | None) -> dict[str, Any]:
    """Return the option `threads`, if the model has one."""
    try:
        has_threads = load_artifact(model).manifest.family in ("onnx", "split")
    except ArtifactError:  # the name of a baseline, or wrong, which loading it reports
        return {}
    return {"threads": threads} if has_threads else {}
