"""Shuffle audit: how much a model's ranking suffers when metadata is assigned to the wrong memories."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from mnemorank._internal.arrays import Floats
from mnemorank.data.examples import Candidate, Example
from mnemorank.evaluation.audits.protocol import (
    Audit,
    AuditInput,
    Finding,
    ScoreFunction,
    audits,
    pair_accuracy,
    replace_candidates,
    score_function,
    shorten,
    skip_without_labels,
    skip_without_model,
    verdict_on,
)
from mnemorank.memory.memory import Memory

MAX_ORDER_EFFECT = 0.005
WARN, FAIL = 0.05, 0.15

Swap = Callable[[Memory, Memory], Memory]

SWAPS: dict[str, Swap] = {
    "dates": lambda memory, other: replace(
        memory,
        occurred_start=other.occurred_start,
        occurred_end=other.occurred_end,
        mentioned_at=other.mentioned_at,
    ),
    "type": lambda memory, other: replace(memory, type=other.type),
    "context": lambda memory, other: replace(memory, context=other.context),
    "speaker": lambda memory, other: replace(memory, speaker=other.speaker),
}
"""By kind of metadata: returns the first memory with that metadata of the second."""


def run(data: AuditInput) -> Finding:
    """Measure the largest loss of pair accuracy by type, context or speaker, which should matter little.

    The effect of dates is reported, but does not count: a model that reads dates must get worse with wrong ones. The
    order of the candidates must not matter at all.
    """
    if data.model is None:
        return skip_without_model("shuffle")
    examples = data.sample()
    if not examples:
        return skip_without_labels("shuffle")
    score = score_function(data.model)
    before = _accuracy(examples, score)
    losses: dict[str, float] = {}
    cases: list[str] = []
    for name, swap in SWAPS.items():
        swapped = [swap_metadata(example, swap) for example in examples]
        if all(new.memories == old.memories for new, old in zip(swapped, examples, strict=True)):
            continue
        after = _accuracy(swapped, score)
        losses[name] = float((before - after).mean())
        worst = int(np.argmin(after - before))
        if after[worst] < before[worst]:
            cases.append(f"{name}: {shorten(examples[worst].query)}")
    reversed_examples = [replace_candidates(example, example.candidates[::-1]) for example in examples]
    losses["order"] = float(np.abs(before - _accuracy(reversed_examples, score)).mean())
    number = max((losses[name] for name in losses if name not in ("dates", "order")), default=0.0)
    effects = ", ".join(f"{name} {-loss:+.3f}" for name, loss in losses.items())
    if losses["order"] > MAX_ORDER_EFFECT:
        conclusion = "the order of the candidates changes the scores"
    elif number > WARN:
        conclusion = "type, context or speaker matters more than it should"
    else:
        conclusion = "type, context, speaker and order matter little"
    return Finding(
        "shuffle",
        "fail" if losses["order"] > MAX_ORDER_EFFECT else verdict_on(number, WARN, FAIL),
        f"{conclusion}; accuracy {before.mean():.3f}, change with wrong values: {effects}",
        number,
        cases,
        {"accuracy": float(before.mean()), "losses": losses, "examples": len(examples)},
    )


def swap_metadata(example: Example, swap: Swap) -> Example:
    """Give every candidate a piece of metadata of the next one; in a pair, the two swap."""
    memories = example.memories
    rotated: Sequence[Memory] = [*memories[1:], memories[0]]
    swapped = [swap(memory, other) for memory, other in zip(memories, rotated, strict=True)]
    labeled = zip(swapped, example.labels, strict=True)
    return replace_candidates(example, [Candidate(memory, label) for memory, label in labeled])


def _accuracy(examples: Sequence[Example], score: ScoreFunction) -> Floats:
    return np.array([pair_accuracy(example, score(example.query, example.memories)) for example in examples])


audits.add(Audit("shuffle", "a model's accuracy with metadata on the wrong memories", run))
