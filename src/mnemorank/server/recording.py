"""What the native routes do with every ranking: record it as an event, and count its degradation."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from fastapi import Request

from mnemorank import Ranking
from mnemorank.learning.events import RerankEvent
from mnemorank.server.event_log import record_event

if TYPE_CHECKING:
    from mnemorank.server.api.schemas import RankingRequest


def record_ranking(
    request: Request, ranking: Ranking, body: RankingRequest, label: str, event_id: str, tenant: str | None
) -> Ranking:
    """Record the event before the response is sent, and return the ranking as shown, perhaps with exploration.

    :param label: identifies the model.
    """
    if request.app.state.event_log is None:
        return ranking
    shown, propensities = _explore(ranking, request.app.state.settings.explore or 0.0, request.app.state.exploration)
    event = RerankEvent.from_ranking(
        body.query,
        shown,
        label,
        event_id=event_id,
        tenant=tenant,
        user=body.user,
        test=body.test,
        query_time=body.now,
        propensities=propensities,
    )
    record_event(request, event)
    return shown


def count_degradation(request: Request, ranking: Ranking) -> None:
    if ranking.degraded is not None:
        request.app.state.metrics.degraded.labels(ranking.degraded.kind).inc()
        request.state.log_fields["degraded"] = ranking.degraded.kind


def _explore(ranking: Ranking, probability: float, generator: random.Random) -> tuple[Ranking, list[float] | None]:
    if probability == 0:
        return ranking, None
    from mnemorank.learning.exploration import explore

    return explore(ranking, probability, generator)
