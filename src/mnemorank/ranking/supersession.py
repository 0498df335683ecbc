"""Supersession: of two memories about the same thing, the newer is current; the older is stale and ranks below it."""

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
from mnemorank.text.similarity import cosine, name_similarity
from mnemorank.text.words import terms

SAME_TEXT = 0.55
SAME_ENTITIES = 0.5
_NEVER = Moment(1)
# Only the newest memories of a key count as successors, because thousands may share one.
_MAX_SUCCESSORS = 8
# Terms that more memories share do not make a pair a candidate.
_COMMON_TERM = 200
# A longer text without a start date is a session or document, not a fact that another one replaces.
_MAX_FACT_CHARACTERS = 300

_PAST_WORDS = re.compile(
    r"\b(?:before|previous(?:ly)?|former(?:ly)?|used to|original(?:ly)?|at first|first(?! name)|earlier|earliest|past|"
    r"history|historical(?:ly)?|until|till|prior|last year|back (?:in|then)|ago|(?<!how )old|older|changed?|"
    r"switch(?:ed)?|was|were|did(?! (?:i|we|you|he|she|they) (?:say|tell|mention|write|ask))|had|"
    r"(?:in|during|since|by) (?:\w+ )?(?:19|20)\d\d)\b",
    re.IGNORECASE,
)
# Unlike `split_sentences`, keeps short sentences apart ("I was ill. Where do I live?"). Not after "Dr.".
_SENTENCE_END = re.compile(r"(?:(?<=\w{3}[.!?])|(?<=[!?\n]))\s+")


@dataclass(frozen=True, slots=True)
class Supersession:
    """Which memories of a pool are outdated.

    :param stale: position of an outdated memory → position of the newest one that replaced it.
    :param future: positions of the memories that start after `as_of`.
    :param because: position of an outdated memory → why it counts as replaced: one of the two says so (`stated`), they
        share a `key`, or their words are `similar`.
    :param successors: position of an outdated memory → positions of all that replaced it, newest first.
    :param certain: positions of the outdated memories with a successor that is more than similar.
    """

    stale: dict[int, int] = field(default_factory=dict)
    future: frozenset[int] = frozenset()
    because: dict[int, StaleReason] = field(default_factory=dict)
    successors: dict[int, tuple[int, ...]] = field(default_factory=dict)
    certain: frozenset[int] = frozenset()


def asks_about_the_past(query: str) -> bool:
    """Return whether the query is about the past, so that an outdated memory may be the right answer.

    In a chat message only the last question counts, because nearly every message has a "was" somewhere.
    """
    questions = [sentence for sentence in _SENTENCE_END.split(query) if sentence.rstrip().endswith("?")]
    return bool(_PAST_WORDS.search(questions[-1] if questions else query))


def not_begun(memories: Sequence[Memory], as_of: Moment | None) -> frozenset[int]:
    """Return the positions of the memories that start after `as_of`; none without an `as_of`."""
    return frozenset(i for i, m in enumerate(memories) if as_of and m.started_at and as_of.is_before(m.started_at))


