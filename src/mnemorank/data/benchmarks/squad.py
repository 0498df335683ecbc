"""SQuAD and CUAD: a question against the paragraphs of its article, or the clauses of its contract."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mnemorank._internal.jsonio import read_json
from mnemorank.data.benchmarks.loader import Loader, field, labelled, loaders, objects
from mnemorank.data.examples import Example, text_of
from mnemorank.errors import InputError
from mnemorank.memory.memory import Memory

# A paragraph longer than this is a whole document (CUAD's contracts), and is cut into its clauses.
LONGEST_PARAGRAPH = 6000
SHORTEST_CLAUSE = 200
_BREAK = re.compile(r"\n\s*")


@dataclass(frozen=True, slots=True)
class Passage:
    """A paragraph, or the clause of one that runs from `start`."""

    paragraph: int
    start: int
    text: str

    def holds(self, paragraph: int, start: int, length: int) -> bool:
        return paragraph == self.paragraph and start < self.start + len(self.text) and self.start < start + length


def read(path: Path) -> Iterator[Example]:
    """Relevant is what holds an answer, or a part of one. Questions marked `is_impossible` are unanswerable."""
    whole = read_json(path)
    if not isinstance(whole, dict):
        raise InputError(f"{path}: expected an object with `data`, got {type(whole).__name__}")
    for number, document in enumerate(objects(whole, "data", str(path))):
        yield from _questions(document, f"{path}: data {number}")


def _questions(document: dict[str, Any], where: str) -> Iterator[Example]:
    paragraphs = objects(document, "paragraphs", where)
    title = str(document.get("title", where))
    passages = [
        passage
        for index, paragraph in enumerate(paragraphs)
        for passage in _passages(index, text_of(paragraph, "context", f"{where}: paragraphs {index}"))
    ]
    memories = [Memory(passage.text, id=f"{passage.paragraph}:{passage.start}") for passage in passages]
    for index, paragraph in enumerate(paragraphs):
        for number, question in enumerate(objects(paragraph, "qas", f"{where}: paragraphs {index}")):
            here = f"{where}: paragraphs {index}: qas {number}"
            answers = [] if question.get("is_impossible") is True else _answers(question, here)
            yield Example(
                id=str(question.get("id", here)),
                query=text_of(question, "question", here),
                candidates=labelled(
                    memories, (any(p.holds(index, start, length) for start, length in answers) for p in passages)
                ),
                group=title,
                source="squad",
                answerable=bool(answers),
            )


def _answers(question: dict[str, Any], where: str) -> list[tuple[int, int]]:
    return [
        (field(answer, "answer_start", int, where), max(len(field(answer, "text", str, where)), 1))
        for answer in objects(question, "answers", where)
    ]


def _passages(paragraph: int, text: str) -> Iterator[Passage]:
    """The paragraph, or its clauses: lines, with short ones (headings) joined to the next."""
    if len(text) <= LONGEST_PARAGRAPH:
        yield Passage(paragraph, 0, text)
        return
    start = 0
    for line_break in _BREAK.finditer(text):
        if line_break.start() - start >= SHORTEST_CLAUSE:
            yield Passage(paragraph, start, text[start : line_break.start()])
            start = line_break.end()
    if text[start:].strip():
        yield Passage(paragraph, start, text[start:])


loaders.add(Loader("squad", "SQuAD or CUAD: paragraphs or clauses of the document as candidates", read))
