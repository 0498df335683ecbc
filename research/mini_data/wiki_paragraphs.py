"""Lists from the training questions and paragraphs of 2WikiMultiHopQA.

Paragraphs of dev questions are excluded from everything but `wiki`, which has the training questions with their own
paragraphs, some of which belong to dev questions too.
"""

from __future__ import annotations

import gzip
import json
import random
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import agent_questions
from lists import TextPool, TrainingList, drop_words, random_span, stable_hash

DEV_QUESTIONS = 500
_OPENINGS = [
    "What",
    "Who",
    "Which",
    "Where",
    "When",
    "In what year",
    "What is",
    "Who is",
    "Which person",
    "How many",
    "",
]
_NAME = re.compile(r"[A-Z][\w.'’-]+(?: (?:of|the|de|von|van|and|di|la|le|al|bin|[A-Z][\w.'’-]+))+")
_PLACEHOLDERS = ["the person", "someone", "which one", "the one", "a", "this"]


@dataclass(frozen=True, slots=True)
class Paragraph:
    title: str
    sentences: tuple[str, ...]

    @property
    def text(self) -> str:
        return " ".join(self.sentences)

    @property
    def name(self) -> str:
        """The title without the disambiguation: `Titan (moon)` → `Titan`."""
        return re.sub(r"\s*\(.*?\)$", "", self.title)


def make(path: Path, rng: random.Random) -> dict[str, list[TrainingList]]:
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        rows = sorted(json.load(stream), key=lambda row: stable_hash(row["_id"]))
    dev, train = rows[:DEV_QUESTIONS], rows[DEV_QUESTIONS:]
    in_dev = {_letters(" ".join(sentences)) for row in dev for _, sentences in row["context"]}
    by_text = {
        " ".join(sentences): Paragraph(title, tuple(sentences)) for row in train for title, sentences in row["context"]
    }
    paragraphs = [paragraph for text, paragraph in by_text.items() if _letters(text) not in in_dev and len(text) > 40]
    pool = TextPool([f"{p.title} {p.text}" for p in paragraphs])
    rng.shuffle(train)
    return {
        "wiki": _question_lists(train[:7000], paragraphs, pool, rng),
        "bridge": _bridge_lists(paragraphs, pool, rng),
        "ict": _sentence_lists(paragraphs, pool, rng),
        "title": _title_lists(paragraphs, pool, rng),
        **agent_questions.make_paragraph_lists([(p.title, p.text) for p in paragraphs], rng),
    }


def _letters(text: str) -> str:
    """Only letters and digits: the data has both `Blois (1345-1404)` and `Blois( 1345- 1404)`."""
    return re.sub(r"\W+", "", text.lower())


def _write(paragraph: Paragraph, rng: random.Random) -> str:
    """A paragraph with its title, mostly as `Title: text`."""
    draw = rng.random()
    if draw < 0.92:
        return paragraph.title + (": " if draw < 0.72 else ". " if draw < 0.84 else " ") + paragraph.text
    return paragraph.text


def _question_lists(
    rows: list[dict[str, Any]], paragraphs: list[Paragraph], pool: TextPool, rng: random.Random
) -> list[TrainingList]:
    """The questions of the data set: two gold paragraphs, four of their distractors, one of the whole pool."""
    made = []
    for row, top in zip(rows, pool.search([row["question"] for row in rows], 12), strict=True):
        gold = {title for title, _ in row["supporting_facts"]}
        context = [Paragraph(title, tuple(sentences)) for title, sentences in row["context"]]
        positives = [p for p in context if p.title in gold]
        negatives = [p for p in context if p.title not in gold]
        texts = {p.text for p in negatives}
        others = [paragraphs[i] for i in top if paragraphs[i].title not in gold and paragraphs[i].text not in texts]
        rng.shuffle(positives)
        rng.shuffle(negatives)
        made.append(
            TrainingList(
                row["question"],
                [_write(p, rng) for p in positives[:2]],
                [_write(p, rng) for p in [*negatives[:4], *others[:1]]],
            )
        )
    return [each for each in made if each.positives and each.negatives]


def _bridge_lists(
    paragraphs: list[Paragraph], pool: TextPool, rng: random.Random, limit: int = 7000
) -> list[TrainingList]:
    """Two-hop pseudo-questions: words of a paragraph that mentions another, with its name masked, and of the other."""
    links = _links(paragraphs, rng)
    rng.shuffle(links)
    uses: dict[str, int] = defaultdict(int)
    questions: list[tuple[str, Paragraph, Paragraph]] = []
    for first, sentence, name, second in links:
        if uses[first.title] >= 1 or uses[second.title] >= 2:
            continue
        uses[first.title] += 1
        uses[second.title] += 1
        questions.append((_bridge_question(first, sentence, name, second, rng), first, second))
        if len(questions) == limit:
            break
    results = pool.search([query for query, _, _ in questions], 15)
    made = []
    for (query, first, second), top in zip(questions, results, strict=True):
        negatives = [paragraphs[i] for i in top if paragraphs[i].title not in (first.title, second.title)][:9]
        rng.shuffle(negatives)
        positives = [_write(p, rng) for p in (first, second)]
        made.append(TrainingList(query, positives, [_write(p, rng) for p in negatives[:4]]))
    return made


