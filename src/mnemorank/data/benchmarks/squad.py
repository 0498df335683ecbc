"""SQuAD and CUAD: the paragraphs of a question's article, or the clauses of its contract, are the candidates."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mnemorank._internal.jsonio import read_json
from mnemorank.data.benchmarks.loader import Loader, label_candidates, loaders
from mnemorank.data.examples import Example
from mnemorank.data.records import Record
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
        raise InputError(f"expected an object with `data`, got {type(content).__name__}", location=str(path))
    for document in Record(content, str(path)).objects("data"):
        yield from _questions(document)


def _questions(document: Record) -> Iterator[Example]:
    paragraphs = document.objects("paragraphs")
    title = str(document.values.get("title", f"{document.location}: {document.path}"))
    clauses = [
        clause for index, paragraph in enumerate(paragraphs) for clause in _clauses(index, paragraph.text("context"))
    ]
    memories = [Memory(clause.text, id=f"{clause.paragraph}:{clause.start}") for clause in clauses]
    for index, paragraph in enumerate(paragraphs):
        for question in paragraph.objects("qas"):
            answers = [] if question.values.get("is_impossible") is True else _answers(question)
            yield Example(
                id=str(question.values.get("id", f"{question.location}: {question.path}")),
                query=question.text("question"),
                candidates=label_candidates(
                    memories, (any(c.overlaps(index, start, length) for start, length in answers) for c in clauses)
                ),
                group=title,
                source="squad",
                answerable=bool(answers),
            )


def _answers(question: Record) -> list[tuple[int, int]]:
    return [
        (answer.get("answer_start", int), max(len(answer.get("text", str)), 1))
        for answer in question.objects("answers")
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
