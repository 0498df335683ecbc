"""Lists with the negatives that a model ranks highest: the others teach it nothing."""

from __future__ import annotations

import random
from pathlib import Path

from lists import TrainingList, sample_lists, split_candidates

from mnemorank.errors import QueryTooLongError
from mnemorank.memory.memory import Memory
from mnemorank.model.model import Model

# The number of lists to sample from each file.
SAMPLES = {
    "questions": 1440, "questions-news": 940, "questions-sessions": 660, "questions-pairs": 600,
    "lists/squad.train": 700, "realmem": 530, "passages": 280, "wiki": 250, "hops": 110, "personas": 60,
}  # fmt: skip
# The number of negatives to score: the most similar ones, and others.
SIMILAR, OTHERS = 7, 2
NEGATIVES = 4
# A list is easy if all negatives are this many logits below the positives; one in three of those is kept.
EASY_MARGIN, EASY_SHARE = 7.0, 1 / 3
# For questions written by agents, a negative this far above a positive that scores well is probably relevant too.
DOUBTFUL_MARGIN, GOOD_SCORE = 2.0, 1.0


def make(lists: Path, data: Path, model_name: str, rng: random.Random) -> list[TrainingList]:
    """Make lists with the negatives that the model ranks highest.

    :param lists: the folder with the files of the other makers.
    """
    model = Model.load(model_name)
    made = []
    for name, record in sample_lists(SAMPLES, lists, data, rng):
        positives, negatives = split_candidates(record, SIMILAR, OTHERS, rng)
        if not positives or not negatives:
            continue
        try:
            scores = model.score(record["query"], [Memory(**fields) for fields in positives + negatives]).raw
        except QueryTooLongError:
            continue  # training drops such queries too
        best, worst = max(scores[: len(positives)]), min(scores[: len(positives)])
        ranked = sorted(zip(scores[len(positives) :], negatives, strict=True), key=lambda pair: -pair[0])
        if name.startswith("questions") and best > GOOD_SCORE:
            ranked = [pair for pair in ranked if pair[0] <= best + DOUBTFUL_MARGIN]
        if ranked and (worst - ranked[0][0] <= EASY_MARGIN or rng.random() < EASY_SHARE):
            made.append(TrainingList(record["query"], positives, [fields for _, fields in ranked[:NEGATIVES]]))
    return made
