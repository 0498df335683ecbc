"""Hindsight: a cross-encoder for its memory engine."""

from __future__ import annotations

import asyncio

from hindsight_api.engine.cross_encoder import CrossEncoderModel

from mnemorank.integrations.adapter import Adapter
from mnemorank.reranker import Reranker


class MnemorankCrossEncoder(CrossEncoderModel):
    """Scores the facts of a recall: `MemoryEngine(cross_encoder=MnemorankCrossEncoder())`.

    Hindsight writes the start of a fact in front of its text, as `[Date: …]`, and does not pass its end. The model
    reads the text as it is: a start date alone would mean that the fact still holds. Scores are probabilities.
    """

    def __init__(self, model: str | Reranker = "mini") -> None:
        self._adapter = Adapter(model)

    @property
    def provider_name(self) -> str:
        return "mnemorank"

    @property
    def blocking_init(self) -> bool:
        return True

    async def initialize(self) -> None:
        """Load the model."""
        self._adapter.reranker  # noqa: B018

    async def _predict(self, pairs: list[tuple[str, str]]) -> list[float]:
        return await asyncio.to_thread(self._adapter.score_pairs, pairs)
