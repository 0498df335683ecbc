"""SQuAD and CUAD: the paragraphs of a question's article, or the clauses of its contract, are the candidates."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mnemorank._internal.jsonio import read_json
from mnemorank.data.benchmarks.loader import Loader, get_field, get_objects, label_candidates, loaders
from mnemorank.data.examples import Example
from mnemorank.data.formats import required_text
from mnemorank.errors import InputError
from mnemorank.memory.memory import Memory

# A longer paragraph is a whole document, such as a contract of CUAD, and is split into clauses.
MAX_PARAGRAPH = 6000
MIN_CLAUSE = 200
_LINE_BREAK = re.compile(r"\n\s*")


@dataclass(frozen=True, slots=True)
class Clause:
    """A paragraph, or a part of it that begins at character `start`."""

    paragraph: int
    start: int
    text: str

    def overlaps(self, paragraph: int, start: int, length: int) -> bool:
        return paragraph == self.paragraph and start < self.start + len(self.text) and self.start < start + length


def read(path: Path) -> Iterator[Example]:
    """Yield questions; text that overlaps an answer is relevant. `is_impossible` marks unanswerable questions."""
    content = read_json(path)
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected an object with `data`, got {type(content).__name__}")
    for number, document in enumerate(get_objects(content, "data", str(path))):
        yield from _questions(document, f"{path}: data {number}")


def _questions(document: dict[str, Any], where: str) -> Iterator[Example]:
    paragraphs = get_objects(document, "paragraphs", where)
    title = str(document.get("title", where))
    clauses = [
        clause
        for index, paragraph in enumerate(paragraphs)
        for clause in _clauses(index, required_text(paragraph, "context", f"{where}: paragraphs {index}"))
    ]
    memories = [Memory(clause.text, id=f"{clause.paragraph}:{clause.start}") for clause in clauses]
    for index, paragraph in enumerate(paragraphs):
        for number, question in enumerate(get_objects(paragraph, "qas", f"{where}: paragraphs {index}")):
            here = f"{where}: paragraphs {index}: qas {number}"
            answers = [] if question.get("is_impossible") is True else _answers(question, here)
            yield Example(
                id=str(question.get("id", here)),
                query=required_text(question, "question", here),
                candidates=label_candidates(
                    memories, (any(c.overlaps(index, start, length) for start, length in answers) for c in clauses)
                ),
                group=title,
                source="squad",
                answerable=bool(answers),
            )


def _answers(question: dict[str, Any], where: str) -> list[tuple[int, int]]:
    return [
        (get_field(answer, "answer_start", int, where), max(len(get_field(answer, "text", str, where)), 1))
        for answer in get_objects(question, "answers", where)
    ]


def _clauses(paragraph: int, text: str) -> Iterator[Clause]:
    """Split a long paragraph at line breaks; short lines, such as headings, are joined to the next."""
    if len(text) <= MAX_PARAGRAPH:
        yield Clause(paragraph, 0, text)
        return
    start = 0
    for line_break in _LINE_BREAK.finditer(text):
        if line_break.start() - start >= MIN_CLAUSE:
            yield Clause(paragraph, start, text[start : line_break.start()])
            start = line_break.end()
    if text[start:].strip():
        yield Clause(paragraph, start, text[start:])


loaders.add(Loader("squad", "SQuAD or CUAD, paragraphs or clauses as candidates", read))
