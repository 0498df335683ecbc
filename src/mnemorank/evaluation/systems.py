"""From what stands after `--model` to what is measured: a baseline, a bi-encoder, an HTTP reranker or a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from mnemorank._internal.arrays import sigmoid
from mnemorank.artifact.calibration import model_odds
from mnemorank.artifact.resolve import Artifact, load_artifact
from mnemorank.errors import ScorerError
from mnemorank.evaluation.baselines import Answer, Contestant, Question, baselines
from mnemorank.evaluation.bi_encoder import PREFIX, BiEncoder, is_bi_encoder
from mnemorank.evaluation.files import digest_of_code, digest_of_folder
from mnemorank.model.model import Model, score_by_the_end
from mnemorank.options import Options
from mnemorank.reranker import Reranker

# What answers behind an address may change from day to day: a contestant with this fingerprint is not cached.
NOT_CACHED = ""


def contestant(
    name: str, *, model_only: bool = False, options: Options | None = None, threads: int | None = None
) -> Contestant:
    """:param name: a baseline (`bm25`), `bi:FOLDER`, `http(s)://…`, or a model: bundled name, folder, `hf:org/name`,
        or a remote one with its dialect (`tei:http://…`).
    :param model_only: measure the bare model instead of the pipeline.
    :param options: of the pipeline.
    """
    if name in baselines:
        return baselines[name]
    if name.startswith(("http://", "https://")):
        return BareModel(name, NOT_CACHED, Model.load(remote_address(name), probe=False, back_off=0.1))
    if name.startswith(PREFIX) or is_bi_encoder(Path(name).expanduser()):
        return BiEncoder(Path(name.removeprefix(PREFIX)).expanduser())
    artifact = load_artifact(name)
    scorer_options: dict[str, Any] = {} if threads is None else {"threads": threads}
    model = Model.load(name, **scorer_options)
    shown = artifact.manifest.name if Path(name).is_dir() else name
    identity = _identity(artifact)
    if model_only:
        return BareModel(shown, identity and f"bare-{identity}", model)
    chosen = options or Options()
    return Pipeline(shown, identity and f"pipeline-{identity}-{chosen!r}", Reranker(model, options=chosen))


def remote_address(url: str) -> str:
    """The dialect that a URL's path tells: `/v2/…` or a bare host is Cohere's, `/v1/…` Jina's, `/score` vLLM's,
    any other TEI's.
    """
    path = urlsplit(url).path
    if path.endswith("/score"):
        return f"vllm:{url}"
    if path in ("", "/") or path.startswith("/v2/"):
        return f"cohere:{url}"
    return f"jina:{url}" if path.startswith("/v1/") else f"tei:{url}"


def _identity(artifact: Artifact) -> str:
    """What the scores depend on. Without a manifest nothing says which weights these are, but the files themselves."""
    if artifact.manifest.family == "remote":
        return NOT_CACHED
    own = artifact.fingerprint if artifact.has_manifest else digest_of_folder(artifact.path)
    return f"{own}-{digest_of_code()}"


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A model as users run it: windows, calibration, blend with the first stage, supersession."""

    name: str
    fingerprint: str
    reranker: Reranker

    def answer(self, question: Question) -> Answer:
        ranking = self.reranker.rerank(question.query, question.memories, now=question.now)
        if ranking.degraded:
            raise ScorerError(f"{self.name}: question {question.key}: {ranking.degraded}")
        scores = np.full(len(question.memories), np.nan)
        relevance = np.full(len(question.memories), np.nan)
        for result in ranking:
            if result.score is not None and result.relevance is not None:
                scores[result.index], relevance[result.index] = result.score, result.relevance
        return Answer(scores, [result.index for result in ranking], relevance, ranking.abstained)


@dataclass(frozen=True, slots=True)
class BareModel:
    """A model's own scores, without blend or any other stage; long memories are still read in windows, and questions
    that are too long by their end, as in the pipeline.
    """

    name: str
    fingerprint: str
    model: Model

    def answer(self, question: Question) -> Answer:
        scored, _ = score_by_the_end(self.model, question.query, question.memories)
        relevance = sigmoid(model_odds(scored.raw, scored.manifest))
        best = float(np.nanmax(relevance)) if np.isfinite(relevance).any() else 0.0
        scores = np.where(np.isnan(scored.raw), -np.inf, scored.raw)
        return Answer(scores, relevance=relevance, abstained=best < scored.manifest.abstain_below)
