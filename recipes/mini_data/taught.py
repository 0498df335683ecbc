"""Lists with a teacher's scores: a model's own logit and, beside it, an encoder's likeness by late interaction, the
mean over the question's tokens of the likeness to the likest token of the text.

A larger bi-encoder, used so and not trained for it at all, tells SQuAD's paragraphs apart better than `mini` does,
where its cosines do not; both together do better than either there, on turns of conversations and on what a chat turn
needs (docs/mini.md, thirteenth sitting). It reads every text once, whatever the number of questions.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from shared import Fields, MadeList, first_and_some, records_of

from mnemorank.errors import QueryTooLongError
from mnemorank.memory import Memory
from mnemorank.model import Model, Scoring

# Which lists are taught, by the name of what is written, and how many of each.
TAUGHT = {
    "squad-taught": ("lists/squad.train", 4200), "asked-articles-taught": ("asked-articles", 2500),
    "articles-taught": ("articles", 6500), "passages-taught": ("passages", 2000),
    "conversations-taught": ("conversations", 1440), "realmem-taught": ("realmem", 975),
    "personas-taught": ("personas", 300),
}  # fmt: skip
# Logits for a likeness of 1, by which the mixture is best on most dev sets; and what a right text has more, since the
# teacher errs too.
SCALE, RIGHT = 50.0, 2.0
# Of the wrong texts, those that the encoder finds likest, and some others.
NEAR, FAR = 3, 1
LONGEST, AT_ONCE = 320, 16


def make(
    lists: Path, data: Path, folder: str, model: str, rng: random.Random, limit: int | None = None
) -> Iterator[tuple[str, list[MadeList]]]:
    """Each kind of lists with its name.

    :param lists: the folder in which the other makers' files are.
    :param folder: of the encoder, in the Hugging Face layout.
    :param model: a name or folder, whose logits count beside the encoder's likeness.
    """
    encoder, beside = Encoder(folder), Model.load(model)
    for name, (source, count) in TAUGHT.items():
        found = records_of(source, lists, data)
        yield name, taught(rng.sample(found, min(count, len(found)))[:limit], encoder, beside, rng)


def taught(found: Sequence[dict[str, Any]], encoder: Encoder, model: Scoring, rng: random.Random) -> list[MadeList]:
    """The lists, each candidate with the teacher's score; of the wrong ones the nearest and some others."""
    texts = encoder.tokens({candidate["text"] for record in found for candidate in record["candidates"]})
    questions = encoder.tokens({record["query"] for record in found})
    made = []
    for record in found:
        question = questions[record["query"]].float()
        likeness = [
            (question @ texts[candidate["text"]].float().T).max(dim=1).values.mean().item()
            for candidate in record["candidates"]
        ]
        labels = [candidate["label"] > 0 for candidate in record["candidates"]]
        right = [i for i, label in enumerate(labels) if label]
        others = sorted((i for i, label in enumerate(labels) if not label), key=lambda i: -likeness[i])
        kept = right + first_and_some(others, NEAR, FAR, rng)
        fields = [{k: v for k, v in record["candidates"][i].items() if k != "label"} for i in kept]
        try:
            own = model.score(record["query"], [Memory(**each) for each in fields]).raw
        except QueryTooLongError:
            continue  # training leaves such a question out too
        scores = [logit + SCALE * likeness[i] + RIGHT * labels[i] for logit, i in zip(own, kept, strict=True)]
        scored: list[Fields] = [
            {**each, "teacher_score": round(float(score), 4)} for each, score in zip(fields, scores, strict=True)
        ]
        made.append(MadeList(record["query"], scored[: len(right)], scored[len(right) :]))
    return made


class Encoder:
    """Vectors of tokens, in bfloat16: near enough for a teacher."""

    def __init__(self, folder: str) -> None:
        import torch
        from transformers import AutoModel, AutoTokenizer

        from mnemorank.training.base import positions_of

        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._model = AutoModel.from_pretrained(folder).eval().to(torch.bfloat16)
        self._longest = min(LONGEST, positions_of(self._model.config) or LONGEST)

    def tokens(self, texts: set[str]) -> dict[str, Any]:
        """The tokens of each text as unit vectors, without those that frame it."""
        order = sorted(texts, key=lambda text: (len(text), text))
        parts = [order[first : first + AT_ONCE] for first in range(0, len(order), AT_ONCE)]
        return {text: vectors for part in parts for text, vectors in self._read(part)}

    def _read(self, texts: list[str]) -> Iterator[tuple[str, Any]]:
        import torch

        inputs = self._tokenizer(texts, padding=True, truncation=True, max_length=self._longest, return_tensors="pt")
        with torch.inference_mode():
            vectors = torch.nn.functional.normalize(self._model(**inputs).last_hidden_state.float(), dim=-1)
        for text, own, mask in zip(texts, vectors, inputs["attention_mask"], strict=True):
            # Half the bits: an article's paragraphs have some hundred tokens each.
            yield text, own[1 : int(mask.sum()) - 1].half()
