"""Mining: from the log to examples, with splits and provenance."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from mnemorank.data.examples import Candidate, Example
from mnemorank.learning.events import SEPARATOR, RerankEvent, digest, scoped_name
from mnemorank.learning.mining.evidence import Lookup, Vote, is_chitchat, query_key, question_key, votes
from mnemorank.learning.mining.labels import (
    UNJUDGED,
    Labelled,
    average_weights,
    easy_negatives,
    label,
    ring_of,
    text_of,
    weight_of,
)
from mnemorank.learning.mining.propensity import Propensities
from mnemorank.learning.mining.rules import MiningRules
from mnemorank.learning.mining.votes import admitted, by_memory
from mnemorank.learning.signals import Signal
from mnemorank.memory.memory import Memory
from mnemorank.memory.moment import Moment

TRAIN, HELD_OUT = "train", "held-out"
_Place = tuple[int, str | None, str]


@dataclass(frozen=True, slots=True)
class MinedExample:
    """:param provenance: what each label rests on: events, kinds of signals, how many actors, weights.
    :param sources: (kind, name) of all that a deletion could reach: `event`, `actor`, `text`, `memory`, `tenant`.
    """

    example: Example
    tenant: str
    split: str
    provenance: Mapping[str, Any]
    sources: frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Mined:
    """:param dropped: how much was left out, by reason."""

    examples: tuple[MinedExample, ...]
    dropped: Mapping[str, int] = field(default_factory=dict)


def split_of(query: str, held_out: float = 0.3) -> str:
    """Fixed by the query's words alone, so that no query ever changes sides."""
    return side_of(query_key(query), held_out)


def side_of(name: str, held_out: float = 0.3) -> str:
    """The split of a name: a query's words, or a group that a file states."""
    # A draw of its own: recipes split by the bare hash, and theirs must not depend on ours.
    drawn = hashlib.sha256(f"held-out{SEPARATOR}{name}".encode(errors="surrogatepass")).digest()
    return HELD_OUT if int.from_bytes(drawn[:8], "big") / 2**64 < held_out else TRAIN


def mine(
    log: Iterable[tuple[RerankEvent, Sequence[Signal]]],
    propensities: Propensities,
    rules: MiningRules | None = None,
    lookup: Lookup | None = None,
) -> Mined:
    """Examples from the feedback of a log, one a query and tenant; one a day for queries that speak of the day.

    :param lookup: gives a memory by its id, for stores that may not keep texts.
    """
    rules = rules or MiningRules()
    dropped: Counter[str] = Counter()
    asked = _read(log, propensities, rules, dropped)
    counted = admitted(asked.votes, rules, dropped)
    rings = {tenant: ring_of(pool) for tenant, pool in asked.pools.items()}
    drafts = []
    for (tenant, key), given in sorted(counted.items()):
        pool = asked.pools.get(tenant, {})
        right, wrong = label(given, pool, rules, lookup, dropped)
        if not right:
            dropped["queries without a positive"] += 1
            continue
        latest = max((vote.event for vote in given), key=lambda event: (event.time, event.id))
        judged = by_memory(given)
        if not wrong:
            wrong = easy_negatives(tenant, latest.query or "", rings.get(tenant, ()), judged, rules.easy_negatives)
        split = split_of(latest.query or "", rules.held_out)
        if split == HELD_OUT:
            known = {*judged, *(entry.identity for entry in wrong)}
            wrong = [*wrong, *_unjudged(asked.shown[tenant, key], pool, lookup, known, rules.unjudged)]
        if not wrong:
            dropped["queries without a negative"] += 1
            continue
        labelled = (*right, *wrong)
        drafts.append(_Draft(tenant, key, split, latest, labelled, asked.suppliers(tenant, key, labelled)))
    averages = average_weights(entry for draft in drafts for entry in draft.labelled)
    return Mined(tuple(_assembled(draft, averages if rules.weighted else None) for draft in drafts), dict(dropped))


@dataclass(slots=True)
class _Asked:
    """What the log holds.

    :param votes: by tenant and query.
    :param shown: what was shown, by tenant and query: identity → best position, the memory's id, and the event's.
    :param pools: memories by tenant and identity.
    :param stored_by: ids of the events that the memories of the pools are from.
    """

    votes: dict[tuple[str, str], list[Vote]] = field(default_factory=lambda: defaultdict(list))
    shown: dict[tuple[str, str], dict[str, _Place]] = field(default_factory=lambda: defaultdict(dict))
    pools: dict[str, dict[str, Memory]] = field(default_factory=lambda: defaultdict(dict))
    stored_by: dict[tuple[str, str], str] = field(default_factory=dict)

    def suppliers(self, tenant: str, key: str, labelled: Iterable[Labelled]) -> frozenset[str]:
        """Ids of the events that gave an example its texts, or showed what nobody judged: a deletion reaches them."""
        found = set()
        for entry in labelled:
            found.add(self.stored_by.get((tenant, entry.identity)))
            if entry.kind == UNJUDGED:
                found.add(self.shown[tenant, key][entry.identity][2])
        return frozenset(name for name in found if name is not None)


