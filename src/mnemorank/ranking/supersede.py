"""Current state: of two memories about the same matter, the newer stands, the older is stale and ranks below it."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations

from mnemorank.memory import Memory
from mnemorank.moment import Moment
from mnemorank.ranking.lexical import jaccard, word_cosine
from mnemorank.words import terms

SAME_TEXT = 0.6
SAME_ENTITIES = 0.5
KEYS = ("key", "subject")

_ASKS_FOR_THE_PAST = re.compile(
    r"\b(?:before|previous(?:ly)?|former(?:ly)?|used to|original(?:ly)?|at first|first|earlier|earliest|past|history|"
    r"historical(?:ly)?|until|till|prior|last year|back (?:in|then)|ago|old|older|changed?|switch(?:ed)?|was|were|did|"
    r"had|(?:in|during|since|by) (?:\w+ )?(?:19|20)\d\d)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Supersession:
    """:param stale: position of an outdated memory → position of the one that replaced it.
    :param future: positions of memories that had not begun at the asked date.
    """

    stale: dict[int, int] = field(default_factory=dict)
    future: frozenset[int] = frozenset()


def asks_for_the_past(query: str) -> bool:
    """Whether the question is about how things were, so that an outdated memory may be the right answer."""
    return bool(_ASKS_FOR_THE_PAST.search(query))


def find_superseded(memories: Sequence[Memory], as_of: Moment | None = None) -> Supersession:
    """Which memories were replaced by another of the pool.

    Two memories are of the same matter if one names the other (`supersedes`, `superseded_by` in the metadata), if they
    share a `key` (or `subject`) in the metadata, or if both are dated states (not events) whose words, context and
    entities nearly agree. The newer must have begun strictly later, at the precision of their dates.

    :param as_of: the date whose state is asked for; memories that began later neither count nor replace.
    """
    future = frozenset(i for i, m in enumerate(memories) if as_of and m.date and as_of.end <= m.date.start)
    known = [i for i in range(len(memories)) if i not in future]
    newest: dict[int, int] = {}
    for older, newer in _named_pairs(memories, known) | _matching_pairs(memories, known):
        best = newest.get(older)
        if best is None or memories[newer].is_newer_than(memories[best]):
            newest[older] = newer
    # A declared cycle (a replaces b, b replaces a) says nothing about which one stands.
    newest = {older: newer for older, newer in newest.items() if newest.get(newer) != older}
    return Supersession(newest, future)


def demote(order: Sequence[int], found: Supersession, relevance: Sequence[float], share: float = 0.5) -> list[int]:
    """Put each stale memory right below its successor, and memories of the future last; all else keeps its order.

    A stale memory stays where it is when its successor is not an answer itself: under `share` of its relevance.
    """
    result = [item for item in order if item not in found.future]
    below: dict[int, list[int]] = defaultdict(list)
    place = {item: rank for rank, item in enumerate(result)}
    for older, newer in found.stale.items():
        if older not in place or newer not in place or place[newer] < place[older]:
            continue
        if relevance[newer] >= share * relevance[older]:
            below[newer].append(older)
    moved = {older for group in below.values() for older in group}

    def with_followers(item: int) -> list[int]:
        followers = sorted(below.get(item, ()), key=place.__getitem__)
        return [item] + [each for follower in followers for each in with_followers(follower)]

    placed = [each for item in result if item not in moved for each in with_followers(item)]
    return placed + [item for item in order if item in found.future]


def _named_pairs(memories: Sequence[Memory], known: Sequence[int]) -> set[tuple[int, int]]:
    by_id = {memories[i].id: i for i in known if memories[i].id is not None}
    pairs = set()
    for i in known:
        for name, is_newer in (("supersedes", True), ("superseded_by", False)):
            stated = memories[i].metadata.get(name)
            for other in stated if isinstance(stated, (list, tuple)) else [stated]:
                j = by_id.get(str(other)) if other is not None else None
                if j is not None and j != i:
                    pairs.add((j, i) if is_newer else (i, j))
    return pairs


def _matching_pairs(memories: Sequence[Memory], known: Sequence[int]) -> set[tuple[int, int]]:
    pairs = set()
    for group in _candidate_groups(memories, known):
        for a, b in combinations(group, 2):
            older, newer = (a, b) if memories[b].is_newer_than(memories[a]) else (b, a)
            if memories[newer].is_newer_than(memories[older]):
                pairs.add((older, newer))
    return pairs


def _candidate_groups(memories: Sequence[Memory], known: Sequence[int]) -> list[tuple[int, ...]]:
    """Groups by stated key, and pairs of like states. Rare shared words find the pairs, so pools may be large."""
    keyed: dict[tuple[str, str], list[int]] = defaultdict(list)
    bags: dict[int, Counter[str]] = {}
    by_term: dict[str, list[int]] = defaultdict(list)
    for i in known:
        memory = memories[i]
        if memory.date is None:
            continue
        key = next(((name, str(memory.metadata[name])) for name in KEYS if memory.metadata.get(name)), None)
        if key:
            keyed[key].append(i)
        elif memory.occurred_start is not None and memory.type in (None, "world"):
            bags[i] = Counter(terms(memory.text[:2000]))
            for term in bags[i]:
                by_term[term].append(i)
    alike: Counter[tuple[int, int]] = Counter()
    for holders in by_term.values():
        if len(holders) <= 50:
            alike.update(combinations(holders, 2))
    pairs = [
        (a, b)
        for (a, b), shared in alike.items()
        if shared * 2 >= min(len(bags[a]), len(bags[b])) and _same_matter(memories[a], memories[b], bags[a], bags[b])
    ]
    return [*map(tuple, keyed.values()), *pairs]


def _same_matter(a: Memory, b: Memory, bag_a: Counter[str], bag_b: Counter[str]) -> bool:
    if a.text == b.text or (a.context and b.context and a.context != b.context):
        return False
    if a.speaker and b.speaker and a.speaker != b.speaker:
        return False
    if a.entities and b.entities and jaccard(a.entities, b.entities) < SAME_ENTITIES:
        return False
    return word_cosine(bag_a, bag_b) >= SAME_TEXT