def find_superseded(
    memories: Sequence[Memory],
    as_of: Moment | None = None,
    among: Sequence[int] | None = None,
    now: Moment | None = None,
    similar: bool = False,
) -> Supersession:
    """Find the memories that another memory of the pool replaced.

    Two memories are about the same thing if one names the other (`supersedes` or `superseded_by` in the metadata), or
    if both are dated states (not events) and either share a `key` in the metadata, or have nearly the same words,
    context and entities and cannot both be true (`are_rivals`). A short fact with only a `created_at` counts as
    starting then; a chat message does not. The newer one must start strictly later, at the precision of the dates, and
    must not have ended while the older one still holds.

    :param as_of: date of the state to find; memories that start later are ignored.
    :param among: positions to compare, all by default; `future` always covers the whole pool.
    :param now: the present. A memory that starts later is a plan and replaces nothing yet, unless it says so.
    :param similar: also compare the words of dated facts, with an English heuristic.
    """
    future = not_begun(memories, as_of)
    present = [i for i in (range(len(memories)) if among is None else among) if i not in future]
    stated = _stated_pairs(memories, present)
    reference = as_of or now
    started = [i for i in present if not _is_planned(memories[i], reference)]
    # A stated pair overrides dates and similarity, also for other successors of the same memory.
    replaced = {older for older, _ in stated}
    inferred = {
        pair: reason
        for pair, reason in _inferred_pairs(memories, started, reference, similar).items()
        if pair[0] not in replaced and pair[::-1] not in stated
    }
    pairs = stated | inferred
    successors: dict[int, list[int]] = defaultdict(list)
    for older, newer in sorted(pairs, key=lambda pair: -(memories[pair[1]].started_at or _NEVER).start):
        successors[older].append(newer)
    newest = _without_cycles({older: newer[0] for older, newer in successors.items()})
    because = {older: pairs[older, newer] for older, newer in newest.items()}
    certain = frozenset(older for (older, _), reason in pairs.items() if reason != "similar")
    return Supersession(newest, future, because, {older: tuple(successors[older]) for older in newest}, certain)


def _is_planned(memory: Memory, reference: Moment | None) -> bool:
    """Return whether the memory starts after the reference date, whenever it was written down."""
    return bool(reference and memory.occurred_start and reference.is_before(memory.occurred_start))


def _without_cycles(newest: Mapping[int, int]) -> dict[int, int]:
    """Remove cycles: if a replaces b and b replaces a, neither is known to be current."""
    seen: set[int] = set()
    cyclic: set[int] = set()
    for start in newest:
        path: dict[int, None] = {}
        item = start
        while item in newest and item not in seen:
            seen.add(item)
            path[item] = None
            item = newest[item]
        if item in path:
            members = list(path)
            cyclic.update(members[members.index(item) :])
    return {older: newer for older, newer in newest.items() if older not in cyclic}


def _follow(chain: Mapping[int, int], item: int) -> Iterator[int]:
    """Yield what replaced an item, what replaced that, and so on."""
    while item in chain:
        item = chain[item]
        yield item


def demote(order: Sequence[int], superseded: Supersession, relevance: Sequence[float], share: float = 0.5) -> list[int]:
    """Return the order with each stale memory right below its successor and future memories last.

    A successor that does not answer the query itself (less than `share` of the relevance) is passed over for the next
    one; a stale memory without a relevant successor keeps its place.
    """
    result = [item for item in order if item not in superseded.future]
    below: dict[int, list[int]] = defaultdict(list)
    place = {item: rank for rank, item in enumerate(result)}
    relevant: dict[int, int] = {}
    for older, newest in superseded.stale.items():
        for newer in superseded.successors.get(older, (newest,)):
            if older in place and newer in place and relevance[newer] >= share * relevance[older]:
                relevant[older] = newer
                break
    chain = _without_cycles(relevant)
    for older, newer in chain.items():
        # The successor may itself move down, below its own successor.
        if any(place[item] > place[older] for item in _follow(chain, older)):
            below[newer].append(older)
    moved = {older for group in below.values() for older in group}

    def with_followers(item: int) -> list[int]:
        items, waiting = [], [item]
        while waiting:
            items.append(waiting.pop())
            waiting += sorted(below.get(items[-1], ()), key=place.__getitem__, reverse=True)
        return items

    placed = [follower for item in result if item not in moved for follower in with_followers(item)]
    return placed + [item for item in order if item in superseded.future]


def dropped(superseded: Supersession) -> set[int]:
    """Return the stale memories that may be left out: never those that are merely similar to a newer one."""
    return {i for i in superseded.stale if superseded.because[i] != "similar" or i in superseded.certain}


