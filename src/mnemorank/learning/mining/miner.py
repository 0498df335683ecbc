"""Mining: turn the feedback of a log into training and held-out examples with their provenance."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from mnemorank.data.examples import Candidate, Example
from mnemorank.learning.events import SEPARATOR, RerankEvent, digest, scoped_name
from mnemorank.learning.mining.labels import (
    UNJUDGED,
    LabeledMemory,
    Lookup,
    average_weights,
    easy_negatives,
    find_memory,
    label_memories,
    order_by_hash,
    training_weight,
)
from mnemorank.learning.mining.propensity import Log, Propensities
from mnemorank.learning.mining.votes import (
    VotesByQuery,
    group_by_memory,
    is_small_talk,
    query_key,
    question_key,
    select_votes,
    votes_of_event,
)
from mnemorank.learning.settings import MiningSettings
from mnemorank.memory.memory import Memory
from mnemorank.memory.moment import Moment

TRAIN, HELD_OUT = "train", "held-out"


@dataclass(frozen=True, slots=True)
class MinedExample:
    """An example with its origin.

    :param split: TRAIN or HELD_OUT.
    :param provenance: what each label is based on: events, kinds of signals, number of actors, weights.
    :param sources: (kind, name) of everything whose deletion must reach the example: `event`, `actor`, `text`,
        `memory`, `tenant`, `file`.
    """

    example: Example
    tenant: str
    split: str
    provenance: Mapping[str, Any]
    sources: frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class MiningResult:
    """The mined examples.

    :param dropped: how much was left out, by reason.
    """

    examples: tuple[MinedExample, ...]
    dropped: Mapping[str, int] = field(default_factory=dict)


def split_of_query(query: str, held_out: float = 0.3) -> str:
    """Return the split of a query. It depends only on the words, so that no query ever changes its split."""
    return split_of_group(query_key(query), held_out)


def split_of_group(group: str, held_out: float = 0.3) -> str:
    """Return the split of a group of queries."""
    # Salted, because recipes split by the plain hash, and the two splits must be independent.
    value = hashlib.sha256(f"held-out{SEPARATOR}{group}".encode(errors="surrogatepass")).digest()
    return HELD_OUT if int.from_bytes(value[:8], "big") / 2**64 < held_out else TRAIN


def mine(
    log: Log, propensities: Propensities, settings: MiningSettings | None = None, lookup: Lookup | None = None
) -> MiningResult:
    """Turn the feedback of a log into examples: one per tenant and query, and per day if the query depends on it.

    :param lookup: returns a memory by its id, for stores without texts.
    """
    settings = settings or MiningSettings()
    dropped: Counter[str] = Counter()
    feedback = _read_log(log, propensities, settings, dropped)
    votes_by_query = select_votes(feedback.votes, settings, dropped)
    hashed_memories = {tenant: order_by_hash(memories) for tenant, memories in feedback.memories.items()}
    drafts = []
    for (tenant, key), votes in sorted(votes_by_query.items()):
        memories = feedback.memories.get(tenant, {})
        positives, negatives = label_memories(votes, memories, settings, lookup, dropped)
        if not positives:
            dropped["queries without a positive"] += 1
            continue
        latest = max((vote.event for vote in votes), key=lambda event: (event.time, event.id))
        query = latest.query or ""
        judged = group_by_memory(votes)
        if not negatives:
            negatives = easy_negatives(tenant, query, hashed_memories.get(tenant, ()), judged, settings.easy_negatives)
        split = split_of_query(query, settings.held_out)
        if split == HELD_OUT:
            known = {*judged, *(entry.identity for entry in negatives)}
            shown = feedback.shown[tenant, key]
            negatives = [*negatives, *_unjudged(shown, memories, lookup, known, settings.max_unjudged)]
        if not negatives:
            dropped["queries without a negative"] += 1
            continue
        labeled = (*positives, *negatives)
        drafts.append(_Draft(tenant, key, split, latest, labeled, feedback.text_sources(tenant, key, labeled)))
    averages = average_weights(entry for draft in drafts for entry in draft.labeled) if settings.weighted else None
    return MiningResult(tuple(_build_example(draft, averages) for draft in drafts), dict(dropped))


class _Placement(NamedTuple):
    """Where a query showed a memory best."""

    rank: int
    memory_id: str | None
    event_id: str


@dataclass(slots=True)
class _Feedback:
    """What a log contains.

    :param shown: by tenant and query: identity of each shown memory → where it was shown.
    :param memories: by tenant: identity → memory.
    :param stored_by: tenant and identity → id of the event that the memory was read from.
    """

    votes: VotesByQuery = field(default_factory=lambda: defaultdict(list))
    shown: dict[tuple[str, str], dict[str, _Placement]] = field(default_factory=lambda: defaultdict(dict))
    memories: dict[str, dict[str, Memory]] = field(default_factory=lambda: defaultdict(dict))
    stored_by: dict[tuple[str, str], str] = field(default_factory=dict)

    def text_sources(self, tenant: str, key: str, labeled: Iterable[LabeledMemory]) -> frozenset[str]:
        """Ids of the events that supplied texts or unjudged memories; deleting them must reach the example."""
        event_ids = set()
        for entry in labeled:
            event_ids.add(self.stored_by.get((tenant, entry.identity)))
            if entry.kind == UNJUDGED:
                event_ids.add(self.shown[tenant, key][entry.identity].event_id)
        return frozenset(event_id for event_id in event_ids if event_id is not None)


@dataclass(frozen=True, slots=True)
class _Draft:
    """An example before the weights of its labels are known, which depend on all examples."""

    tenant: str
    key: str
    split: str
    latest: RerankEvent
    labeled: tuple[LabeledMemory, ...]
    text_sources: frozenset[str]


def _read_log(log: Log, propensities: Propensities, settings: MiningSettings, dropped: Counter[str]) -> _Feedback:
    feedback = _Feedback()
    for event, signals in log:
        if event.query is None:
            dropped["events without a stored query"] += 1
            continue
        if is_small_talk(event.query):
            dropped["small talk"] += 1
            continue
        key = event.tenant, question_key(event)
        placements = feedback.shown[key]
        for shown in event.shown:
            identity = shown.identity
            if identity not in placements or shown.rank < placements[identity].rank:
                placements[identity] = _Placement(shown.rank, shown.memory_id, event.id)
            if shown.memory is not None and identity not in feedback.memories[event.tenant]:
                feedback.memories[event.tenant][identity] = shown.memory
                feedback.stored_by[event.tenant, identity] = event.id
        votes = votes_of_event(event, signals, propensities, clip=settings.clip, skip_weight=settings.skip_weight)
        if not votes:
            dropped["events without evidence"] += 1
        feedback.votes[key] += votes
    return feedback


def _unjudged(
    shown: Mapping[str, _Placement],
    memories: Mapping[str, Memory],
    lookup: Lookup | None,
    judged: Collection[str],
    count: int,
) -> list[LabeledMemory]:
    """Return the shown memories that nobody judged.

    Without them, the only unclicked memories in a held-out example would be those above a click: the order that was
    shown would look bad, and any other order good.
    """
    unjudged = sorted(
        (placement.rank, identity, placement.memory_id)
        for identity, placement in shown.items()
        if identity not in judged
    )
    pairs = (
        (identity, find_memory(identity, memory_id, memories, lookup)) for _, identity, memory_id in unjudged[:count]
    )
    return [LabeledMemory(memory, identity, 0.0, kind=UNJUDGED) for identity, memory in pairs if memory is not None]


def _build_example(draft: _Draft, averages: Mapping[float, float] | None) -> MinedExample:
    tenant, labeled = draft.tenant, draft.labeled
    votes = [vote for entry in labeled for vote in entry.votes]
    event_ids = {*(vote.event.id for vote in votes), draft.latest.id, *draft.text_sources}
    # Users who merely supplied a text are not sources: an export of their data must not contain others' questions.
    actors = {name for vote in votes for name in (vote.actor, vote.event.user) if name}
    sources = {("tenant", tenant)}
    sources |= {("text", entry.text_hash) for entry in labeled}
    sources |= {("event", event_id) for event_id in event_ids}
    sources |= {("actor", scoped_name(tenant, actor)) for actor in actors}
    sources |= {("memory", scoped_name(tenant, entry.memory.id)) for entry in labeled if entry.memory.id}
    provenance = {
        "origin": "feedback",
        "actors": len({vote.actor for vote in votes}),
        "events": sorted({vote.event.id for vote in votes}),
        "models": sorted({vote.event.model_version for vote in votes}),
        "labels": [_label_provenance(entry) for entry in labeled],
    }
    query = draft.latest.query or ""
    example = Example(
        id="feedback-" + digest(tenant, draft.key),
        query=query,
        candidates=tuple(
            Candidate(entry.memory.with_score(None), entry.label, training_weight(entry, averages)) for entry in labeled
        ),
        query_time=_query_time(draft.latest),
        group=query_key(query),
        source="feedback",
    )
    return MinedExample(example, tenant, draft.split, provenance, frozenset(sources))


def _query_time(event: RerankEvent) -> Moment | None:
    """The `now` of an event: that of the request, or the time of the log; None if that is not a valid date."""
    if event.query_time:
        return Moment.parse(event.query_time)
    try:
        return Moment.parse(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=event.time))
    except OverflowError:
        return None


def _label_provenance(entry: LabeledMemory) -> dict[str, Any]:
    return {
        "text_hash": entry.text_hash,
        "label": entry.label,
        "weight": round(entry.vote_weight, 4),
        "votes": dict(sorted(Counter(vote.kind for vote in entry.votes).items())) or {entry.kind: 1},
    }
