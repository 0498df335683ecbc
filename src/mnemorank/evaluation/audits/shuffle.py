"""Audit 2: how much does a model's ranking fall when a piece of metadata is given to the wrong memories?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from mnemorank.data.examples import Candidate, Example
from mnemorank.evaluation.audits.protocol import (
    Audit,
    Finding,
    Material,
    audits,
    judged,
    no_model,
    right_over_wrong,
    scorer_of,
    shown,
    with_candidates,
)
from mnemorank.memory.memory import Memory

ORDER_MAY_CHANGE = 0.005
WARN, FAIL = 0.05, 0.15

# Piece → the memory with that piece of another one.
PIECES: dict[str, Callable[[Memory, Memory], Memory]] = {
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


def run(material: Material) -> Finding:
    """The number is the largest fall of right-over-wrong accuracy by type, context or speaker, which should say little.

    Dates are reported beside it: a model that reads dates must fall when they are wrong. The order of the candidates
    must not matter at all.
    """
    if material.model is None:
        return no_model("shuffle")
    score = scorer_of(material.model)
    examples = material.sample()
    if not examples:
        return Finding("shuffle", "skipped", "no example has both right and wrong candidates")
    before = np.array([right_over_wrong(one, score(one.query, one.memories)) for one in examples])
    falls: dict[str, float] = {}
    hurt: list[str] = []
    for piece, exchange in PIECES.items():
        changed = [exchanged(one, exchange) for one in examples]
        if all(new.memories == old.memories for new, old in zip(changed, examples, strict=True)):
            continue
        after = np.array([right_over_wrong(one, score(one.query, one.memories)) for one in changed])
        falls[piece] = float((before - after).mean())
        hurt += [f"{piece}: {shown(examples[i].query)}" for i in np.argsort(after - before)[:1] if after[i] < before[i]]
    turned = [with_candidates(one, one.candidates[::-1]) for one in examples]
    after = np.array([right_over_wrong(one, score(one.query, one.memories)) for one in turned])
    falls["order"] = float(np.abs(before - after).mean())
    number = max((falls[piece] for piece in falls if piece not in ("dates", "order")), default=0.0)
    told = ", ".join(f"{piece} {-fall:+.3f}" for piece, fall in falls.items())
    if falls["order"] > ORDER_MAY_CHANGE:
        words = "the order of the candidates changes the scores"
    elif number > WARN:
        words = "type, context or speaker decides more than it should"
    else:
        words = "type, context, speaker and order decide little"
    return Finding(
        "shuffle",
        "fail" if falls["order"] > ORDER_MAY_CHANGE else judged(number, WARN, FAIL),
        f"{words}; accuracy {before.mean():.3f}, changed by wrong {told}",
        number,
        hurt,
        {"accuracy": float(before.mean()), "falls": falls, "examples": len(examples)},
    )


def exchanged(example: Example, exchange: Callable[[Memory, Memory], Memory]) -> Example:
    """Every candidate with the piece of the next: in a pair the two swap."""
    memories = example.memories
    moved: Sequence[Memory] = [*memories[1:], memories[0]]
    changed = [exchange(memory, other) for memory, other in zip(memories, moved, strict=True)]
    pairs = zip(changed, example.labels, strict=True)
    return with_candidates(example, [Candidate(memory, label) for memory, label in pairs])


audits.add(Audit("shuffle", "a model's accuracy with each piece of metadata on the wrong memory", run))