def _stated_pairs(memories: Sequence[Memory], positions: Sequence[int]) -> dict[tuple[int, int], StaleReason]:
    """Return (older, newer) of the memories that name each other in their metadata."""
    by_id: dict[str | None, list[int]] = defaultdict(list)  # two retrievers may return the same memory
    for i in positions:
        by_id[memories[i].id].append(i)
    pairs: dict[tuple[int, int], StaleReason] = {}
    for i in positions:
        for field_name, is_newer in (("supersedes", True), ("superseded_by", False)):
            value = memories[i].metadata.get(field_name)
            for other in value if isinstance(value, (list, tuple)) else [value]:
                for j in () if is_missing(other) else by_id.get(as_id(other), ()):
                    if j != i:
                        pairs[(j, i) if is_newer else (i, j)] = "stated"
    return pairs


def _inferred_pairs(
    memories: Sequence[Memory], positions: Sequence[int], reference: Moment | None, similar: bool
) -> dict[tuple[int, int], StaleReason]:
    """Return (older, newer) of the states that share a key, and of similar states that do not both have a key.

    A state that has ended does not replace one that still holds.
    """
    keyed: dict[str, list[int]] = defaultdict(list)
    bags: dict[int, Counter[str]] = {}
    for i in positions:
        memory = memories[i]
        if memory.is_event or memory.date is None:
            continue
        if not is_missing(memory.metadata.get("key")):
            keyed[str(memory.metadata["key"])].append(i)
        if similar and memory.is_state and (memory.occurred_start is not None or _is_undated_fact(memory)):
            bags[i] = Counter(terms(memory.text[:2000]))
    pairs: list[tuple[int, int, StaleReason]] = [(a, b, "similar") for a, b in _similar_pairs(memories, bags)]
    for group in keyed.values():
        newest = sorted(group, key=lambda i: (memories[i].started_at or _NEVER).start)[-_MAX_SUCCESSORS:]
        pairs += [(a, b, "key") for b in newest for a in group if a != b]
    ordered = ((a, b, reason) if _starts_later(memories[b], memories[a]) else (b, a, reason) for a, b, reason in pairs)
    return {
        (older, newer): reason
        for older, newer, reason in ordered
        if _starts_later(memories[newer], memories[older])
        and not _outlives(memories[older], memories[newer], reference)
    }


def _starts_later(newer: Memory, older: Memory) -> bool:
    """Return whether `newer` certainly starts after `older`, which may be known by its end alone."""
    return newer.started_at is not None and older.date is not None and older.date.is_before(newer.started_at)


def _outlives(older: Memory, newer: Memory, reference: Moment | None) -> bool:
    """Return whether the newer one has ended while the older one still holds."""
    return bool(reference and older.is_ongoing and newer.occurred_end and newer.occurred_end.is_before(reference))


def _is_undated_fact(memory: Memory) -> bool:
    """Return whether it is a short fact with only a creation date, as in most stores, and not a chat message."""
    return memory.mentioned_at is not None and memory.speaker is None and len(memory.text) <= _MAX_FACT_CHARACTERS


def _similar_pairs(memories: Sequence[Memory], bags: Mapping[int, Counter[str]]) -> list[tuple[int, int]]:
    """Return pairs of similar states. Only pairs that share an uncommon word are compared, to support large pools."""
    holders: dict[str, list[int]] = defaultdict(list)
    for i, bag in bags.items():
        for term in bag:
            holders[term].append(i)
    candidates = {pair for same in holders.values() if len(same) <= _COMMON_TERM for pair in combinations(same, 2)}
    similar = [(a, b) for a, b in candidates if _have_same_subject(memories[a], memories[b], bags[a], bags[b])]
    claims = {i: Claim.of(memories[i].text) for i in {i for pair in similar for i in pair}}
    return [(a, b) for a, b in similar if are_rivals(claims[a], claims[b])]


def _have_same_subject(a: Memory, b: Memory, bag_a: Counter[str], bag_b: Counter[str]) -> bool:
    if not is_missing(a.metadata.get("key")) and not is_missing(b.metadata.get("key")):
        return False
    if a.text == b.text or (a.context and b.context and a.context != b.context):
        return False
    if a.speaker and b.speaker and a.speaker != b.speaker:
        return False
    if a.entities and b.entities and name_similarity(a.entities, b.entities) < SAME_ENTITIES:
        return False
    return cosine(bag_a, bag_b) >= SAME_TEXT
