"""From what stands after `--model` to what is measured: a baseline, a bi-encoder, an HTTP reranker or a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mnemorank.artefact import load_artefact
from mnemorank.errors import ScorerError
from mnemorank.evaluation.baselines import Answer, Contestant, Question, baselines
from mnemorank.evaluation.baselines.bi_encoder import PREFIX, BiEncoder, is_bi_encoder
from mnemorank.evaluation.baselines.http import HttpReranker
from mnemorank.evaluation.files import digest_of_code, digest_of_folder
from mnemorank.model import Model
from mnemorank.options import Options
from mnemorank.ranking.calibrate import log_odds, sigmoid
from mnemorank.reranker import Reranker


def contestant(
    name: str, *, model_only: bool = False, options: Options | None = None, threads: int | None = None
) -> Contestant:
    """:param name: a baseline (`bm25`), `bi:FOLDER`, `http(s)://…`, or a model: bundled name, folder or `hf:org/name`.
    :param model_only: measure the bare model instead of the pipeline.
    :param options: of the pipeline.
    """
    if name in baselines:
        return baselines[name]
    if name.startswith(("http://", "https://")):
        return HttpReranker(name)
    if name.startswith(PREFIX):
        return BiEncoder(Path(name.removeprefix(PREFIX)).expanduser())
    if is_bi_encoder(Path(name).expanduser()):
        return BiEncoder(Path(name).expanduser())
    artefact = load_artefact(name)
    scorer_options: dict[str, Any] = {} if threads is None else {"threads": threads}
    model = Model.load(name, **scorer_options)
    # Without a manifest nothing says which weights these are, but the files themselves.
    identity = artefact.fingerprint if artefact.has_manifest else digest_of_folder(artefact.path)
    shown = name if not Path(name).is_dir() else artefact.manifest.name
    if model_only:
        return BareModel(shown, f"bare-{identity}-{digest_of_code()}", model)
    chosen = options or Options()
    return Pipeline(shown, f"pipeline-{identity}-{digest_of_code()}-{chosen!r}", Reranker(model, options=chosen))


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A model as users run it: windows, calibration, blend with the first stage, supersession."""

    name: str
    fingerprint: str
    reranker: Reranker

    def answer(self, question: Question) -> Answer:
        ranking = self.reranker.rerank(question.query, question.memories, now=question.time)
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
    """A model's own scores, without blend or any other stage; long memories are still read in windows."""

    name: str
    fingerprint: str
    model: Model

    def answer(self, question: Question) -> Answer:
        scored = self.model.score(question.query, question.memories)
        relevance = sigmoid(log_odds(scored.raw, scored.manifest.score_kind, scored.manifest.calibration))
        best = float(np.nanmax(relevance)) if np.isfinite(relevance).any() else 0.0
        scores = np.where(np.isnan(scored.raw), -np.inf, scored.raw)
        return Answer(scores, relevance=relevance, abstained=best < scored.manifest.abstain_below)
