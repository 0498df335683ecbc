"""How much a label counts in training: the weight of its votes, corrected for position, over the average of its side.

Positives weigh 1 on average, and so do negatives: the correction shifts what counts among them, not how often the model
is told yes, which its calibration rests on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mnemorank.learning.labelling import UNJUDGED, Labelled

_LEAST, _MOST = 0.1, 5.0


def average_weights(labelled: Iterable[Labelled]) -> dict[float, float]:
    """By label, over what somebody judged."""
    weights: dict[float, list[float]] = {}
    for entry in labelled:
        if entry.votes:
            weights.setdefault(entry.label, []).append(entry.weight)
    return {label: sum(found) / len(found) for label, found in weights.items()}


def weight_of(entry: Labelled, averages: Mapping[float, float] | None) -> float:
    """Within bounds, so that no single label is all that counts; nothing for what nobody judged, which is a guess."""
    if entry.kind == UNJUDGED:
        return 0.0
    if averages is None or not entry.votes:
        return 1.0
    return round(min(max(entry.weight / averages[entry.label], _LEAST), _MOST), 4)
