"""Ask every contestant every question of a benchmark."""

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
from mnemorank.evaluation.baselines import Answer, Contestant, Question, baselines
from mnemorank.evaluation.cache import Cache, Outcome
from mnemorank.evaluation.excerpts import excerpt
from mnemorank.evaluation.files import digest_of_files
from mnemorank.evaluation.metrics import Judged, neutral_order

T = TypeVar("T")

Progress = Callable[[Iterable[Example]], Iterator[Example]]


@dataclass(frozen=True, slots=True)
class Asked:
    """What is kept of a question for measures and report.

    :param first: the first stage's ranking.
    :param texts: excerpts of the candidates that the report may show, by position.
    """

    id: str
    query: str
    kind: str | None
    judged: Judged
    first: tuple[int, ...]
    texts: dict[int, str]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """:param outcomes: by contestant, one a question, in the order of `asked`.
    :param loading: seconds spent outside of the contestants: loading, shuffling, keeping.
    """

    task: str
    path: str
    asked: list[Asked] = field(default_factory=list)
    outcomes: dict[str, list[Outcome]] = field(default_factory=dict)
    loading: float = 0.0


def evaluate(
    loader: Loader,
    path: Path,
    contestants: Sequence[Contestant],
    *,
    limit: int | None = None,
    cache: Path | None = None,
    progress: Progress = iter,
) -> Evaluation:
    """:param limit: only the first questions.
    :param cache: folder of results to use and to add to; None asks everything anew.
    :param progress: wraps the questions, to show how far it is.
    """
    names = unique_names(contestants)
    digest = digest_of_files(loader.files(path)) if cache else ""
    caches = [
        Cache(cache, {"task": loader.name, "dataset": digest, "contestant": one.fingerprint})
        if cache and one.fingerprint
        else None
        for one in contestants
    ]
    evaluation = Evaluation(loader.name, str(path), outcomes={name: [] for name in names})
    started = time.perf_counter()
    asking = 0.0
    try:
        for number, example in enumerate(progress(read_ahead(islice(loader.read(path), limit)))):
            question, order = _question(example)
            answers = {}
            for one, name, known in zip(contestants, names, caches, strict=True):
                outcome = known.get(number) if known else None
                if outcome is None:
                    outcome = _ask(one, question, order)
                    asking += outcome.seconds
                    if known:
                        known.put(number, outcome)
                evaluation.outcomes[name].append(outcome)
                answers[name] = outcome
            evaluation.asked.append(_asked(example, question, order, answers))
    finally:
        for known in caches:
            if known:
                known.close()
    if not evaluation.asked:
        raise InputError(f"{path}: holds no questions")
    return replace(evaluation, loading=max(time.perf_counter() - started - asking, 0.0))


def unique_names(contestants: Sequence[Contestant]) -> list[str]:
    """Names as given; a second one of the same name gets a number."""
    names: list[str] = []
    for one in contestants:
        number = 2
        name = one.name
        while name in names:
            name = f"{one.name} ({number})"
            number += 1
        names.append(name)
    return names


def _question(example: Example) -> tuple[Question, list[int]]:
    """What contestants see, and which candidate stands where in it."""
    order = neutral_order(example)
    memories = [example.candidates[i].memory for i in order]
    return Question(example.id, example.query, memories, example.query_time), order


def _ask(contestant: Contestant, question: Question, order: Sequence[int]) -> Outcome:
    started = time.perf_counter()
    answer = contestant.answer(question)
    seconds = time.perf_counter() - started
    back = np.empty(len(order), dtype=np.int64)
    back[list(order)] = np.arange(len(order))
    in_file_order = Answer(
        scores=answer.scores[back],
        relevance=None if answer.relevance is None else answer.relevance[back],
        abstained=answer.abstained,
    )
    return Outcome(tuple(order[i] for i in answer.ranking()), in_file_order, seconds)


def _asked(example: Example, question: Question, order: Sequence[int], outcomes: Mapping[str, Outcome]) -> Asked:
    first_stage = baselines["first-stage"]
    known = outcomes.get(first_stage.name) or _ask(first_stage, question, order)
    judged = Judged.of(example)
    shown = {i for outcome in outcomes.values() for i in outcome.ranking[:3]} | set(
        np.flatnonzero(judged.relevant)[:5].tolist()
    )
    return Asked(
        id=example.id,
        query=example.query,
        kind=example.kind,
        judged=judged,
        first=known.ranking,
        texts={i: excerpt(example.query, example.candidates[i].memory) for i in sorted(shown)},
    )


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
