"""Run systems on a benchmark and collect their predictions."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from mnemorank.data.benchmarks import Loader
from mnemorank.data.examples import Example
from mnemorank.errors import InputError
from mnemorank.evaluation.baselines import baselines
from mnemorank.evaluation.cache import ResultCache, file_digest
from mnemorank.evaluation.metrics import Judgments, neutral_order
from mnemorank.evaluation.protocol import Prediction, Question, System
from mnemorank.memory.memory import Memory
from mnemorank.text.sentences import sentence_starts
from mnemorank.text.words import terms

T = TypeVar("T")

ProgressWrapper = Callable[[Iterable[Example]], Iterator[Example]]

_EXCERPT_LENGTH = 320


@dataclass(frozen=True, slots=True)
class JudgedQuestion:
    """What metrics and report need of a question.

    :param first_stage: the ranking of the first stage.
    :param excerpts: excerpts of the candidates that the report may show, by position.
    """

    id: str
    query: str
    kind: str | None
    judgments: Judgments
    first_stage: tuple[int, ...]
    excerpts: dict[int, str]


@dataclass(frozen=True, slots=True)
class BenchmarkRun:
    """The predictions of all systems on a benchmark.

    :param predictions: by system, one per question.
    :param pairs_metric: the name of the accuracy on `Example.pairs`.
    :param overhead_seconds: the time spent outside of the systems, such as on reading the file.
    """

    task: str
    path: str
    questions: list[JudgedQuestion] = field(default_factory=list)
    predictions: dict[str, list[Prediction]] = field(default_factory=dict)
    pairs_metric: str = "pairwise_accuracy"
    overhead_seconds: float = 0.0


def run_benchmark(
    loader: Loader,
    path: Path,
    systems: Sequence[System],
    *,
    limit: int | None = None,
    cache: Path | None = None,
    progress: ProgressWrapper = iter,
) -> BenchmarkRun:
    """Run all systems on all questions of a benchmark.

    :param limit: use only the first questions.
    :param cache: the folder of the result cache; None computes everything.
    :param progress: wraps the examples to report progress.
    """
    names = unique_names(systems)
    dataset = file_digest(loader.files(path)) if cache else ""
    caches = [
        ResultCache(cache, {"task": loader.name, "dataset": dataset, "system": system.fingerprint})
        if cache and system.fingerprint
        else None
        for system in systems
    ]
    run = BenchmarkRun(
        loader.name, str(path), predictions={name: [] for name in names}, pairs_metric=loader.pairs_metric
    )
    started = time.perf_counter()
    system_seconds = 0.0
    try:
        for number, example in enumerate(progress(read_ahead(islice(loader.read(path), limit)))):
            question, positions = question_of(example)
            predictions = {}
            for system, name, system_cache in zip(systems, names, caches, strict=True):
                prediction = system_cache.get(number) if system_cache else None
                if prediction is None:
                    prediction = predict(system, question, positions)
                    system_seconds += prediction.seconds
                    if system_cache:
                        system_cache.put(number, prediction)
                run.predictions[name].append(prediction)
                predictions[name] = prediction
            run.questions.append(_judged_question(example, question, positions, predictions))
    finally:
        for system_cache in caches:
            if system_cache:
                system_cache.close()
    if not run.questions:
        raise InputError("contains no questions", code="empty", location=str(path))
    return replace(run, overhead_seconds=max(time.perf_counter() - started - system_seconds, 0.0))


def unique_names(systems: Sequence[System]) -> list[str]:
    """Return the names of the systems; repeated names get a number."""
    names: list[str] = []
    for system in systems:
        number = 2
        name = system.name
        while name in names:
            name = f"{system.name} ({number})"
            number += 1
        names.append(name)
    return names


def question_of(example: Example) -> tuple[Question, list[int]]:
    """Return what systems see, and the position in the example of each of its memories."""
    positions = neutral_order(example)
    memories = [example.candidates[i].memory for i in positions]
    return Question(example.id, example.query, memories, example.query_time), positions


def predict(system: System, question: Question, positions: Sequence[int]) -> Prediction:
    """Return a system's prediction for the candidates in their original order, and the time it took."""
    started = time.perf_counter()
    prediction = system.rank(question)
    seconds = time.perf_counter() - started
    return replace(prediction.in_file_order(positions), seconds=seconds)


def _judged_question(
    example: Example, question: Question, positions: Sequence[int], predictions: Mapping[str, Prediction]
) -> JudgedQuestion:
    first_stage = baselines["first-stage"]
    first_stage_prediction = predictions.get(first_stage.name) or predict(first_stage, question, positions)
    judgments = Judgments.of(example)
    shown = {i for prediction in predictions.values() for i in prediction.ranking[:3]}
    shown |= set(np.flatnonzero(judgments.relevant)[:5].tolist())
    return JudgedQuestion(
        id=example.id,
        query=example.query,
        kind=example.kind,
        judgments=judgments,
        first_stage=first_stage_prediction.ranking,
        excerpts={i: excerpt(example.query, example.candidates[i].memory) for i in sorted(shown)},
    )


def excerpt(query: str, memory: Memory, length: int = _EXCERPT_LENGTH) -> str:
    """Return date and text; a long text starts at the sentence that shares the most words with the query."""
    text = " ".join(memory.text.split()) if len(memory.text) <= length else _best_part(query, memory.text, length)
    dates = " – ".join(str(date) for date in (memory.occurred_start, memory.occurred_end) if date)
    dates = dates or (str(memory.mentioned_at) if memory.mentioned_at else "")
    ongoing = " – ongoing" if memory.is_ongoing else ""
    return f"[{dates}{ongoing}] {text}" if dates else text


def _best_part(query: str, text: str, length: int) -> str:
    query_terms = set(terms(query))
    starts = sentence_starts(text[:100_000])
    ends = [*starts[1:], len(text)]
    shared = [len(query_terms & set(terms(text[a : min(b, a + 2000)]))) for a, b in zip(starts, ends, strict=True)]
    start = starts[shared.index(max(shared))]
    part = " ".join(text[start : start + length * 2].split())
    is_complete = len(part) <= length and start + length * 2 >= len(text)
    return ("… " if start else "") + (part if is_complete else part[: length - 1].rstrip() + "…")


def read_ahead(items: Iterator[T], buffer_size: int = 8) -> Iterator[T]:
    """Yield the same items, read in a background thread while the caller works on earlier ones.

    An error of the reader is raised where its item would come; closing this iterator stops the reader.
    """
    ready: queue.Queue[tuple[str, Any]] = queue.Queue(maxsize=buffer_size)
    stopped = threading.Event()

    def put(entry: tuple[str, Any]) -> None:
        while not stopped.is_set():
            try:
                ready.put(entry, timeout=0.1)
                return
            except queue.Full:
                continue

    def work() -> None:
        try:
            for item in items:
                put(("item", item))
                if stopped.is_set():
                    return
            put(("end", None))
        except BaseException as error:  # raised again in the caller's thread
            put(("error", error))

    thread = threading.Thread(target=work, name="mnemorank-read-ahead", daemon=True)
    thread.start()
    try:
        while True:
            event, value = ready.get()
            if event == "end":
                return
            if event == "error":
                raise value
            yield value
    finally:
        stopped.set()
        thread.join()
