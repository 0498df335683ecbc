"""Long lists with fewer wrong memories: half the nearest by words, half drawn at random."""

from __future__ import annotations

import random
from pathlib import Path

from shared import MadeList, records

from mnemorank.ranking.lexical import bm25


def make(path: Path, rng: random.Random, wrong: int = 12) -> list[MadeList]:
    made = []
    for record in records(path):
        fields = [{key: v for key, v in each.items() if key != "label"} for each in record["candidates"]]
        labels = [each["label"] for each in record["candidates"]]
        shared = bm25(record["query"], [each["text"] for each in fields])
        others = sorted((i for i, label in enumerate(labels) if label <= 0), key=lambda i: -shared[i])
        near, far = others[: wrong // 2], others[wrong // 2 :]
        chosen = near + rng.sample(far, min(wrong - len(near), len(far)))
        right = [each for each, label in zip(fields, labels, strict=True) if label > 0]
        if right and chosen:
            made.append(MadeList(record["query"], right, [fields[i] for i in chosen]))
    return made
