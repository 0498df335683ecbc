"""The sets that a candidate must not get worse on: our dated triplets, and a general set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mnemorank.data.records import Candidate, Example
from mnemorank.data.shipped import shipped
from mnemorank.learning.golden import read_any
from mnemorank.learning.identity import digest

_DISTRACTORS = 14


def guard_sets(general: Path | None = None, dated: Path | None = None) -> dict[str, list[Example]]:
    """The guard sets by name.

    :param general: examples of your own domain, in any of our formats; by default each question of the dated dev set
        among memories of other matters, which asks for the right topic instead of the right date.
    """
    pairs = list(read_any(dated or shipped("dev")))
    return {"dated": pairs, "general": list(read_any(general)) if general else among_others(pairs)}


def among_others(examples: Sequence[Example], most: int = _DISTRACTORS) -> list[Example]:
    """Each example with memories of others added as wrong ones, the same on every run."""
    pool = {candidate.memory.text: candidate.memory for example in examples for candidate in example.candidates}
    wider = []
    for example in examples:
        own = {memory.text for memory in example.memories}
        others = sorted((text for text in pool if text not in own), key=lambda text: digest(example.query, text))[:most]
        added = tuple(Candidate(pool[text], 0.0) for text in others)
        wider.append(replace(example, candidates=example.candidates + added))
    return wider
