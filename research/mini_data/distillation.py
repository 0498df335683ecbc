"""Lists with the scores of a teacher: late interaction of an encoder (mean over query tokens of the largest cosine).

A larger bi-encoder used this way, without training, ranks the paragraphs of SQuAD better than `mini`, while its cosines
of whole texts do not (research/log.md). Each text is encoded once for all queries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lists import TrainingList, read_lists

# The files to make, and what they are made from.
SOURCES = {
    "squad-distilled": "lists/squad.train", "questions-articles-distilled": "questions-articles",
    "articles-distilled": "articles", "passages-distilled": "passages",
}  # fmt: skip
# Logits per unit of similarity, chosen so that the teacher's softmax is neither flat nor certain; and what is added for
# a relevant text, because the teacher errs too.
SCALE, POSITIVE_BONUS = 40.0, 2.0
MAX_TOKENS, BATCH_SIZE = 320, 16


def make(lists: Path, data: Path, encoder_folder: str, limit: int | None = None) -> dict[str, list[TrainingList]]:
    """Make lists with the teacher's scores.

    :param lists: the folder with the files of the other makers.
    :param encoder_folder: the teacher, a folder in the Hugging Face layout.
    """
    encoder = Encoder(encoder_folder)
    return {name: add_scores(read_lists(source, lists, data)[:limit], encoder) for name, source in SOURCES.items()}


def add_scores(records: Sequence[dict[str, Any]], encoder: Encoder) -> list[TrainingList]:
    """Return the lists with a `teacher_score` for each candidate."""
    texts = encoder.encode({candidate["text"] for record in records for candidate in record["candidates"]})
    queries = encoder.encode({record["query"] for record in records})
    made = []
    for record in records:
        by_label: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
        for candidate in record["candidates"]:
            fields = {key: value for key, value in candidate.items() if key != "label"}
            is_positive = candidate["label"] > 0
            similarity = queries[record["query"]].float() @ texts[candidate["text"]].float().T
            score = SCALE * similarity.max(dim=1).values.mean().item() + POSITIVE_BONUS * is_positive
            by_label[is_positive].append({**fields, "teacher_score": round(score, 4)})
        made.append(TrainingList(record["query"], by_label[True], by_label[False]))
    return made


class Encoder:
    def __init__(self, folder: str) -> None:
        from transformers import AutoModel, AutoTokenizer

        from mnemorank.training.base_model import max_positions

        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._model = AutoModel.from_pretrained(folder).eval()
        self._max_tokens = min(MAX_TOKENS, max_positions(self._model.config) or MAX_TOKENS)

    def encode(self, texts: set[str]) -> dict[str, Any]:
        """Return a unit vector for each token of each text, special tokens excluded."""
        order = sorted(texts, key=lambda text: (len(text), text))
        batches = [order[first : first + BATCH_SIZE] for first in range(0, len(order), BATCH_SIZE)]
        return {text: vectors for batch in batches for text, vectors in self._encode_batch(batch)}

    def _encode_batch(self, texts: list[str]) -> Iterator[tuple[str, Any]]:
        import torch

        inputs = self._tokenizer(texts, padding=True, truncation=True, max_length=self._max_tokens, return_tensors="pt")
        with torch.inference_mode():
            vectors = torch.nn.functional.normalize(self._model(**inputs).last_hidden_state, dim=-1)
        for text, rows, mask in zip(texts, vectors, inputs["attention_mask"], strict=True):
            # Half precision saves memory: the paragraphs of an article have some hundred tokens each.
            yield text, rows[1 : int(mask.sum()) - 1].half()
