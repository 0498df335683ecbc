"""What later feedback says about a candidate that scored in the shadow."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sqlalchemy import distinct, func, select

from mnemorank.evaluation.measures import Judged, measure
from mnemorank.evaluation.significance import Comparison, compare
from mnemorank.learning import schema
from mnemorank.learning.evidence import SKIPPED, is_chitchat, votes
from mnemorank.learning.measurement import SetResult
from mnemorank.learning.propensity import Propensities
from mnemorank.learning.store import EventStore


@dataclass(frozen=True, slots=True)
class ShadowResult:
    """:param events: with feedback, of all that were scored.
    :param shown, candidate: MAP of what was shown, in the order of the scores of the model in service and of the
        candidate's.
    """

    version: str
    scored: int
    events: int
    shown: float
    candidate: float
    comparison: Comparison


def count_scored(store: EventStore, version: str) -> int:
    """How many events a version has scored in the shadow."""
    table = schema.shadow_scores
    query = select(func.count(distinct(table.c.event_id))).where(table.c.version == version)
    with store.database.reading() as connection:
        return int(connection.execute(query).scalar_one())


def compare_shadow(store: EventStore, version: str, propensities: Propensities | None = None) -> ShadowResult | None:
    """Order what was shown by either model's scores, and see where the memories with good feedback stand.

    Raw scores both: first-stage evidence, recency and exploration are no merit of the model in service. All that was
    shown stands in both orders, and an event counts by the corrected weight of its good feedback, so that the order
    that was shown has neither the advantage of having been seen first nor the blame of every click below.
    None before any event that the candidate scored has feedback.
    """
    propensities = propensities or Propensities()
    scores = _scores(store, version)
    judged, shown_order, own_order, weights = [], [], [], []
    for event, signals in store.events(since=_first_scored(store, version)):
        own = scores.get(event.id)
        if not own or event.query is None or is_chitchat(event.query):
            continue
        liked: dict[int, float] = {}
        for vote in votes(event, signals, propensities):
            if vote.kind != SKIPPED:
                liked[vote.shown.position] = liked.get(vote.shown.position, 0.0) + vote.value * vote.weight
        served = {shown.position: shown.raw_score for shown in event.shown if shown.raw_score is not None}
        places = [shown.position for shown in event.shown if shown.position in own and shown.position in served]
        good = np.array([liked.get(position, 0.0) > 0 for position in places])
        if not good.any() or good.all():
            continue
        judged.append(Judged(good.astype(np.float64), good))
        shown_order.append(sorted(range(len(places)), key=lambda i: -served[places[i]]))
        own_order.append(sorted(range(len(places)), key=lambda i: -own[places[i]]))
        weights.append(
            float(np.mean([liked[position] for position, is_good in zip(places, good, strict=True) if is_good]))
        )
    if not judged:
        return None
    old, new = (
        SetResult(measure(judged, order), np.array(weights)).values("map") for order in (shown_order, own_order)
    )
    return ShadowResult(version, len(scores), len(judged), float(old.mean()), float(new.mean()), compare(new, old))


def _first_scored(store: EventStore, version: str) -> float:
    events, table = schema.events, schema.shadow_scores
    query = (
        select(func.min(events.c.time)).join(table, table.c.event_id == events.c.id).where(table.c.version == version)
    )
    with store.database.reading() as connection:
        return float(connection.execute(query).scalar() or 0.0)


def _scores(store: EventStore, version: str) -> dict[str, dict[int, float]]:
    table = schema.shadow_scores
    found: dict[str, dict[int, float]] = {}
    with store.database.reading() as connection:
        for row in connection.execute(select(table).where(table.c.version == version)):
            found.setdefault(row.event_id, {})[row.position] = row.score
    return found
