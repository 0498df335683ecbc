"""Lists from 2WikiMultiHopQA's training questions and paragraphs.

Paragraphs that a dev question shows are left out of the pool: of `bridge`, `ict`, `title`, what was asked, and what is
drawn from the whole pool. `wiki` has the training questions with their own paragraphs, some of which dev questions show
too.
"""

from __future__ import annotations

import gzip
import json
import random
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import agent_questions as asked
from lists import MadeList, Pool, number, some_words, thinned

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
_SOMEONE = ["the person", "someone", "which one", "the one", "a", "this"]


@dataclass(frozen=True, slots=True)
class Paragraph:
    title: str
    sentences: tuple[str, ...]

    @property
    def text(self) -> str:
        return " ".join(self.sentences)

    @property
    def name(self) -> str:
        """The title without what tells namesakes apart: `Titan (moon)` → `Titan`."""
        return re.sub(r"\s*\(.*?\)$", "", self.title)


def make(path: Path, rng: random.Random) -> dict[str, list[MadeList]]:
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        rows = sorted(json.load(stream), key=lambda row: number(row["_id"]))
    dev, train = rows[:DEV_QUESTIONS], rows[DEV_QUESTIONS:]
    shown_in_dev = {_letters(" ".join(sentences)) for row in dev for _, sentences in row["context"]}
    found = {
        " ".join(sentences): Paragraph(title, tuple(sentences)) for row in train for title, sentences in row["context"]
    }
    paragraphs = [own for text, own in found.items() if _letters(text) not in shown_in_dev and len(text) > 40]
    pool = Pool([f"{own.title} {own.text}" for own in paragraphs])
    rng.shuffle(train)
    return {
        "wiki": _questions(train[:7000], paragraphs, pool, rng),
        "bridge": _bridges(paragraphs, pool, rng),
        "ict": _sentences(paragraphs, pool, rng),
        "title": _titles(paragraphs, pool, rng),
        **asked.of_paragraphs([(own.title, own.text) for own in paragraphs], rng),
    }


def _letters(text: str) -> str:
    """A text without what its writings differ in: the data has `Blois (1345-1404)` and `Blois( 1345- 1404)`."""
    return re.sub(r"\W+", "", text.lower())


def _shown(own: Paragraph, rng: random.Random) -> str:
    """A paragraph with its title, mostly as `Title: text`."""
    draw = rng.random()
    if draw < 0.92:
        return own.title + (": " if draw < 0.72 else ". " if draw < 0.84 else " ") + own.text
    return own.text


def _questions(
    rows: list[dict[str, Any]], paragraphs: list[Paragraph], pool: Pool, rng: random.Random
) -> list[MadeList]:
    """The dataset's own questions: two gold paragraphs, four of its distractors, one of the whole pool."""
    made = []
    for row, top in zip(rows, pool.top([row["question"] for row in rows], 12), strict=True):
        gold = {title for title, _ in row["supporting_facts"]}
        context = [Paragraph(title, tuple(sentences)) for title, sentences in row["context"]]
        right, wrong = [p for p in context if p.title in gold], [p for p in context if p.title not in gold]
        known = {p.text for p in wrong}
        more = [paragraphs[i] for i in top if paragraphs[i].title not in gold and paragraphs[i].text not in known]
        rng.shuffle(right)
        rng.shuffle(wrong)
        made.append(
            MadeList(
                row["question"],
                [_shown(p, rng) for p in right[:2]],
                [_shown(p, rng) for p in [*wrong[:4], *more[:1]]],
            )
        )
    return [one for one in made if one.right and one.wrong]


def _bridges(paragraphs: list[Paragraph], pool: Pool, rng: random.Random, most: int = 7000) -> list[MadeList]:
    """Two-hop pseudo-questions: words of a paragraph that names another, its name masked, and words of the other."""
    links = _links(paragraphs, rng)
    rng.shuffle(links)
    seen: dict[str, int] = defaultdict(int)
    asked: list[tuple[str, Paragraph, Paragraph]] = []
    for first, sentence, name, second in links:
        if seen[first.title] >= 1 or seen[second.title] >= 2:
            continue
        seen[first.title] += 1
        seen[second.title] += 1
        asked.append((_bridge_question(first, sentence, name, second, rng), first, second))
        if len(asked) == most:
            break
    made = []
    for (query, first, second), top in zip(asked, pool.top([query for query, _, _ in asked], 15), strict=True):
        wrong = [paragraphs[i] for i in top if paragraphs[i].title not in (first.title, second.title)][:9]
        rng.shuffle(wrong)
        made.append(MadeList(query, [_shown(p, rng) for p in (first, second)], [_shown(p, rng) for p in wrong[:4]]))
    return made


