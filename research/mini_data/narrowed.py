"""Long lists with fewer wrong memories: half the nearest by words, half drawn at random."""

from __future__ import annotations

import random
from pathlib import Path

from lists import MadeList, parted, records


def make(path: Path, rng: random.Random, wrong: int = 12) -> list[MadeList]:
    made = []
    for record in records(path):
        right, chosen = parted(record, wrong // 2, wrong - wrong // 2, rng)
        if right and chosen:
            made.append(MadeList(record["query"], right, chosen))
    return made
