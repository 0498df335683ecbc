"""Shared by all makers: training lists, reading of list files, BM25 over a pool of texts, and random words."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bm25s

from mnemorank.text.bm25 import bm25

Fields = dict[str, Any]
MONTHS = "January February March April May June July August September October November December".split()


@dataclass(frozen=True, slots=True)
class TrainingList:
    """A query with relevant and irrelevant memories, each a text or the fields of a memory."""

    query: str
    positives: Sequence[str | Fields]
    negatives: Sequence[str | Fields]

    def candidates(self) -> list[Fields]:
        """Return all memories with their labels, as in the `lists` format."""
        labeled = [(memory, 1) for memory in self.positives] + [(memory, 0) for memory in self.negatives]
        return [{**(m if isinstance(m, dict) else {"text": m}), "label": label} for m, label in labeled]


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        yield from map(json.loads, stream)


def read_lists(name: str, lists: Path, data: Path) -> list[dict[str, Any]]:
    """Read a file of lists.

    :param name: `NAME` for a file of another maker in `lists`, `FOLDER/NAME` for a file in `data`.
    """
    return list(read_records((data if "/" in name else lists) / f"{name}.jsonl.gz"))


def sample_lists(
    counts: Mapping[str, int], lists: Path, data: Path, rng: random.Random
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a number of random records of each file, with the name of the file."""
    for name, count in counts.items():
        records = read_lists(name, lists, data)
        for record in rng.sample(records, min(count, len(records))):
            yield name, record


def narrow_lists(path: Path, rng: random.Random, negatives: int = 12) -> list[TrainingList]:
    """Keep some negatives of long lists: half of them the most similar to the query, half at random."""
    narrowed = []
    for record in read_records(path):
        positives, kept = split_candidates(record, negatives // 2, negatives - negatives // 2, rng)
        if positives and kept:
            narrowed.append(TrainingList(record["query"], positives, kept))
    return narrowed


def split_candidates(
    record: Mapping[str, Any], similar: int, others: int, rng: random.Random
) -> tuple[list[Fields], list[Fields]]:
    """Return the positives of a list, and the negatives most similar to the query plus some others."""
    fields = [{key: value for key, value in each.items() if key != "label"} for each in record["candidates"]]
    labels = [each["label"] for each in record["candidates"]]
    scores = bm25(record["query"], [each["text"] for each in fields])
    negatives = sorted((i for i, label in enumerate(labels) if label <= 0), key=lambda i: -scores[i])
    positives = [each for each, label in zip(fields, labels, strict=True) if label > 0]
    return positives, [fields[i] for i in head_and_sample(negatives, similar, others, rng)]


def similar_and_others(query: str, texts: Sequence[str], similar: int, others: int, rng: random.Random) -> list[int]:
    """Return the positions of the texts most similar to the query by BM25, and of some others at random."""
    order = [int(i) for i in (-bm25(query, texts)).argsort(kind="stable")]
    return head_and_sample(order, similar, others, rng)


def head_and_sample(order: Sequence[int], head: int, others: int, rng: random.Random) -> list[int]:
    """Return the first items of a sequence and a random sample of the rest."""
    rest = order[head:]
    return [*order[:head], *rng.sample(rest, min(others, len(rest)))]


class TextPool:
    """Texts to search by BM25."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = texts
        self._index = bm25s.BM25()
        self._index.index(bm25s.tokenize(list(texts), stopwords="en", show_progress=False), show_progress=False)

    def search(self, queries: Sequence[str], count: int) -> list[list[int]]:
        """Return the positions of the best texts for each query, best first."""
        if not queries:
            return []
        tokens = bm25s.tokenize(list(queries), stopwords="en", show_progress=False)
        positions, _ = self._index.retrieve(tokens, k=min(count, len(self.texts)), show_progress=False)
        return [[int(position) for position in row] for row in positions]

    def sample_negatives(
        self, query: str, excluded: Collection[str], count: int, depth: int, rng: random.Random
    ) -> list[str]:
        """Return a sample of the best `depth` texts for the query that are not excluded."""
        best = [self.texts[i] for i in self.search([query], depth + len(excluded))[0]]
        kept = [text for text in best if text not in excluded][:depth]
        rng.shuffle(kept)
        return kept[:count]


def stable_hash(text: str) -> int:
    """Return a large number that depends on the text alone, for splits."""
    return int(hashlib.md5(text.encode(), usedforsecurity=False).hexdigest(), 16)


def random_span(words: Sequence[str], shortest: int, longest: int, rng: random.Random) -> list[str]:
    """Return some consecutive words."""
    length = min(len(words), rng.randint(shortest, longest))
    start = rng.randint(0, max(0, len(words) - length))
    return list(words[start : start + length])


def drop_words(words: Sequence[str], share: float, rng: random.Random) -> list[str]:
    """Return the words with a random share left out, but never none."""
    return [word for word in words if rng.random() > share] or list(words)
