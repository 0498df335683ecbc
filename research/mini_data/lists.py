"""What the makers share: a made list, records of a file and their parts, BM25 over a pool, and question words."""

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
class MadeList:
    """A question with right and wrong memories, each a text or a dict of a memory's fields."""

    query: str
    right: Sequence[str | Fields]
    wrong: Sequence[str | Fields]

    def candidates(self) -> list[Fields]:
        labelled = [(memory, 1) for memory in self.right] + [(memory, 0) for memory in self.wrong]
        return [{**(m if isinstance(m, dict) else {"text": m}), "label": label} for m, label in labelled]


def records(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a packed file."""
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        yield from map(json.loads, stream)


def records_of(name: str, lists: Path, data: Path) -> list[dict[str, Any]]:
    """The lines of a file of lists; one whose name has a folder is of the data."""
    return list(records((data if "/" in name else lists) / f"{name}.jsonl.gz"))


def drawn(
    counts: Mapping[str, int], lists: Path, data: Path, rng: random.Random
) -> Iterator[tuple[str, dict[str, Any]]]:
    """So many records of each file of lists, with its name."""
    for name, count in counts.items():
        found = records_of(name, lists, data)
        for record in rng.sample(found, min(count, len(found))):
            yield name, record


def parted(record: Mapping[str, Any], near: int, far: int, rng: random.Random) -> tuple[list[Fields], list[Fields]]:
    """The right memories of a list, and of the wrong ones those nearest by words and some others."""
    fields = [{key: value for key, value in each.items() if key != "label"} for each in record["candidates"]]
    labels = [each["label"] for each in record["candidates"]]
    shared = bm25(record["query"], [each["text"] for each in fields])
    others = sorted((i for i, label in enumerate(labels) if label <= 0), key=lambda i: -shared[i])
    right = [each for each, label in zip(fields, labels, strict=True) if label > 0]
    return right, [fields[i] for i in first_and_some(others, near, far, rng)]


def near_and_some(query: str, texts: Sequence[str], near: int, others: int, rng: random.Random) -> list[int]:
    """Positions of the texts that share the most words with the query, and of some of the rest at random."""
    order = [int(i) for i in (-bm25(query, texts)).argsort(kind="stable")]
    return first_and_some(order, near, others, rng)


def first_and_some(order: Sequence[int], first: int, others: int, rng: random.Random) -> list[int]:
    """The first of an order, and some of the rest at random."""
    rest = order[first:]
    return [*order[:first], *rng.sample(rest, min(others, len(rest)))]


class Pool:
    """Texts to search by BM25."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = texts
        self._index = bm25s.BM25()
        self._index.index(bm25s.tokenize(list(texts), stopwords="en", show_progress=False), show_progress=False)

    def top(self, queries: Sequence[str], count: int) -> list[list[int]]:
        """For each query the positions of the best texts, best first."""
        if not queries:
            return []
        tokens = bm25s.tokenize(list(queries), stopwords="en", show_progress=False)
        found, _ = self._index.retrieve(tokens, k=min(count, len(self.texts)), show_progress=False)
        return [[int(position) for position in row] for row in found]

    def hard(self, query: str, banned: Collection[str], count: int, among: int, rng: random.Random) -> list[str]:
        """Some of the best texts for the query that are not banned."""
        best = [self.texts[i] for i in self.top([query], among + len(banned))[0]]
        kept = [text for text in best if text not in banned][:among]
        rng.shuffle(kept)
        return kept[:count]


def number(text: str) -> int:
    """A large number that depends on the text alone, for splits."""
    return int(hashlib.md5(text.encode(), usedforsecurity=False).hexdigest(), 16)


def some_words(words: Sequence[str], low: int, high: int, rng: random.Random) -> list[str]:
    """A run of words."""
    length = min(len(words), rng.randint(low, high))
    start = rng.randint(0, max(0, len(words) - length))
    return list(words[start : start + length])


def thinned(words: Sequence[str], share: float, rng: random.Random) -> list[str]:
    """The words with a share of them left out, never all."""
    return [word for word in words if rng.random() > share] or list(words)
