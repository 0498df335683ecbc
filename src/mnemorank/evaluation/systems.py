"""Load the system that a name stands for: a baseline, a bi-encoder, an HTTP reranker or a model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from mnemorank.artifact.resolve import Artifact, load_artifact
from mnemorank.errors import ScorerError
from mnemorank.evaluation.baselines import baselines
from mnemorank.evaluation.bi_encoder import PREFIX, BiEncoder, is_bi_encoder
from mnemorank.evaluation.cache import code_digest, folder_digest
from mnemorank.evaluation.protocol import Prediction, Question, System
from mnemorank.model.model import Model
from mnemorank.options import Options
from mnemorank.reranker import Reranker

NOT_CACHED = ""
"""The fingerprint of remote systems: what answers at an address may change at any time."""

# The model's own abstention threshold still applies, so that abstention can be measured.
_MODEL_ONLY = replace(Options.model_only(), abstain_below=None)


@dataclass(frozen=True, slots=True)
class RerankerSystem:
    """A model as users run it, with the pipeline around it, or by itself with `Options.model_only()`."""

    name: str
    fingerprint: str
    reranker: Reranker

    def rank(self, question: Question) -> Prediction:
        """Rank the memories; raise a `ScorerError` if the model failed, since the fallback is not its ranking."""
        ranking = self.reranker.rerank(question.query, question.memories, now=question.now)
        if ranking.degraded:
            raise ScorerError(f"{self.name}: question {question.key}: {ranking.degraded}")
        scores, relevance = np.full((2, len(question.memories)), np.nan)
        for result in ranking:
            if result.score is not None and result.relevance is not None:
                scores[result.index], relevance[result.index] = result.score, result.relevance
        return Prediction(scores, [result.index for result in ranking], relevance, ranking.abstained)


def load_system(
    name: str, *, model_only: bool = False, options: Options | None = None, threads: int | None = None
) -> System:
    """Return the system that a name stands for.

    :param name: a baseline such as `bm25`; `bi:FOLDER` or a bi-encoder folder; `http(s)://…`; or a model: a bundled
        name, a folder, a Hub id, or a remote one with its dialect, such as `tei:http://…`.
    :param model_only: evaluate the bare model instead of the pipeline.
    :param options: the options of the pipeline.
    """
    if name in baselines:
        return baselines[name]
    if name.startswith(("http://", "https://")):
        model = Model.load(add_dialect(name), probe=False, backoff=0.1)
        return RerankerSystem(name, NOT_CACHED, Reranker(model, options=_MODEL_ONLY))
    if name.startswith(PREFIX) or is_bi_encoder(Path(name).expanduser()):
        return BiEncoder(Path(name.removeprefix(PREFIX)).expanduser())
    artifact = load_artifact(name)
    scorer_options: dict[str, Any] = {} if threads is None else {"threads": threads}
    model = Model.load(name, **scorer_options)
    display_name = artifact.manifest.name if Path(name).is_dir() else name
    chosen = _MODEL_ONLY if model_only else options or Options()
    fingerprint = NOT_CACHED
    if artifact.manifest.family != "remote":
        fingerprint = f"{_weights_digest(artifact)}-{code_digest()}-{chosen!r}"
    return RerankerSystem(display_name, fingerprint, Reranker(model, options=chosen))


def add_dialect(url: str) -> str:
    """Add the dialect that the path of a URL suggests.

    `/v2/…` or a bare host is Cohere's, `/v1/…` Jina's, `/score` vLLM's, and any other path TEI's.
    """
    path = urlsplit(url).path
    if path.endswith("/score"):
        return f"vllm:{url}"
    if path in ("", "/") or path.startswith("/v2/"):
        return f"cohere:{url}"
    return f"jina:{url}" if path.startswith("/v1/") else f"tei:{url}"


def _weights_digest(artifact: Artifact) -> str:
    """Return the manifest's fingerprint; without a manifest, only the files themselves identify the weights."""
    return artifact.fingerprint if artifact.has_manifest else folder_digest(artifact.path)
