"""Lists with the wrong memories that a model ranks highest: what it has learned already teaches it nothing."""

from __future__ import annotations

import random
from pathlib import Path

from lists import MadeList, drawn, parted

from mnemorank.errors import QueryTooLongError
from mnemorank.memory.memory import Memory
from mnemorank.model.model import Model

# How many lists of each kind are read again; those without a folder are made by this package.
ASKED_AGAIN = {
    "asked": 1440, "asked-news": 940, "asked-sessions": 660, "asked-pairs": 600, "lists/squad.train": 700,
    "realmem": 530, "passages": 280, "wiki": 250, "hops": 110, "personas": 60,
}  # fmt: skip
NEAR, FAR = 7, 2
KEPT = 4
# A list is known when nothing wrong comes within so many logits of what is right; one in three of those is kept.
KNOWN, KEPT_KNOWN = 7.0, 1 / 3
# Where agents wrote the question, a wrong text so far above a right one that scores well is likely an answer too.
DOUBTFUL, WELL = 2.0, 1.0


def make(lists: Path, data: Path, name_or_folder: str, rng: random.Random) -> list[MadeList]:
    """:param lists: the folder in which the other makers' files are."""
    model = Model.load(name_or_folder)
    made = []
    for name, record in drawn(ASKED_AGAIN, lists, data, rng):
        right, wrong = parted(record, NEAR, FAR, rng)
        if not right or not wrong:
            continue
        try:
            scores = model.score(record["query"], [Memory(**fields) for fields in right + wrong]).raw
        except QueryTooLongError:
            continue  # training leaves such a question out too
        best, worst = max(scores[: len(right)]), min(scores[: len(right)])
        ranked = sorted(zip(scores[len(right) :], wrong, strict=True), key=lambda pair: -pair[0])
        if name.startswith("asked") and best > WELL:
            ranked = [pair for pair in ranked if pair[0] <= best + DOUBTFUL]
        if ranked and (worst - ranked[0][0] <= KNOWN or rng.random() < KEPT_KNOWN):
            made.append(MadeList(record["query"], right, [fields for _, fields in ranked[:KEPT]]))
    return made
