"""CrossEncoder: the interface of sentence-transformers' class of that name, with any model of ours."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mnemorank._internal.arrays import logit, sigmoid
from mnemorank.artifact.calibration import model_odds
from mnemorank.errors import InputError, MissingExtraError
from mnemorank.memory.memory import MemoryLike, read_memories
from mnemorank.model.model import score_with_truncation
from mnemorank.reranker import Reranker

logger = logging.getLogger(__name__)
_EMPTY_LOGIT = float(logit(np.zeros(1))[0])


class CrossEncoder:
    """Scores pairs of a query and a text, as a replacement for sentence-transformers' `CrossEncoder`.

        model = CrossEncoder()
        scores = model.predict([("Where does Ruby work?", "Ruby works at Aurora."), ("Where does Ruby work?", "Tea.")])
        ranking = model.rank("Where does Ruby work?", ["Tea.", "Ruby works at Aurora."], return_documents=True)

    A text may also be a memory with dates, as for `Reranker.rerank`. Scores are the model's relevance, a
    calibrated probability. First stage, supersession and the other steps of `Reranker.rerank` do not apply.

    :param model_name_or_path: a model as in `Reranker`, or a `Reranker`.
    :param max_length: ignored, since long texts are read in passages.
    :param device: for PyTorch models; `cpu` for all.
    :param model_options: for the model's scorer, such as `threads`.
    """

    num_labels = 1

    def __init__(
        self,
        model_name_or_path: str | Path | Reranker = "mini",
        *,
        max_length: int | None = None,
        device: str | None = None,
        **model_options: Any,
    ) -> None:
        if isinstance(model_name_or_path, Reranker):
            self.reranker = model_name_or_path
            return
        options = model_options if device in (None, "cpu") else {**model_options, "device": device}
        self.reranker = Reranker(model_name_or_path, **options)

    def predict(
        self,
        inputs: Sequence[Any] | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        activation_fn: Callable[[Any], Any] | None = None,
        apply_softmax: bool | None = False,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        *,
        prompt: str | None = None,
        sentences: Sequence[Any] | None = None,
        **ignored: Any,
    ) -> Any:
        """Return the relevance of each pair as a numpy array of float32; for a single pair, a number.

        :param inputs: pairs of a query and a text or memory, or one pair. `sentences` is its older name.
        :param batch_size: ignored, like everything about progress bars, devices and processes. The model's token
            budget decides.
        :param activation_fn: a PyTorch function to apply to the logits instead of the calibration.
        :param convert_to_numpy: False for a list of tensors.
        :param convert_to_tensor: return a tensor.
        :param prompt: the instruction, for models that take one.
        """
        pairs = inputs if inputs is not None else sentences
        if pairs is None:
            raise InputError("expected pairs of a query and a text", field="inputs")
        is_single = len(pairs) == 2 and isinstance(pairs[0], str)
        relevance, logits = self._score_pairs([tuple(pairs)] if is_single else list(pairs), prompt)
        if activation_fn is not None:
            activated = activation_fn(_torch().as_tensor(logits, dtype=_torch().float32))
            scores = activated if convert_to_tensor else activated.cpu().numpy()
        else:
            scores = _torch().as_tensor(relevance) if convert_to_tensor else relevance
        if not convert_to_numpy and not convert_to_tensor:
            scores = list(_torch().as_tensor(scores))
        return scores[0] if is_single else scores

    def rank(
        self,
        query: str,
        documents: Sequence[MemoryLike],
        top_k: int | None = None,
        return_documents: bool = False,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        activation_fn: Callable[[Any], Any] | None = None,
        *,
        prompt: str | None = None,
        **ignored: Any,
    ) -> list[dict[str, Any]]:
        """Return `{"corpus_id", "score"}` for each document, best first.

        :param top_k: how many to return, all by default.
        :param return_documents: include each document as `text`.
        """
        pairs = [(query, document) for document in documents]
        scores = [float(score) for score in self.predict(pairs, activation_fn=activation_fn, prompt=prompt)]
        order = sorted(range(len(scores)), key=lambda i: -scores[i])[:top_k]
        ranking: list[dict[str, Any]] = [{"corpus_id": i, "score": scores[i]} for i in order]
        return [{**entry, "text": documents[entry["corpus_id"]]} for entry in ranking] if return_documents else ranking

    def close(self) -> None:
        """Release the model's memory."""
        self.reranker.close()

    def _score_pairs(
        self, pairs: Sequence[Any], instruction: str | None
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the relevance and the logit of each pair. An empty query or text is not relevant."""
        positions: dict[str, list[int]] = {}
        for position, pair in enumerate(pairs):
            if not isinstance(pair, (list, tuple, np.ndarray)) or len(pair) != 2 or not isinstance(pair[0], str):
                raise InputError("expected a query and a text", field=f"inputs.{position}")
            positions.setdefault(str(pair[0]), []).append(position)
        relevance = np.zeros(len(pairs), dtype=np.float32)
        logits = np.full(len(pairs), _EMPTY_LOGIT, dtype=np.float32)
        for query, places in positions.items():
            if query.strip():
                pool = read_memories([_plain(pairs[place][1]) for place in places])
                scored, read = score_with_truncation(self.reranker.model, query, pool, instruction=instruction)
                if read is not query:
                    logger.warning("the query is too long for the model, which read only its end: %.60r…", query)
                is_probability = scored.manifest.score_kind == "probability"
                raw = logit(scored.raw) if is_probability else scored.raw
                relevance[places] = np.nan_to_num(sigmoid(model_odds(scored.raw, scored.manifest)), nan=0.0)
                logits[places] = np.nan_to_num(raw, nan=_EMPTY_LOGIT)
        return relevance, logits


def _plain(text: Any) -> Any:
    return str(text) if isinstance(text, str) else text  # numpy's strings are a subclass


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError(f"tensors need `pip install 'mnemorank[torch]'` ({error})") from error
    return torch
