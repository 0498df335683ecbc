"""Labels from votes: a majority with a floor decides whether a memory is right, wrong or disputed."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from operator import itemgetter

from mnemorank.learning.events import digest, text_hash_of
from mnemorank.learning.mining.evidence import Lookup, Vote, query_key
from mnemorank.learning.mining.rules import MiningRules
from mnemorank.learning.mining.votes import by_memory
from mnemorank.memory.memory import Memory
from mnemorank.text.words import terms

EASY, UNJUDGED = "easy", "unjudged"
Ring = Sequence[tuple[str, str, Memory]]
_MANY_SPEAKERS = 4


@dataclass(frozen=True, slots=True)
class Labelled:
    """:param identity: `ShownMemory.identity` of the memory.
    :param votes: what the label rests on; none for memories that nobody judged.
    :param kind: of those: EASY or UNJUDGED.
    """

    memory: Memory
    identity: str
    label: float
    votes: tuple[Vote, ...] = ()
    kind: str = ""

    @property
    def text_hash(self) -> str:
        return text_hash_of(self.identity)

    @property
    def weight(self) -> float:
        """Of the votes that agree with the label."""
        return sum(vote.weight for vote in self.votes if (vote.value > 0) == (self.label > 0))


def label(
    given: Sequence[Vote],
    pool: Mapping[str, Memory],
    rules: MiningRules,
    lookup: Lookup | None,
    dropped: Counter[str],
) -> tuple[list[Labelled], list[Labelled]]:
    """The right and the wrong memories of one query, the weightiest of each.

    :param pool: memories by their identity; `lookup` is asked for those that are not in it.
    """
    found = []
    speakers = len({vote.actor for vote in given})
    for identity, same in sorted(by_memory(given).items()):
        memory = text_of(identity, same[0].shown.memory_id, pool, lookup)
        decided = _majority(same, speakers, rules)
        if memory is None:
            dropped["memories without a text"] += 1
        elif decided is None:
            dropped["disputed memories"] += 1
        else:
            found.append(Labelled(memory, identity, decided, tuple(same)))
    return _weightiest(found, 1.0, rules.positives), _weightiest(found, 0.0, rules.negatives)


def easy_negatives(tenant: str, query: str, ring: Ring, judged: Collection[str], most: int) -> list[Labelled]:
    """Memories of other queries that share no word with this one.

    :param ring: of the tenant's memories; where on it to begin is drawn by the query's own hash.
    """
    asked = set(terms(query))
    start = bisect_left(ring, digest(tenant, query_key(query)), key=itemgetter(0))
    found: list[Labelled] = []
    for _, identity, memory in chain(islice(ring, start, None), islice(ring, start)):
        if len(found) == most:
            break
        if identity not in judged and not asked & set(terms(memory.text)):
            found.append(Labelled(memory, identity, 0.0, kind=EASY))
    return found


def ring_of(pool: Mapping[str, Memory]) -> Ring:
    """Memories by a hash of their text that is the same for every store."""
    return sorted(((digest(memory.text), identity, memory) for identity, memory in pool.items()), key=itemgetter(0))


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


def text_of(identity: str, name: str | None, pool: Mapping[str, Memory], lookup: Lookup | None) -> Memory | None:
    """The memory as the store keeps it, else as `lookup` knows it."""
    found = pool.get(identity)
    return found if found is not None or lookup is None or name is None else lookup(name)


def _weightiest(labelled: Iterable[Labelled], label: float, most: int) -> list[Labelled]:
    same = [entry for entry in labelled if entry.label == label]
    # Ties by text: hashes are keyed by store, and the same log is to give the same examples.
    return sorted(same, key=lambda entry: (-entry.weight, entry.memory.text))[:most]


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
