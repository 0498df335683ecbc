"""Lists with a teacher's scores: an encoder's, by late interaction. The mean over the question's tokens of the
likeness to the likest token of the text.

A larger bi-encoder, used so and not trained for it at all, tells SQuAD's paragraphs apart better than `mini` does
(docs/mini.md, twelfth sitting), where its cosines do not. It reads every text once, whatever the number of questions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lists import MadeList, records_of

# Which lists are taught, by the name of what is written.
TAUGHT = {
    "squad-taught": "lists/squad.train", "asked-articles-taught": "asked-articles", "articles-taught": "articles",
    "passages-taught": "passages",
}  # fmt: skip
# Logits for a likeness of 1, so that the teacher's softmax is neither flat nor sure; and what a right text has more.
SCALE, RIGHT = 40.0, 2.0
LONGEST, AT_ONCE = 320, 16


def make(lists: Path, data: Path, folder: str, limit: int | None = None) -> dict[str, list[MadeList]]:
    """:param lists: the folder in which the other makers' files are.
    :param folder: of the encoder, in the Hugging Face layout.
    """
    encoder = Encoder(folder)
    return {name: taught(records_of(source, lists, data)[:limit], encoder) for name, source in TAUGHT.items()}


def taught(found: Sequence[dict[str, Any]], encoder: Encoder) -> list[MadeList]:
    """The lists, each candidate with the encoder's score; a right one's is higher, since the encoder errs too."""
    texts = encoder.tokens({candidate["text"] for record in found for candidate in record["candidates"]})
    questions = encoder.tokens({record["query"] for record in found})
    made = []
    for record in found:
        scored: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
        for candidate in record["candidates"]:
            fields = {key: value for key, value in candidate.items() if key != "label"}
            is_right = candidate["label"] > 0
            likeness = questions[record["query"]].float() @ texts[candidate["text"]].float().T
            score = SCALE * likeness.max(dim=1).values.mean().item() + RIGHT * is_right
            scored[is_right].append({**fields, "teacher_score": round(score, 4)})
        made.append(MadeList(record["query"], scored[True], scored[False]))
    return made


class Encoder:
    def __init__(self, folder: str) -> None:
        from transformers import AutoModel, AutoTokenizer

        from mnemorank.training.base_model import max_positions

        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._model = AutoModel.from_pretrained(folder).eval()
        self._longest = min(LONGEST, max_positions(self._model.config) or LONGEST)

    def tokens(self, texts: set[str]) -> dict[str, Any]:
        """The tokens of each text as unit vectors, without those that frame it."""
        order = sorted(texts, key=lambda text: (len(text), text))
        parts = [order[first : first + AT_ONCE] for first in range(0, len(order), AT_ONCE)]
        return {text: vectors for part in parts for text, vectors in self._read(part)}

    def _read(self, texts: list[str]) -> Iterator[tuple[str, Any]]:
        import torch

        inputs = self._tokenizer(texts, padding=True, truncation=True, max_length=self._longest, return_tensors="pt")
        with torch.inference_mode():
            vectors = torch.nn.functional.normalize(self._model(**inputs).last_hidden_state, dim=-1)
        for text, own, mask in zip(texts, vectors, inputs["attention_mask"], strict=True):
            # Half the bits: an article's paragraphs have some hundred tokens each.
            yield text, own[1 : int(mask.sum()) - 1].half()
