"""Lists of excerpts: of each text the one that a model finds best, so that it learns to tell them apart.

Which sentences answer is nowhere stated. The best excerpt of a right text is taken for the answer, unless the model
finds nothing in it; the best one of a wrong text is what misleads it.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
from lists import Fields, MadeList, drawn, parted

from mnemorank.errors import QueryTooLongError
from mnemorank.memory.memory import Memory
from mnemorank.model.model import Model
from mnemorank.text.sentences import excerpts

# How many lists of each kind are read closely.
READ = {
    "lists/squad.train": 5008, "asked-articles": 4000, "passages": 3500, "asked-news": 6000, "lists/medquad.train": 900,
}  # fmt: skip
WRONG = 3
# In a right text whose best excerpt scores lower, the model has not found what answers.
FOUND = -3.0
# A list is known when nothing wrong comes within so many logits of what is right; one in three of those is kept.
KNOWN, KEPT_KNOWN = 5.0, 1 / 3
# Where agents asked, what is so much better than a right text likely answers too.
DOUBTFUL = 2.0


def make(lists: Path, data: Path, name_or_folder: str, rng: random.Random) -> list[MadeList]:
    """:param lists: the folder in which the other makers' files are."""
    model = Model.load(name_or_folder)
    made = []
    for name, record in drawn(READ, lists, data, rng):
        right, wrong = parted(record, WRONG, 0, rng)
        pieces = [_pieces(fields) for fields in right[:1] + wrong]
        if not right or not wrong or all(len(own) == 1 for own in pieces):
            continue
        try:
            scores = model.score(record["query"], [Memory(**piece) for own in pieces for piece in own]).raw
        except QueryTooLongError:
            continue  # training leaves such a question out too
        of_text = np.split(scores, np.cumsum([len(own) for own in pieces])[:-1])
        best, *others = [(float(own.max()), each[own.argmax()]) for own, each in zip(of_text, pieces, strict=True)]
        # Two paragraphs may share sentences.
        others = [other for other in others if other[1]["text"] != best[1]["text"]]
        if not name.startswith("lists/"):
            others = [other for other in others if other[0] <= best[0] + DOUBTFUL]
        if not others or best[0] < FOUND:
            continue
        if best[0] - max(score for score, _ in others) <= KNOWN or rng.random() < KEPT_KNOWN:
            made.append(MadeList(record["query"], [best[1]], [piece for _, piece in others]))
    return made


def _pieces(fields: Fields) -> list[Fields]:
    return [{**fields, "text": text} for text in excerpts(fields["text"]) or [fields["text"]]]