def _links(paragraphs: list[Paragraph], rng: random.Random) -> list[tuple[Paragraph, str, str, Paragraph]]:
    """Paragraph, sentence, name in it, and the paragraph about that name."""
    by_name: dict[str, list[Paragraph]] = defaultdict(list)
    for paragraph in paragraphs:
        if " " in paragraph.name and len(paragraph.text.split()) > 12:
            by_name[paragraph.name.lower()].append(paragraph)
    return [
        (paragraph, sentence, name, rng.choice(by_name[name.lower()]))
        for paragraph in paragraphs
        for sentence in paragraph.sentences
        for name in _NAME.findall(sentence)
        if name.lower() in by_name and paragraph.name.lower() != name.lower()
    ]


def _bridge_question(first: Paragraph, sentence: str, name: str, second: Paragraph, rng: random.Random) -> str:
    masked = sentence.replace(name, rng.choice(_PLACEHOLDERS))
    keeps_name = rng.random() < 0.5
    words = (masked if keeps_name else masked.replace(first.name, "")).split()
    about_first = " ".join(drop_words(random_span(words, 6, 14, rng), 0.15, rng))
    if keeps_name and first.name not in about_first:
        about_first = f"{first.name} {about_first}"
    description = rng.choice(second.sentences)
    for word in [second.name, *second.name.split()]:
        description = description.replace(word, "")
    words = re.sub(r"\(.*?\)", "", description).split()
    about_second = " ".join(drop_words(random_span(words, 3, 9, rng), 0.15, rng))
    parts = [about_first, about_second]
    rng.shuffle(parts)
    joined = (
        f"{rng.choice(_OPENINGS)} {parts[0]} {rng.choice(['that', 'who', 'and', 'of the', 'which', ''])} {parts[1]}"
    )
    return " ".join(joined.split()).rstrip(".,; ") + rng.choice(["?", "?", ""])


def _sentence_lists(
    paragraphs: list[Paragraph], pool: TextPool, rng: random.Random, limit: int = 4000
) -> list[TrainingList]:
    """Inverse cloze task: a shortened sentence, often without the name of the title, with its paragraph."""
    usable = [p for p in paragraphs if len(p.sentences) >= 2 and len(p.text.split()) > 25]
    rng.shuffle(usable)
    questions = []
    for paragraph in usable[:limit]:
        sentence = rng.choice(paragraph.sentences[1:] if rng.random() < 0.6 else paragraph.sentences)
        if rng.random() < 0.4:
            sentence = sentence.replace(paragraph.name, rng.choice(["who", "which", "it", ""]))
        words = drop_words(random_span(sentence.split(), 5, 14, rng), 0.25, rng)
        query = " ".join([rng.choice(_OPENINGS), *words]).strip().rstrip(".,;") + rng.choice(["?", ""])
        questions.append((query, paragraph))
    made = []
    for (query, paragraph), top in _with_results(questions, pool):
        negatives = [paragraphs[i] for i in top if paragraphs[i].title != paragraph.title][:9]
        rng.shuffle(negatives)
        made.append(TrainingList(query, [_write(paragraph, rng)], [_write(p, rng) for p in negatives[:4]]))
    return made


def _title_lists(
    paragraphs: list[Paragraph], pool: TextPool, rng: random.Random, limit: int = 1500
) -> list[TrainingList]:
    """A title with its paragraph, written without the title."""
    usable = [p for p in paragraphs if 15 < len(p.text.split()) < 120]
    rng.shuffle(usable)
    forms = ["{}", "Who or what is {}?", "tell me about {}", "{}?"]
    questions = [(rng.choice(forms).format(p.title), p) for p in usable[:limit]]
    made = []
    for (query, paragraph), top in _with_results(questions, pool):
        negatives = [paragraphs[i].text for i in top if paragraphs[i].title != paragraph.title]
        rng.shuffle(negatives)
        made.append(TrainingList(query, [paragraph.text], negatives[:4]))
    return made


def _with_results(
    questions: list[tuple[str, Paragraph]], pool: TextPool
) -> Iterator[tuple[tuple[str, Paragraph], list[int]]]:
    """Yield each question with the positions of the best texts for it."""
    return zip(questions, pool.search([query for query, _ in questions], 15), strict=True)
