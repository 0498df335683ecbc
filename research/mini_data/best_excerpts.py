"""Lists of excerpts, for passage re-scoring: of each text the one that a model scores highest.

The data does not say which sentences contain the answer. The best excerpt of a relevant text is taken as the answer,
unless the model scores it too low; the best excerpt of an irrelevant text is the one that misleads the model.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
from lists import Fields, TrainingList, sample_lists, split_candidates

from mnemorank.errors import QueryTooLongError
from mnemorank.memory.memory import Memory
from mnemorank.model.model import Model
from mnemorank.text.sentences import excerpts

# The number of lists to sample from each file.
SAMPLES = {
    "lists/squad.train": 5008, "questions-articles": 4000, "passages": 3500, "questions-news": 6000,
    "lists/medquad.train": 900,
}  # fmt: skip
NEGATIVES = 3
# If the best excerpt of a relevant text scores lower, the model did not find the answer.
LOWEST_SCORE = -3.0
# A list is easy if all negatives are this many logits below the positive; one in three of those is kept.
EASY_MARGIN, EASY_SHARE = 5.0, 1 / 3
# For questions written by agents, an excerpt this far above that of the relevant text probably answers too.
DOUBTFUL_MARGIN = 2.0


def make(lists: Path, data: Path, model_name: str, rng: random.Random) -> list[TrainingList]:
    """Make lists of the excerpts that the model scores highest.

    :param lists: the folder with the files of the other makers.
    """
    model = Model.load(model_name)
    made = []
    for name, record in sample_lists(SAMPLES, lists, data, rng):
        positives, negatives = split_candidates(record, NEGATIVES, 0, rng)
        pieces = [_excerpts(fields) for fields in positives[:1] + negatives]
        if not positives or not negatives or all(len(parts) == 1 for parts in pieces):
            continue
        try:
            scores = model.score(record["query"], [Memory(**part) for parts in pieces for part in parts]).raw
        except QueryTooLongError:
            continue  # training drops such queries too
        by_text = np.split(scores, np.cumsum([len(parts) for parts in pieces])[:-1])
        best, *others = [(float(s.max()), parts[s.argmax()]) for s, parts in zip(by_text, pieces, strict=True)]
        # Two paragraphs may share sentences.
        others = [other for other in others if other[1]["text"] != best[1]["text"]]
        if not name.startswith("lists/"):
            others = [other for other in others if other[0] <= best[0] + DOUBTFUL_MARGIN]
        if not others or best[0] < LOWEST_SCORE:
            continue
        if best[0] - max(score for score, _ in others) <= EASY_MARGIN or rng.random() < EASY_SHARE:
            made.append(TrainingList(record["query"], [best[1]], [part for _, part in others]))
    return made


def _excerpts(fields: Fields) -> list[Fields]:
    return [{**fields, "text": text} for text in excerpts(fields["text"]) or [fields["text"]]]
