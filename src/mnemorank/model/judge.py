"""Judgments about memories and queries beyond relevance, from models that were trained to make them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mnemorank._internal.arrays import Floats, sigmoid
from mnemorank.artifact.formats import formats
from mnemorank.artifact.manifest import Manifest
from mnemorank.memory.memory import Memory
from mnemorank.scorers.protocol import ForwardingScorer, MemoryJudge, Passage, Scorer

# Longer memories are paragraphs or conversations, which do not replace each other as facts do.
_MAX_FACT_TOKENS = 96


@dataclass(frozen=True, slots=True)
class Judge:
    """The judgments of one model. Create it with `Judge.of`."""

    scorer: MemoryJudge
    manifest: Manifest

    @classmethod
    def of(cls, scorer: Scorer, manifest: Manifest) -> Judge | None:
        """Return the judge of a model, None if it was not trained for it."""
        while isinstance(scorer, ForwardingScorer):
            scorer = scorer.scorer
        return cls(scorer, manifest) if isinstance(scorer, MemoryJudge) else None

    def similarity(self, memories: Sequence[Memory]) -> Floats:
        """Return the cosine of each pair of memories; NaN for memories too long to be a fact."""
        passages = self._passages(memories)
        embeddings = np.full((len(memories), self.scorer.width), np.nan)
        fitting = [i for i, passage in enumerate(passages) if passage is not None]
        if fitting:
            embeddings[fitting] = self.scorer.embed([passages[i] for i in fitting])  # type: ignore[misc]
        return np.asarray(embeddings @ embeddings.T)

    def replacement(self, pairs: Sequence[tuple[Memory, Memory]]) -> Floats:
        """Return, for pairs of an older and a newer memory, the probability that the newer replaces the older."""
        passages = [tuple(self._passages(pair)) for pair in pairs]
        chances = np.zeros(len(pairs))
        fitting = [i for i, (older, newer) in enumerate(passages) if older is not None and newer is not None]
        if fitting:
            chances[fitting] = sigmoid(self.scorer.replacement([passages[i] for i in fitting]))  # type: ignore[misc]
        return chances

    def asks_about_past(self, query: str) -> bool:
        """Return whether a query asks for an earlier state, so that an outdated memory may be the right answer."""
        return self.scorer.asks_about_past(query) > 0

    def _passages(self, memories: Sequence[Memory]) -> list[Passage | None]:
        write = formats[self.manifest.format].write
        passages = self.scorer.prepare([write(memory).text for memory in memories])
        longest = min(_MAX_FACT_TOKENS, self.scorer.max_memory)
        return [passage if 0 < passage.length <= longest else None for passage in passages]
