"""Labels: a majority of the votes decides whether a memory is relevant, irrelevant or disputed."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from operator import itemgetter

from mnemorank.learning.events import digest, text_hash_of
from mnemorank.learning.mining.votes import Vote, group_by_memory, query_key
from mnemorank.learning.settings import MiningSettings
from mnemorank.memory.memory import Memory
from mnemorank.text.words import terms

EASY, UNJUDGED = "easy", "unjudged"
_MIN_ACTORS_FOR_SUPPORT = 4
_MIN_WEIGHT, _MAX_WEIGHT = 0.1, 5.0

Lookup = Callable[[str], Memory | None]
"""Returns a memory by its id, for stores without texts."""

HashedMemories = Sequence[tuple[str, str, Memory]]
"""Hash of the text, identity and memory, ordered by hash."""


@dataclass(frozen=True, slots=True)
class LabeledMemory:
    """A memory with the label that its votes result in.

    :param identity: `ShownMemory.identity` of the memory.
    :param votes: empty for memories that nobody judged.
    :param kind: EASY or UNJUDGED for memories that nobody judged.
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
    def vote_weight(self) -> float:
        """Total weight of the votes that agree with the label."""
        return sum(vote.weight for vote in self.votes if (vote.value > 0) == (self.label > 0))


def label_memories(
    votes: Sequence[Vote],
    memories: Mapping[str, Memory],
    settings: MiningSettings,
    lookup: Lookup | None,
    dropped: Counter[str],
) -> tuple[list[LabeledMemory], list[LabeledMemory]]:
    """Return the positives and negatives of one query, by weight.

    :param memories: stored memories by identity; `lookup` finds the others.
    """
    labeled = []
    actor_count = len({vote.actor for vote in votes})
    for identity, group in sorted(group_by_memory(votes).items()):
        memory = find_memory(identity, group[0].shown.memory_id, memories, lookup)
        label = _majority(group, actor_count, settings)
        if memory is None:
            dropped["memories without a text"] += 1
        elif label is None:
            dropped["disputed memories"] += 1
        else:
            labeled.append(LabeledMemory(memory, identity, label, tuple(group)))
    return _heaviest(labeled, 1.0, settings.max_positives), _heaviest(labeled, 0.0, settings.max_negatives)


def easy_negatives(
    tenant: str, query: str, memories: HashedMemories, judged: Collection[str], count: int
) -> list[LabeledMemory]:
    """Choose memories of other queries that share no word with this one, starting at a hash of the query."""
    query_terms = set(terms(query))
    start = bisect_left(memories, digest(tenant, query_key(query)), key=itemgetter(0))
    chosen: list[LabeledMemory] = []
    for _, identity, memory in chain(islice(memories, start, None), islice(memories, start)):
        if len(chosen) == count:
            break
        if identity not in judged and not query_terms & set(terms(memory.text)):
            chosen.append(LabeledMemory(memory, identity, 0.0, kind=EASY))
    return chosen


def order_by_hash(memories: Mapping[str, Memory]) -> HashedMemories:
    """Order memories by a hash of their text that is the same in every store."""
    return sorted(((digest(memory.text), identity, memory) for identity, memory in memories.items()), key=itemgetter(0))


def find_memory(
    identity: str, memory_id: str | None, memories: Mapping[str, Memory], lookup: Lookup | None
) -> Memory | None:
    """Return the memory from the store, or from `lookup`."""
    memory = memories.get(identity)
    return memory if memory is not None or lookup is None or memory_id is None else lookup(memory_id)


def average_weights(labeled: Iterable[LabeledMemory]) -> dict[float, float]:
    """Return the average vote weight of each label."""
    weights: dict[float, list[float]] = {}
    for entry in labeled:
        if entry.votes:
            weights.setdefault(entry.label, []).append(entry.vote_weight)
    return {label: sum(values) / len(values) for label, values in weights.items()}


def training_weight(entry: LabeledMemory, averages: Mapping[float, float] | None) -> float:
    """Return the weight of a label: its vote weight relative to the average, within bounds.

    The label of an unjudged memory is a guess, and has no weight.

    :param averages: None gives all labels the same weight.
    """
    if entry.kind == UNJUDGED:
        return 0.0
    if averages is None or not entry.votes:
        return 1.0
    return round(min(max(entry.vote_weight / averages[entry.label], _MIN_WEIGHT), _MAX_WEIGHT), 4)


def _majority(votes: Sequence[Vote], actor_count: int, settings: MiningSettings) -> float | None:
    """Return the label that the votes agree on; None if they do not agree.

    :param actor_count: actors who voted on any memory of the query.
    """
    positive = [vote for vote in votes if vote.value > 0]
    share_by_weight = sum(vote.weight for vote in positive) / sum(vote.weight for vote in votes)
    # Position correction alone must not outvote people, so the head count has to agree.
    share_by_head = len(positive) / len(votes)
    if min(share_by_weight, share_by_head) >= settings.min_agreement:
        is_supported = actor_count < _MIN_ACTORS_FOR_SUPPORT or len(positive) > settings.min_support * actor_count
        return 1.0 if is_supported and len(positive) >= settings.min_users else None
    return 0.0 if max(share_by_weight, share_by_head) <= 1 - settings.min_agreement else None


def _heaviest(labeled: Iterable[LabeledMemory], label: float, count: int) -> list[LabeledMemory]:
    matching = [entry for entry in labeled if entry.label == label]
    # Ties are broken by text: hashes differ between stores, but the same log must result in the same examples.
    return sorted(matching, key=lambda entry: (-entry.vote_weight, entry.memory.text))[:count]
