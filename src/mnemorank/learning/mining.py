"""From votes to examples: majority, caps, splits, provenance."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mnemorank.data.records import Candidate, Example
from mnemorank.errors import InputError
from mnemorank.learning.events import Event
from mnemorank.learning.evidence import Lookup, Vote, is_chitchat, query_key, votes
from mnemorank.learning.propensity import Propensities
from mnemorank.learning.signals import Signal
from mnemorank.memory import Memory
from mnemorank.moment import Moment
from mnemorank.words import terms

TRAIN, HELD_OUT = "train", "held-out"
SEPARATOR = "\x1f"
_MANY_SPEAKERS = 4


@dataclass(frozen=True, slots=True)
class MiningRules:
    """How feedback becomes examples.

    :param clip: the most that position correction may multiply a signal by.
    :param floor: share of the weight that must agree for a label; below it the memory is left out as disputed.
    :param per_user: queries one actor may speak on, or `user_share` of all queries if that is more.
    :param min_users: actors that must have spoken for a memory for it to be a positive.
    :param support: of the actors who spoke on a query, the share that a positive needs more than; from four actors on.
        Without it a few accounts could push a memory that nobody else has looked at.
    :param positives, negatives: most kept per query, the weightiest.
    :param easy_negatives: drawn from other queries where a query has positives alone.
    :param held_out: share of queries that are kept for the gate and never trained on.
    """

    clip: float = 5.0
    skip_weight: float = 0.3
    floor: float = 2 / 3
    per_user: int = 20
    user_share: float = 0.1
    min_users: int = 1
    support: float = 1 / 3
    positives: int = 3
    negatives: int = 8
    easy_negatives: int = 3
    held_out: float = 0.3

    def __post_init__(self) -> None:
        if not 0.5 < self.floor <= 1:
            raise InputError(f"mining.floor: expected a share above 0.5, got {self.floor!r}")
        if not 0 < self.held_out < 1:
            raise InputError(f"mining.held_out: expected a share between 0 and 1, got {self.held_out!r}")


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
    # A draw of its own: recipes split by the bare hash, and theirs must not depend on ours.
    number = int.from_bytes(hashlib.sha256(f"held-out{SEPARATOR}{query_key(query)}".encode()).digest()[:8], "big")
    return HELD_OUT if number / 2**64 < held_out else TRAIN


def named(tenant: str, name: str) -> str:
    """A user's or memory's name within its tenant, as a source."""
    return tenant + SEPARATOR + name


def mine(
    log: Iterable[tuple[Event, Sequence[Signal]]],
    propensities: Propensities,
    rules: MiningRules | None = None,
    lookup: Lookup | None = None,
) -> Mined:
    """Examples from the feedback of a log, one a query and tenant.

    :param lookup: gives a memory by its id, for stores that may not keep texts.
    """
    rules = rules or MiningRules()
    dropped: Counter[str] = Counter()
    cast: dict[tuple[str, str], list[Vote]] = defaultdict(list)
    pool: dict[str, dict[str, Memory]] = defaultdict(dict)
    for event, signals in log:
        if event.query is None:
            dropped["events without a stored query"] += 1
            continue
        if is_chitchat(event.query):
            dropped["chit-chat"] += 1
            continue
        for shown in event.shown:
            if shown.memory is not None:
                pool[event.tenant].setdefault(shown.text_hash, shown.memory)
        given = votes(event, signals, propensities, clip=rules.clip, skip_weight=rules.skip_weight)
        if not given:
            dropped["events without evidence"] += 1
        cast[event.tenant, query_key(event.query)] += given
    single = {key: one_vote_each(given) for key, given in cast.items() if given}
    trusted = _without_contrarians(single, dropped)
    capped = _capped(trusted, rules, dropped)
    examples = []
    for (tenant, key), given in sorted(capped.items()):
        example = _example(tenant, key, given, pool[tenant], rules, lookup, dropped)
        if example is not None:
            examples.append(example)
    return Mined(tuple(examples), dict(dropped))


def one_vote_each(given: Sequence[Vote]) -> list[Vote]:
    """One vote an actor and memory: the side its votes lean to, with the weight of the strongest, not their sum."""
    by_pair: dict[tuple[str, str], list[Vote]] = defaultdict(list)
    for vote in given:
        by_pair[vote.actor, vote.shown.text_hash].append(vote)
    chosen = []
    for same in by_pair.values():
        lean = sum(vote.value * vote.weight for vote in same)
        side = [vote for vote in same if vote.value * lean > 0]
        if side:
            chosen.append(max(side, key=lambda vote: (vote.weight, vote.event.time)))
    return chosen


def _without_contrarians(
    cast: Mapping[tuple[str, str], list[Vote]], dropped: Counter[str], least: int = 5, agreement: float = 0.4
) -> dict[tuple[str, str], list[Vote]]:
    """Without actors whom at least two others mostly contradict, wherever they spoke on the same memory."""
    agreed: dict[tuple[str, str], list[bool]] = defaultdict(list)
    for (tenant, _), given in cast.items():
        by_memory: dict[str, list[Vote]] = defaultdict(list)
        for vote in given:
            by_memory[vote.shown.text_hash].append(vote)
        for same in by_memory.values():
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


def _capped(
    cast: Mapping[tuple[str, str], list[Vote]], rules: MiningRules, dropped: Counter[str]
) -> dict[tuple[str, str], list[Vote]]:
    """At most so many queries an actor. Which ones is decided by hash: neither the first nor the last to come wins."""
    queries: dict[tuple[str, str], set[str]] = defaultdict(set)
    for (tenant, key), given in cast.items():
        for vote in given:
            queries[tenant, vote.actor].add(key)
    limit = max(rules.per_user, int(rules.user_share * len(cast)))
    allowed = {
        (tenant, actor): set(sorted(keys, key=lambda key: digest(tenant, actor, key))[:limit])
        for (tenant, actor), keys in queries.items()
    }
    kept = {}
    for (tenant, key), given in cast.items():
        kept[tenant, key] = [vote for vote in given if key in allowed[tenant, vote.actor]]
        dropped["votes over an actor's limit"] += len(given) - len(kept[tenant, key])
    return kept


def _example(
    tenant: str,
    key: str,
    given: Sequence[Vote],
    pool: Mapping[str, Memory],
    rules: MiningRules,
    lookup: Lookup | None,
    dropped: Counter[str],
) -> MinedExample | None:
    by_memory: dict[str, list[Vote]] = defaultdict(list)
    for vote in given:
        by_memory[vote.shown.text_hash].append(vote)
    labelled = []
    speakers = len({vote.actor for vote in given})
    for text_hash, same in sorted(by_memory.items()):
        memory = _memory(same, pool, lookup)
        label = _majority(same, speakers, rules)
        if memory is None:
            dropped["memories without a text"] += 1
        elif label is None:
            dropped["disputed memories"] += 1
        else:
            labelled.append(_Labelled(memory, text_hash, label, tuple(same)))
    right = _weightiest(labelled, 1.0, rules.positives)
    wrong = _weightiest(labelled, 0.0, rules.negatives)
    if not right:
        dropped["queries without a positive"] += 1
        return None
    query = max((vote.event for vote in given), key=lambda event: (event.time, event.id))
    text = query.query or ""
    if not wrong:
        wrong = _easy(tenant, key, text, pool, by_memory, rules.easy_negatives)
    if not wrong:
        dropped["queries without a negative"] += 1
        return None
    return _assembled(tenant, key, text, query.query_time, [*right, *wrong], rules)


@dataclass(frozen=True, slots=True)
class _Labelled:
    memory: Memory
    text_hash: str
    label: float
    votes: tuple[Vote, ...]

    @property
    def weight(self) -> float:
        return sum(vote.weight for vote in self.votes if (vote.value > 0) == (self.label > 0))


def _majority(same: Sequence[Vote], speakers: int, rules: MiningRules) -> float | None:
    """:param speakers: how many actors spoke on the query at all."""
    likes = [vote for vote in same if vote.value > 0]
    share = sum(vote.weight for vote in likes) / sum(vote.weight for vote in same)
    # Both by weight and by heads: position correction alone must not outvote the people.
    heads = len(likes) / len(same)
    if min(share, heads) >= rules.floor:
        is_supported = speakers < _MANY_SPEAKERS or len(likes) > rules.support * speakers
        return 1.0 if is_supported and len(likes) >= rules.min_users else None
    return 0.0 if max(share, heads) <= 1 - rules.floor else None


def _memory(same: Sequence[Vote], pool: Mapping[str, Memory], lookup: Lookup | None) -> Memory | None:
    found = pool.get(same[0].shown.text_hash)
    name = same[0].shown.memory_id
    return found if found is not None or lookup is None or name is None else lookup(name)


def _weightiest(labelled: Iterable[_Labelled], label: float, most: int) -> list[_Labelled]:
    same = [entry for entry in labelled if entry.label == label]
    return sorted(same, key=lambda entry: (-entry.weight, entry.text_hash))[:most]


def _easy(
    tenant: str, key: str, query: str, pool: Mapping[str, Memory], judged: Mapping[str, object], most: int
) -> list[_Labelled]:
    """Memories of other queries that share no word with this one."""
    asked = set(terms(query))
    by_chance = sorted(
        (text_hash for text_hash in pool if text_hash not in judged), key=lambda h: digest(tenant, key, h)
    )
    found: list[_Labelled] = []
    for text_hash in by_chance:
        if len(found) == most:
            break
        if not asked & set(terms(pool[text_hash].text)):
            found.append(_Labelled(pool[text_hash], text_hash, 0.0, ()))
    return found


def _assembled(
    tenant: str, key: str, query: str, time: str | None, labelled: Sequence[_Labelled], rules: MiningRules
) -> MinedExample:
    cast = [vote for entry in labelled for vote in entry.votes]
    sources = {("tenant", tenant)} | {("text", entry.text_hash) for entry in labelled}
    sources |= {("event", vote.event.id) for vote in cast}
    for vote in cast:
        sources |= {("actor", named(tenant, name)) for name in (vote.actor, vote.event.user) if name}
    sources |= {("memory", named(tenant, entry.memory.id)) for entry in labelled if entry.memory.id}
    provenance = {
        "origin": "feedback",
        "actors": len({vote.actor for vote in cast}),
        "events": sorted({vote.event.id for vote in cast}),
        "models": sorted({vote.event.model_version for vote in cast}),
        "labels": [
            {
                "text_hash": entry.text_hash,
                "label": entry.label,
                "weight": round(entry.weight, 4),
                "votes": dict(sorted(Counter(vote.kind for vote in entry.votes).items())) or {"easy": 1},
            }
            for entry in labelled
        ],
    }
    example = Example(
        id="feedback-" + digest(tenant, key),
        query=query,
        candidates=tuple(Candidate(entry.memory.with_score(None), entry.label) for entry in labelled),
        query_time=Moment.parse(time) if time else None,
        group=key,
        source="feedback",
    )
    return MinedExample(example, tenant, split_of(query, rules.held_out), provenance, frozenset(sources))


def digest(*parts: str) -> str:
    return hashlib.blake2b(SEPARATOR.join(parts).encode("utf-8", "replace"), digest_size=10).hexdigest()