def _links(paragraphs: list[Paragraph], rng: random.Random) -> list[tuple[Paragraph, str, str, Paragraph]]:
    """Paragraph, sentence, name in it, and the paragraph of that name."""
    by_name: dict[str, list[Paragraph]] = defaultdict(list)
    for own in paragraphs:
        if " " in own.name and len(own.text.split()) > 12:
            by_name[own.name.lower()].append(own)
    return [
        (own, sentence, name, rng.choice(by_name[name.lower()]))
        for own in paragraphs
        for sentence in own.sentences
        for name in _NAME.findall(sentence)
        if name.lower() in by_name and own.name.lower() != name.lower()
    ]


def _bridge_question(first: Paragraph, sentence: str, name: str, second: Paragraph, rng: random.Random) -> str:
    masked = sentence.replace(name, rng.choice(_SOMEONE))
    keeps_name = rng.random() < 0.5
    one = " ".join(
        thinned(some_words((masked if keeps_name else masked.replace(first.name, "")).split(), 6, 14, rng), 0.15, rng)
    )
    if keeps_name and first.name not in one:
        one = f"{first.name} {one}"
    told = rng.choice(second.sentences)
    for word in [second.name, *second.name.split()]:
        told = told.replace(word, "")
    two = " ".join(thinned(some_words(re.sub(r"\(.*?\)", "", told).split(), 3, 9, rng), 0.15, rng))
    parts = [one, two]
    rng.shuffle(parts)
    joined = (
        f"{rng.choice(_OPENINGS)} {parts[0]} {rng.choice(['that', 'who', 'and', 'of the', 'which', ''])} {parts[1]}"
    )
    return " ".join(joined.split()).rstrip(".,; ") + rng.choice(["?", "?", ""])


def _sentences(paragraphs: list[Paragraph], pool: Pool, rng: random.Random, most: int = 4000) -> list[MadeList]:
    """A shortened sentence, often without the title's name → its paragraph."""
    fit = [own for own in paragraphs if len(own.sentences) >= 2 and len(own.text.split()) > 25]
    rng.shuffle(fit)
    asked = []
    for own in fit[:most]:
        sentence = rng.choice(own.sentences[1:] if rng.random() < 0.6 else own.sentences)
        if rng.random() < 0.4:
            sentence = sentence.replace(own.name, rng.choice(["who", "which", "it", ""]))
        words = thinned(some_words(sentence.split(), 5, 14, rng), 0.25, rng)
        asked.append((" ".join([rng.choice(_OPENINGS), *words]).strip().rstrip(".,;") + rng.choice(["?", ""]), own))
    return [_found(query, own, top, paragraphs, rng) for (query, own), top in _searched(asked, pool)]


def _titles(paragraphs: list[Paragraph], pool: Pool, rng: random.Random, most: int = 1500) -> list[MadeList]:
    """A title → its paragraph, which does not show it."""
    fit = [own for own in paragraphs if 15 < len(own.text.split()) < 120]
    rng.shuffle(fit)
    forms = ["{}", "Who or what is {}?", "tell me about {}", "{}?"]
    asked = [(rng.choice(forms).format(own.title), own) for own in fit[:most]]
    made = []
    for (query, own), top in _searched(asked, pool):
        wrong = [paragraphs[i].text for i in top if paragraphs[i].title != own.title]
        rng.shuffle(wrong)
        made.append(MadeList(query, [own.text], wrong[:4]))
    return made


def _searched(asked: list[tuple[str, Paragraph]], pool: Pool) -> Any:
    return zip(asked, pool.top([query for query, _ in asked], 15), strict=True)


def _found(query: str, own: Paragraph, top: list[int], paragraphs: list[Paragraph], rng: random.Random) -> MadeList:
    wrong = [paragraphs[i] for i in top if paragraphs[i].title != own.title][:9]
    rng.shuffle(wrong)
    return MadeList(query, [_shown(own, rng)], [_shown(p, rng) for p in wrong[:4]])