@dataclass(frozen=True, slots=True)
class _Draft:
    tenant: str
    key: str
    split: str
    latest: RerankEvent
    labelled: tuple[Labelled, ...]
    suppliers: frozenset[str]


def _read(
    log: Iterable[tuple[RerankEvent, Sequence[Signal]]],
    propensities: Propensities,
    rules: MiningRules,
    dropped: Counter[str],
) -> _Asked:
    asked = _Asked()
    for event, signals in log:
        if event.query is None:
            dropped["events without a stored query"] += 1
            continue
        if is_chitchat(event.query):
            dropped["chit-chat"] += 1
            continue
        key = event.tenant, question_key(event)
        places = asked.shown[key]
        for shown in event.shown:
            identity = shown.identity
            if identity not in places or shown.position < places[identity][0]:
                places[identity] = shown.position, shown.memory_id, event.id
            if shown.memory is not None and identity not in asked.pools[event.tenant]:
                asked.pools[event.tenant][identity] = shown.memory
                asked.stored_by[event.tenant, identity] = event.id
        given = votes(event, signals, propensities, clip=rules.clip, skip_weight=rules.skip_weight)
        if not given:
            dropped["events without evidence"] += 1
        asked.votes[key] += given
    return asked


def _unjudged(
    shown: Mapping[str, _Place],
    pool: Mapping[str, Memory],
    lookup: Lookup | None,
    judged: Collection[str],
    most: int,
) -> list[Labelled]:
    """What was shown and nobody spoke on.

    Without it a held-out example would hold, of the memories that were not clicked, only those *above* a click:
    the order that was shown would look bad, and any other order good.
    """
    silent = sorted((place, identity, name) for identity, (place, name, _) in shown.items() if identity not in judged)
    found = ((identity, text_of(identity, name, pool, lookup)) for _, identity, name in silent[:most])
    return [Labelled(memory, identity, 0.0, kind=UNJUDGED) for identity, memory in found if memory is not None]


def _assembled(draft: _Draft, averages: Mapping[float, float] | None) -> MinedExample:
    """:param averages: of the weights of each label; None to give all the same weight."""
    tenant, labelled = draft.tenant, draft.labelled
    cast = [vote for entry in labelled for vote in entry.votes]
    sources = {("tenant", tenant)} | {("text", entry.text_hash) for entry in labelled}
    # Of suppliers the event alone: an actor is given the examples they spoke in, not those of others' questions.
    sources |= {("event", name) for name in (*(vote.event.id for vote in cast), draft.latest.id, *draft.suppliers)}
    for vote in cast:
        sources |= {("actor", scoped_name(tenant, name)) for name in (vote.actor, vote.event.user) if name}
    sources |= {("memory", scoped_name(tenant, entry.memory.id)) for entry in labelled if entry.memory.id}
    provenance = {
        "origin": "feedback",
        "actors": len({vote.actor for vote in cast}),
        "events": sorted({vote.event.id for vote in cast}),
        "models": sorted({vote.event.model_version for vote in cast}),
        "labels": [_told(entry) for entry in labelled],
    }
    example = Example(
        id="feedback-" + digest(tenant, draft.key),
        query=draft.latest.query or "",
        candidates=tuple(
            Candidate(entry.memory.with_score(None), entry.label, weight_of(entry, averages)) for entry in labelled
        ),
        query_time=_asked_at(draft.latest),
        group=query_key(draft.latest.query or ""),
        source="feedback",
    )
    return MinedExample(example, tenant, draft.split, provenance, frozenset(sources))


def _asked_at(event: RerankEvent) -> Moment | None:
    """The `now` that an event was answered by: the request's, else the clock's; None where that is no date."""
    if event.query_time:
        return Moment.parse(event.query_time)
    try:
        return Moment.parse(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=event.time))
    except OverflowError:
        return None


def _told(entry: Labelled) -> dict[str, Any]:
    return {
        "text_hash": entry.text_hash,
        "label": entry.label,
        "weight": round(entry.weight, 4),
        "votes": dict(sorted(Counter(vote.kind for vote in entry.votes).items())) or {entry.kind: 1},
    }
