"""Current state: of two memories about the same matter, the newer stands, the older is stale and ranks below it."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from mnemorank.memory.memory import Memory
from mnemorank.memory.moment import Moment
from mnemorank.memory.values import as_id, is_missing
from mnemorank.ranking.rivals import Claim, are_rivals
from mnemorank.results import StaleReason
from mnemorank.text.sentences import split_sentences
from mnemorank.text.similarity import cosine, name_similarity
from mnemorank.text.words import terms

SAME_TEXT = 0.55
SAME_ENTITIES = 0.5
_NEVER = Moment(1)
# Of a key that thousands share so many of the newest count as successors.
_MOST_SUCCESSORS = 8
_COMMON_TERM = 200
# A longer text without a stated start is a session or document, not a fact that another replaces.
_LONGEST_FACT = 300

_ASKS_FOR_THE_PAST = re.compile(
    r"\b(?:before|previous(?:ly)?|former(?:ly)?|used to|original(?:ly)?|at first|first(?! name)|earlier|earliest|past|"
    r"history|historical(?:ly)?|until|till|prior|last year|back (?:in|then)|ago|(?<!how )old|older|changed?|"
    r"switch(?:ed)?|was|were|did(?! (?:i|we|you|he|she|they) (?:say|tell|mention|write|ask))|had|"
    r"(?:in|during|since|by) (?:\w+ )?(?:19|20)\d\d)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Supersession:
    """:param stale: position of an outdated memory → position of the one that replaced it.
    :param future: positions of memories that had not begun at the asked date.
    :param because: position of an outdated memory → how that is known: one of the two says so (`stated`), they share a
        `key`, or their words are `similar`.
    :param successors: position of an outdated memory → all that replaced it, the newest, which `stale` names, first.
    """

    stale: dict[int, int] = field(default_factory=dict)
    future: frozenset[int] = frozenset()
    because: dict[int, StaleReason] = field(default_factory=dict)
    successors: dict[int, tuple[int, ...]] = field(default_factory=dict)


def asks_for_the_past(query: str) -> bool:
    """Whether the question is about how things were, so that an outdated memory may be the right answer.

    Of a turn of a chat the last sentence that asks tells; nearly every turn has a "was" somewhere.
    """
    asked = [sentence for sentence in split_sentences(query) if sentence.rstrip().endswith("?")]
    return bool(_ASKS_FOR_THE_PAST.search(asked[-1] if asked else query))


def not_begun(memories: Sequence[Memory], as_of: Moment | None) -> frozenset[int]:
    """Positions of the memories that began after the asked date; none where none is asked."""
    return frozenset(i for i, m in enumerate(memories) if as_of and m.started_at and as_of.is_before(m.started_at))


def find_superseded(
    memories: Sequence[Memory],
    as_of: Moment | None = None,
    among: Sequence[int] | None = None,
    now: Moment | None = None,
    similar: bool = False,
) -> Supersession:
    """Which memories were replaced by another of the pool.

    Two memories are of the same matter if one names the other (`supersedes`, `superseded_by` in the metadata), or if
    both are dated states (not events) that share a `key` in the metadata, or whose words, context and entities nearly
    agree and which cannot both be true (`are_rivals`). A short fact that has only a date of noting (`created_at`)
    counts as begun then; a turn of a chat does not. The newer must have begun strictly later, at the precision of
    their dates, and must not be over where the older goes on.

    :param as_of: the date whose state is asked for; memories that began later neither count nor replace.
    :param among: positions to look at, all by default; `future` is always of the whole pool.
    :param now: the present: what is to begin later, a plan, replaces nothing yet, unless it is stated to.
    :param similar: also compare the words of dated facts, by an English heuristic.
    """
    future = not_begun(memories, as_of)
    known = [i for i in (range(len(memories)) if among is None else among) if i not in future]
    named = _named_pairs(memories, known)
    seen_from = as_of or now
    begun = [i for i in known if not _is_planned(memories[i], seen_from)]
    # What is stated is sure: no date and no likeness says otherwise of the same two, or of what has a stated successor.
    replaced = {older for older, _ in named}
    guessed = {
        pair: why
        for pair, why in _matching_pairs(memories, begun, seen_from, similar).items()
        if pair[0] not in replaced and pair[::-1] not in named
    }
    pairs = named | guessed
    successors: dict[int, list[int]] = defaultdict(list)
    for older, newer in sorted(pairs, key=lambda pair: -(memories[pair[1]].started_at or _NEVER).start):
        successors[older].append(newer)
    newest = _without_circles({older: found[0] for older, found in successors.items()})
    because = {older: pairs[older, newer] for older, newer in newest.items()}
    return Supersession(newest, future, because, {older: tuple(successors[older]) for older in newest})


def _is_planned(memory: Memory, seen_from: Moment | None) -> bool:
    """Whether it has still to begin; when it was noted does not tell."""
    return bool(seen_from and memory.occurred_start and seen_from.is_before(memory.occurred_start))


def _without_circles(newest: Mapping[int, int]) -> dict[int, int]:
    """A declared circle (a replaces b, b replaces a) says nothing about which one stands."""
    seen: set[int] = set()
    circles: set[int] = set()
    for start in newest:
        path: dict[int, None] = {}
        item = start
        while item in newest and item not in seen:
            seen.add(item)
            path[item] = None
            item = newest[item]
        if item in path:
            members = list(path)
            circles.update(members[members.index(item) :])
    return {older: newer for older, newer in newest.items() if older not in circles}


def _followed(chain: Mapping[int, int], item: int) -> Iterator[int]:
    """What replaces an item, what replaces that, and so on."""
    while item in chain:
        item = chain[item]
        yield item


def demote(order: Sequence[int], found: Supersession, relevance: Sequence[float], share: float = 0.5) -> list[int]:
    """Put each stale memory right below its successor, and memories of the future last; all else keeps its order.

    A successor that is no answer itself (under `share` of the relevance) leaves its place to the next one, and a stale
    memory without such a successor stays where it is.
    """
    result = [item for item in order if item not in found.future]
    below: dict[int, list[int]] = defaultdict(list)
    place = {item: rank for rank, item in enumerate(result)}
    answers: dict[int, int] = {}
    for older, newest in found.stale.items():
        for newer in found.successors.get(older, (newest,)):
            if older in place and newer in place and relevance[newer] >= share * relevance[older]:
                answers[older] = newer
                break
    chain = _without_circles(answers)
    for older, newer in chain.items():
        # Its successor may itself be on its way down, below its own.
        if any(place[item] > place[older] for item in _followed(chain, older)):
            below[newer].append(older)
    moved = {older for group in below.values() for older in group}

    def with_followers(item: int) -> list[int]:
        found_items, waiting = [], [item]
        while waiting:
            found_items.append(waiting.pop())
            waiting += sorted(below.get(found_items[-1], ()), key=place.__getitem__, reverse=True)
        return found_items

    placed = [each for item in result if item not in moved for each in with_followers(item)]
    return placed + [item for item in order if item in found.future]


def dropped(found: Supersession) -> set[int]:
    """Return the stale memories that may be left out: never those that are merely similar to a newer one."""
    return {item for item in found.stale if found.because[item] != "similar"}


def _named_pairs(memories: Sequence[Memory], known: Sequence[int]) -> dict[tuple[int, int], StaleReason]:
    by_id: dict[str | None, list[int]] = defaultdict(list)  # a pool of two retrievers may hold a memory twice
    for i in known:
        by_id[memories[i].id].append(i)
    pairs: dict[tuple[int, int], StaleReason] = {}
    for i in known:
        for name, is_newer in (("supersedes", True), ("superseded_by", False)):
            stated = memories[i].metadata.get(name)
            for other in stated if isinstance(stated, (list, tuple)) else [stated]:
                for j in () if is_missing(other) else by_id.get(as_id(other), ()):
                    if j != i:
                        pairs[(j, i) if is_newer else (i, j)] = "stated"
    return pairs


def _matching_pairs(
    memories: Sequence[Memory], known: Sequence[int], seen_from: Moment | None, similar: bool
) -> dict[tuple[int, int], StaleReason]:
    """(older, newer) of states that share a key, each with the newest of its key, and of states that are alike and do
    not both have one. What is over does not replace what goes on."""
    keyed: dict[str, list[int]] = defaultdict(list)
    bags: dict[int, Counter[str]] = {}
    for i in known:
        memory = memories[i]
        if memory.is_event or memory.date is None:
            continue
        if not is_missing(memory.metadata.get("key")):
            keyed[str(memory.metadata["key"])].append(i)
        if similar and memory.is_state and (memory.occurred_start is not None or _is_noted_fact(memory)):
            bags[i] = Counter(terms(memory.text[:2000]))
    pairs: list[tuple[int, int, StaleReason]] = [(a, b, "similar") for a, b in _alike(memories, bags)]
    for group in keyed.values():
        newest = sorted(group, key=lambda i: (memories[i].started_at or _NEVER).start)[-_MOST_SUCCESSORS:]
        pairs += [(a, b, "key") for b in newest for a in group if a != b]
    ordered = ((a, b, why) if _began_later(memories[b], memories[a]) else (b, a, why) for a, b, why in pairs)
    return {
        (older, newer): why
        for older, newer, why in ordered
        if _began_later(memories[newer], memories[older]) and not _outlives(memories[older], memories[newer], seen_from)
    }


def _began_later(newer: Memory, older: Memory) -> bool:
    """True only where it is certain; what is known by its end alone began at some time before."""
    return newer.started_at is not None and older.date is not None and older.date.is_before(newer.started_at)


def _outlives(older: Memory, newer: Memory, seen_from: Moment | None) -> bool:
    """Whether the newer one has ended and the older one goes on."""
    return bool(seen_from and older.is_ongoing and newer.occurred_end and newer.occurred_end.is_before(seen_from))


def _is_noted_fact(memory: Memory) -> bool:
    """A short fact of which only the date of noting is known, as most stores have it; not a turn of a chat."""
    return memory.mentioned_at is not None and memory.speaker is None and len(memory.text) <= _LONGEST_FACT


def _alike(memories: Sequence[Memory], bags: Mapping[int, Counter[str]]) -> list[tuple[int, int]]:
    """Pairs of like states. Shared words that are not everywhere find them, so that pools may be large."""
    holders: dict[str, list[int]] = defaultdict(list)
    for i, bag in bags.items():
        for term in bag:
            holders[term].append(i)
    candidates = {pair for same in holders.values() if len(same) <= _COMMON_TERM for pair in combinations(same, 2)}
    alike = [(a, b) for a, b in candidates if _same_matter(memories[a], memories[b], bags[a], bags[b])]
    claims = {i: Claim.of(memories[i].text) for i in {i for pair in alike for i in pair}}
    return [(a, b) for a, b in alike if are_rivals(claims[a], claims[b])]


def _same_matter(a: Memory, b: Memory, bag_a: Counter[str], bag_b: Counter[str]) -> bool:
    if not is_missing(a.metadata.get("key")) and not is_missing(b.metadata.get("key")):
        return False
    if a.text == b.text or (a.context and b.context and a.context != b.context):
        return False
    if a.speaker and b.speaker and a.speaker != b.speaker:
        return False
    if a.entities and b.entities and name_similarity(a.entities, b.entities) < SAME_ENTITIES:
        return False
    return cosine(bag_a, bag_b) >= SAME_TEXT
