"""Who may speak: one vote each, nobody on too many queries, nobody whom the others contradict."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from mnemorank.learning.events import digest
from mnemorank.learning.mining.evidence import Vote
from mnemorank.learning.mining.rules import MiningRules

Votes = dict[tuple[str, str], list[Vote]]
"""Votes by tenant and query."""


def by_memory(given: Sequence[Vote]) -> dict[str, list[Vote]]:
    """Votes by the memory's identity."""
    found: dict[str, list[Vote]] = defaultdict(list)
    for vote in given:
        found[vote.shown.identity].append(vote)
    return dict(found)


def admitted(cast: Mapping[tuple[str, str], list[Vote]], rules: MiningRules, dropped: Counter[str]) -> Votes:
    """The votes that count.

    :param dropped: is told how much was left out, by reason.
    """
    single = {key: one_vote_each(given) for key, given in cast.items() if given}
    return _within_limits(_without_contrarians(single, dropped), rules, dropped)


def one_vote_each(given: Sequence[Vote]) -> list[Vote]:
    """One vote an actor and memory: the side its votes lean to, with the weight of the strongest, not their sum."""
    by_pair: dict[tuple[str, str], list[Vote]] = defaultdict(list)
    for vote in given:
        by_pair[vote.actor, vote.shown.identity].append(vote)
    chosen = []
    for same in by_pair.values():
        lean = sum(vote.value * vote.weight for vote in same)
        side = [vote for vote in same if vote.value * lean > 0]
        if side:
            chosen.append(max(side, key=lambda vote: (vote.weight, vote.event.time)))
    return chosen


def _without_contrarians(cast: Votes, dropped: Counter[str], least: int = 5, agreement: float = 0.4) -> Votes:
    """Without actors whom at least two others mostly contradict, wherever they spoke on the same memory."""
    agreed: dict[tuple[str, str], list[bool]] = defaultdict(list)
    for (tenant, _), given in cast.items():
        for same in by_memory(given).values():
            total = sum(vote.value for vote in same)
            for vote in same:
                others = total - vote.value
                if len(same) > 2 and others:
                    agreed[tenant, vote.actor].append(others * vote.value > 0)
    distrusted = {who for who, hits in agreed.items() if len(hits) >= least and sum(hits) < agreement * len(hits)}
    dropped["actors whom others contradict"] += len(distrusted)
    return {
        (tenant, key): [vote for vote in given if (tenant, vote.actor) not in distrusted]
        for (tenant, key), given in cast.items()
    }


def _within_limits(cast: Votes, rules: MiningRules, dropped: Counter[str]) -> Votes:
    """At most so many queries an actor. Which ones is decided by hash: neither the first nor the last to come wins."""
    queries: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for (tenant, key), given in cast.items():
        for vote in given:
            queries[tenant][vote.actor].add(key)
    limits = {tenant: _limit(by_actor, rules) for tenant, by_actor in queries.items()}
    allowed = {
        (tenant, actor): set(sorted(keys, key=lambda key: digest(tenant, actor, key))[: limits[tenant]])
        for tenant, by_actor in queries.items()
        for actor, keys in by_actor.items()
    }
    kept = {}
    for (tenant, key), given in cast.items():
        kept[tenant, key] = [vote for vote in given if key in allowed[tenant, vote.actor]]
        dropped["votes over an actor's limit"] += len(given) - len(kept[tenant, key])
    return kept


def _limit(queries: Mapping[str, set[str]], rules: MiningRules) -> int | None:
    """How many queries an actor of a tenant may speak on; None for all, where there is nobody else to drown out.

    :param queries: that each actor of the tenant spoke on.
    """
    if len(queries) == 1:
        return None
    return max(rules.per_user, int(rules.user_share * len(set().union(*queries.values()))))
