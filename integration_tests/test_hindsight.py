"""The adapter for Hindsight, with the real package: its own reranking step, without a database."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime

import pytest
from hindsight_api.engine.cross_encoder import CohereCrossEncoder, CrossEncoderModel, RemoteTEICrossEncoder
from hindsight_api.engine.search.reranking import CrossEncoderReranker
from hindsight_api.engine.search.types import MergedCandidate, RetrievalResult

from mnemorank import Memory, Model, Reranker
from mnemorank.integrations.hindsight import MnemorankCrossEncoder
from shared import CURRENT, OLD, QUERY, STARTED, TEXTS


def _candidates():
    return [
        MergedCandidate(
            retrieval=RetrievalResult(
                id=f"f{number}",
                text=text,
                fact_type="world",
                occurred_start=datetime.fromisoformat(STARTED[text] + "-01").replace(tzinfo=UTC)
                if text in STARTED
                else None,
            ),
            rrf_score=1 / (number + 1),
        )
        for number, text in enumerate(TEXTS)
    ]


def test_the_current_job_comes_first_in_hindsights_own_reranking():
    encoder = MnemorankCrossEncoder()
    assert isinstance(encoder, CrossEncoderModel)
    result = asyncio.run(CrossEncoderReranker(cross_encoder=encoder).rerank(QUERY, _candidates()))

    assert result.results[0].candidate.retrieval.text == CURRENT
    assert result.provider_name == "mnemorank"


def test_scores_are_probabilities_in_the_order_of_the_pairs():
    encoder = MnemorankCrossEncoder()
    asyncio.run(encoder.initialize())
    scores = asyncio.run(encoder.predict([(QUERY, OLD), ("What is Ruby's cat called?", TEXTS[1]), (QUERY, TEXTS[1])]))

    assert all(0 <= score <= 1 for score in scores)
    assert scores[1] > scores[2]
    assert asyncio.run(encoder.predict([])) == []


def test_the_date_is_part_of_the_text_and_no_end_is_invented():
    class Recorder:
        def __init__(self):
            self.model = Model.load()
            self.manifest = self.model.manifest
            self.scored = []

        def score(self, query, memories, **arguments):
            assert threading.current_thread() is not threading.main_thread()
            self.scored.extend(memories)
            return self.model.score(query, memories, **arguments)

    model = Recorder()
    reranker = CrossEncoderReranker(cross_encoder=MnemorankCrossEncoder(Reranker(model)))
    asyncio.run(reranker.rerank(QUERY, _candidates()[:1]))

    assert model.scored == [Memory(f"[Date: January 01, 2023 (2023-01-01)] {OLD}")]


@pytest.mark.parametrize(
    "connect",
    [
        lambda url: RemoteTEICrossEncoder(url),
        lambda url: CohereCrossEncoder("unused", base_url=f"{url}/v2/rerank"),
    ],
    ids=["tei", "cohere"],
)
def test_by_url(url, connect):
    async def recall():
        encoder = connect(url)
        await encoder.initialize()
        return await CrossEncoderReranker(cross_encoder=encoder).rerank(QUERY, _candidates())

    assert asyncio.run(recall()).results[0].candidate.retrieval.text == CURRENT
