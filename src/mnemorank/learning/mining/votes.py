"""Votes: what each actor says about each memory, corrected for rank, and which of these votes count."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mnemorank.learning.events import SEPARATOR, RerankEvent, ShownMemory, digest
from mnemorank.learning.mining.propensity import Propensities
from mnemorank.learning.settings import MiningSettings
from mnemorank.learning.signals import KINDS, SHOWS_INTEREST, Signal, Verdict, merge_signals
from mnemorank.text.words import STOPWORDS, terms, words

SKIPPED = "skipped"
_SMALL_TALK = frozenset(
    "bye cheers cool fine good great hello hey hi lol morning evening night nice ok okay please pls sure test testing "
    "thank thanks thx welcome wow yeah yep yes nope haha hmm right got doing going today".split()
)
# The meaning of these words depends on the day.
_RELATIVE_TIMES = frozenset(
    "today yesterday tomorrow tonight now current currently last next this ago recent recently latest".split()
)
_MIN_SHOWN_TO_JUDGE = 3
_DATE_LENGTH = len("2024-03-05")
# An actor is ignored if others contradict most of at least this many votes.
_MIN_SHARED_VOTES = 5
_MIN_AGREEMENT_WITH_OTHERS = 0.4


@dataclass(frozen=True, slots=True)
class Vote:
    """One actor's judgment of one memory for one query.

    :param value: +1 or -1.
    :param weight: strength of the signal, divided by the probability of observing it.
    :param kind: kind of the signal, or `skipped`.
    :param caller: the API key that vouches for the actor.
    """

    event: RerankEvent
    shown: ShownMemory
    actor: str
    value: int
    weight: float
    kind: str
    caller: str = ""


VotesByQuery = dict[tuple[str, str], list[Vote]]
"""Votes by tenant and query."""


def is_small_talk(query: str) -> bool:
    """Return whether a query asks for nothing: greetings, thanks, interjections."""
    tokens = words(query)
    return not tokens or all(word in _SMALL_TALK or word in STOPWORDS for word in tokens)


def query_key(query: str) -> str:
    """Return a key that is the same for queries with the same stems, in any order and case."""
    return " ".join(sorted(set(terms(query))))


def question_key(event: RerankEvent) -> str:
    """Return the `query_key` of an event, with the day for queries whose meaning depends on it."""
    query = event.query or ""
    if not _RELATIVE_TIMES.intersection(words(query)):
        return query_key(query)
    # The day of the user if the request states it; otherwise the day of the log, in UTC.
    day = event.query_time[:_DATE_LENGTH] if event.query_time else f"{event.time // 86400:.0f}"
    return query_key(query) + SEPARATOR + day


def votes_of_event(
    event: RerankEvent,
    signals: Iterable[Signal],
    propensities: Propensities,
    *,
    clip: float = 5.0,
    skip_weight: float = 0.3,
) -> list[Vote]:
    """Derive the votes of one event.

    - A person's signal is weighted by the inverse propensity of its rank, up to `clip`. An agent reads everything.
    - A memory without a signal above one that was clicked or cited was skipped: a weak negative vote, weighted by the
      inverse probability of observing the skip.
    - `ignored` counts only if the actor found another memory useful.
    - An actor who judges everything the same says nothing about the order, and has no vote.
    """
    by_actor: dict[str, list[Verdict]] = defaultdict(list)
    for verdict in merge_signals(signals):
        by_actor[verdict.actor].append(verdict)
    shown_by_rank = {shown.rank: shown for shown in event.shown}
    return [
        Vote(event, shown_by_rank[rank], actor, value, weight, kind, verdicts[-1].caller)
        for actor, verdicts in by_actor.items()
        for rank, value, weight, kind in _weigh(verdicts, shown_by_rank, propensities, clip, skip_weight)
    ]


def _weigh(
    verdicts: Sequence[Verdict],
    shown_by_rank: Mapping[int, ShownMemory],
    propensities: Propensities,
    clip: float,
    skip_weight: float,
) -> list[tuple[int, int, float, str]]:
    """The rank, value, weight and kind of each vote of one actor."""
    verdicts = [verdict for verdict in verdicts if verdict.rank in shown_by_rank]
    judges_everything = len(shown_by_rank) >= _MIN_SHOWN_TO_JUDGE and len(verdicts) == len(shown_by_rank)
    if judges_everything and len({verdict.value for verdict in verdicts}) == 1:
        return []
    has_positive = any(verdict.value > 0 for verdict in verdicts)
    weighted = []
    for verdict in verdicts:
        if verdict.kind == "ignored" and not has_positive:
            continue
        correction = 1.0
        if KINDS[verdict.kind].has_position_bias:
            correction = min(1 / propensities.examination(verdict.rank), clip)
        weighted.append((verdict.rank, verdict.value, verdict.strength * correction, verdict.kind))
    judged = {verdict.rank for verdict in verdicts}
    interesting = [verdict.rank for verdict in verdicts if verdict.value > 0 and verdict.kind in SHOWS_INTEREST]
    for rank in range(1, max(interesting, default=1)):
        if rank in shown_by_rank and rank not in judged:
            correction = min(1 / propensities.skip_observation(rank), clip)
            weighted.append((rank, -1, skip_weight * correction, SKIPPED))
    return weighted


def group_by_memory(votes: Iterable[Vote]) -> dict[str, list[Vote]]:
    """Group votes by `ShownMemory.identity`."""
    groups: dict[str, list[Vote]] = defaultdict(list)
    for vote in votes:
        groups[vote.shown.identity].append(vote)
    return dict(groups)


def select_votes(votes: VotesByQuery, settings: MiningSettings, dropped: Counter[str]) -> VotesByQuery:
    """Return the votes that count: one per actor and memory, from trusted actors, within their limits.

    :param dropped: counts what is left out, by reason.
    """
    single = {key: _merge_repeated(cast) for key, cast in votes.items() if cast}
    # First, because many users behind one key could also discredit the others.
    limited = _limit_users_per_key(single, settings.max_users_per_key, dropped)
    return _apply_limits(_drop_contradicted_actors(limited, dropped), settings, dropped)


def _merge_repeated(votes: Sequence[Vote]) -> list[Vote]:
    """One vote per actor and memory: the side with more weight, with the weight of its strongest vote, not the sum."""
    groups: dict[tuple[str, str], list[Vote]] = defaultdict(list)
    for vote in votes:
        groups[vote.actor, vote.shown.identity].append(vote)
    merged = []
    for group in groups.values():
        balance = sum(vote.value * vote.weight for vote in group)
        winning = [vote for vote in group if vote.value * balance > 0]
        if winning:
            merged.append(max(winning, key=lambda vote: (vote.weight, vote.event.time)))
    return merged


def _limit_users_per_key(votes: VotesByQuery, limit: int, dropped: Counter[str]) -> VotesByQuery:
    """On queries with votes through several API keys, limit the users of each: a key can invent as many as it likes.

    A hash selects them. Behind a single key all users count, since there is nobody whom they could outvote.
    """
    kept = {}
    for (tenant, key), cast in votes.items():
        actors: dict[str, set[str]] = defaultdict(set)
        for vote in cast:
            actors[vote.caller].add(vote.actor)
        if len(actors) > 1:
            allowed = {
                (caller, actor)
                for caller, names in actors.items()
                for actor in sorted(names, key=lambda name: digest(tenant, key, name))[:limit]
            }
            kept[tenant, key] = [vote for vote in cast if (vote.caller, vote.actor) in allowed]
        else:
            kept[tenant, key] = cast
        dropped["votes beyond the limit of an API key"] += len(cast) - len(kept[tenant, key])
    return kept


def _drop_contradicted_actors(votes: VotesByQuery, dropped: Counter[str]) -> VotesByQuery:
    """Leave out actors who mostly disagree with at least two others about the same memories."""
    agreements: dict[tuple[str, str], list[bool]] = defaultdict(list)
    for (tenant, _), cast in votes.items():
        for group in group_by_memory(cast).values():
            total = sum(vote.value for vote in group)
            for vote in group:
                others = total - vote.value
                if len(group) > 2 and others:
                    agreements[tenant, vote.actor].append(others * vote.value > 0)
    distrusted = {
        actor
        for actor, agreed in agreements.items()
        if len(agreed) >= _MIN_SHARED_VOTES and sum(agreed) < _MIN_AGREEMENT_WITH_OTHERS * len(agreed)
    }
    dropped["actors contradicted by others"] += len(distrusted)
    return {
        (tenant, key): [vote for vote in cast if (tenant, vote.actor) not in distrusted]
        for (tenant, key), cast in votes.items()
    }


def _apply_limits(votes: VotesByQuery, settings: MiningSettings, dropped: Counter[str]) -> VotesByQuery:
    """Limit the queries per actor. A hash selects them, so that neither early nor late votes are favored."""
    queries: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for (tenant, key), cast in votes.items():
        for vote in cast:
            queries[tenant][vote.actor].add(key)
    limits = {tenant: _query_limit(by_actor, settings) for tenant, by_actor in queries.items()}
    allowed = {
        (tenant, actor): set(sorted(keys, key=lambda key: digest(tenant, actor, key))[: limits[tenant]])
        for tenant, by_actor in queries.items()
        for actor, keys in by_actor.items()
    }
    kept = {}
    for (tenant, key), cast in votes.items():
        kept[tenant, key] = [vote for vote in cast if key in allowed[tenant, vote.actor]]
        dropped["votes beyond an actor's limit"] += len(cast) - len(kept[tenant, key])
    return kept


def _query_limit(queries_by_actor: Mapping[str, set[str]], settings: MiningSettings) -> int | None:
    """Return the number of queries that one actor of a tenant may vote on; None for the tenant's only actor."""
    if len(queries_by_actor) == 1:
        return None
    total = len(set().union(*queries_by_actor.values()))
    return max(settings.max_queries_per_user, int(settings.max_share_per_user * total))
