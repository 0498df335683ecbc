"""mteb: models to evaluate on its reranking and retrieval tasks."""

from __future__ import annotations

from typing import Any

import numpy as np
from mteb.models.model_meta import ModelMeta
from numpy.typing import NDArray

from mnemorank.cross_encoder import CrossEncoder
from mnemorank.model.model import Model
from mnemorank.reranker import Reranker

_REPOSITORY = "https://github.com/mnemorank/mnemorank"


class MnemorankModel:
    """A cross-encoder for `mteb.evaluate(MnemorankModel("mini"), tasks)`.

    :param model_name: a model as in `Reranker`, or a `Reranker`; mteb's name for the bundled one is `mnemorank/mini`.
    :param revision: ignored: a bundled model has one, and a Hub id can name it (`hf:org/name@revision`).
    """

    def __init__(
        self,
        model_name: str | Reranker = "mini",
        revision: str | None = None,
        device: str | None = None,
        **model_options: Any,
    ) -> None:
        model = model_name.removeprefix("mnemorank/") if isinstance(model_name, str) else model_name
        self._encoder = CrossEncoder(model, device=device, **model_options)
        self.mteb_model_meta = _metadata(self._encoder.reranker)

    def predict(self, inputs1: Any, inputs2: Any, **_: Any) -> NDArray[np.float32]:
        """Return the relevance of each query (`inputs1`) and document (`inputs2`), which mteb passes in batches."""
        queries = [text for batch in inputs1 for text in batch["text"]]
        documents = [text for batch in inputs2 for text in batch["text"]]
        scores: NDArray[np.float32] = self._encoder.predict(list(zip(queries, documents, strict=True)))
        return scores


def _metadata(reranker: Reranker) -> ModelMeta:
    manifest = reranker.model.manifest
    values: dict[str, Any] = {
        "loader": MnemorankModel,
        "name": manifest.name if "/" in manifest.name else f"mnemorank/{manifest.name}",
        "revision": manifest.version,
        "max_tokens": manifest.max_length,
        "model_type": ["cross-encoder"],
        "use_instructions": False,
    }
    if manifest.name == "mini" and isinstance(reranker.model, Model):
        values |= {
            "languages": ["eng-Latn"],
            "n_parameters": 22_700_000,
            "memory_usage_mb": 23,
            "license": "apache-2.0",
            "open_weights": True,
            "public_training_code": _REPOSITORY,
            "public_training_data": True,
            "framework": ["ONNX"],
            "reference": _REPOSITORY,
            # 128 questions of LongMemEval, and MedQuAD. Not in mteb: Memex, 2WikiMultiHopQA, RealMem, LifeBench,
            # SQuAD 2.0, MultiHop-RAG.
            "training_datasets": {"LongMemEval", "MedicalQARetrieval"},
            "adapted_from": "sentence-transformers/all-MiniLM-L6-v2",
        }
    return ModelMeta.create_empty(overwrites=values)
