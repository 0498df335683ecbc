"""Supersession: of two memories about the same thing, the newer is current; the older is stale and ranks below it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations

from mnemorank._internal.deadline import Deadline
from mnemorank.memory.memory import Memory
from mnemorank.memory.moment import Moment
from mnemorank.memory.values import as_id, is_missing
from mnemorank.model.judge import Judge
from mnemorank.results import StaleReason

_NEVER = Moment(1)
# Only the newest memories of a key count as successors, because thousands may share one.
_MAX_SUCCESSORS = 8
# How many pairs a model judges in a request, and how similar their embeddings must be.
_MAX_JUDGED = 64
_MIN_COSINE = 0.2


@dataclass(frozen=True, slots=True)
class Supersession:
    """Which memories of a pool are outdated.

    :param stale: position of an outdated memory → position of the newest one that replaced it.
    :param future: positions of the memories that start after `as_of`.
    :param because: position of an outdated memory → why it counts as replaced: one of the two says so (`stated`), they
        share a `key`, or the model judges that the newer of two `similar` ones replaces the older.
    :param successors: position of an outdated memory → positions of all that replaced it, newest first.
    :param certain: positions of the outdated memories with a successor that is more than similar.
    """

    stale: dict[int, int] = field(default_factory=dict)
    future: frozenset[int] = frozenset()
    because: dict[int, StaleReason] = field(default_factory=dict)
    successors: dict[int, tuple[int, ...]] = field(default_factory=dict)
    certain: frozenset[int] = frozenset()


def not_begun(memories: Sequence[Memory], as_of: Moment | None) -> frozenset[int]:
    """Return the positions of the memories that start after `as_of`; none without an `as_of`."""
    return frozenset(i for i, m in enumerate(memories) if as_of and m.started_at and as_of.is_before(m.started_at))


def judge_pairs(
    memories: Sequence[Memory], among: Sequence[int], judge: Judge, threshold: float
) -> set[tuple[int, int]]:
    """Return the pairs (older, newer) where the model says that the newer memory replaces the older.

    Dates decide the direction. Without them, the model does, by the wording ("now", "moved to", "no longer").

    :param among: positions of the memories to compare.
    :param threshold: the lowest probability.
    """
    facts = [i for i in among if not memories[i].is_event and memories[i].text.strip()]
    if len(facts) < 2:
        return set()
    similarity = judge.similarity([memories[i] for i in facts])
    candidates = [
        (float(similarity[a, b]), facts[a], facts[b])
        for a, b in permutations(range(len(facts)), 2)
        if similarity[a, b] >= _MIN_COSINE and _may_replace(memories[facts[b]], memories[facts[a]])
    ]
    pairs = [(older, newer) for _, older, newer in sorted(candidates, reverse=True)[:_MAX_JUDGED]]
    chances = judge.replacement([(memories[older], memories[newer]) for older, newer in pairs])
    by_pair = dict(zip(pairs, chances, strict=True))
    return {pair for pair, chance in by_pair.items() if chance > threshold and chance >= by_pair.get(pair[::-1], 0.0)}


def _may_replace(newer: Memory, older: Memory) -> bool:
    """Return whether dates, keys and speakers allow that one memory replaces the other."""
    keys = [memory.metadata.get("key") for memory in (newer, older)]
    if not any(is_missing(key) for key in keys):
        return False  # their keys say whether they are about the same thing
    if newer.text == older.text or (newer.speaker and older.speaker and newer.speaker != older.speaker):
        return False
    return not older.is_newer_than(newer)


def find_superseded(
    memories: Sequence[Memory],
    as_of: Moment | None = None,
    among: Sequence[int] | None = None,
    now: Moment | None = None,
    judged: Collection[tuple[int, int]] = (),
    *,
    deadline: Deadline | None = None,
) -> Supersession:
    """Find the memories that another memory of the pool replaced.

    Two memories are about the same thing if one names the other (`supersedes` or `superseded_by` in the metadata), if
    both are dated states (not events) that share a `key` in the metadata, or if the model says so. With a key, the
    newer one must start strictly later, at the precision of the dates, and must not have ended while the older one
    still holds.

    :param as_of: date of the state to find; memories that start later are ignored.
    :param among: positions to compare, all by default; `future` always covers the whole pool.
    :param now: the present. A memory that starts later is a plan and replaces nothing yet, unless it says so.
    :param judged: pairs (older, newer) of `judge_pairs`.
    :param deadline: no more memories are compared after it.
    """
    future = not_begun(memories, as_of)
    present = [i for i in (range(len(memories)) if among is None else among) if i not in future]
    stated = _stated_pairs(memories, present, deadline)
    reference = as_of or now
    started = [i for i in present if not _is_planned(memories[i], reference)]
    # A stated pair overrides dates and similarity, also for other successors of the same memory.
    replaced = {older for older, _ in stated}
    inferred = {
        pair: reason
        for pair, reason in _inferred_pairs(memories, started, reference, judged).items()
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


def demote(order: Sequence[int], superseded: Supersession, relevance: Sequence[float], share: float = 0.2) -> list[int]:
    """Return the order with current memories in the place of the stale ones they replaced, and future memories last.

    A stale memory that ranks above its successor gives it its place and comes right below: whoever asks for the old
    state wants the new one, which may be worded differently. A successor that has little to do with the query (less
    than `share` of the relevance) is passed over for the next one; a stale memory without a relevant successor keeps
    its place.
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
    moved: set[int] = set()
    for older in chain:
        successors = list(_follow(chain, older))
        if any(place[item] > place[older] for item in successors):
            moved |= {older, *successors[:-1]}  # the whole chain, led by its newest
    for older in moved:
        below[chain[older]].append(older)

    def with_followers(item: int) -> list[int]:
        items, waiting = [], [item]
        while waiting:
            items.append(waiting.pop())
            waiting += sorted(below.get(items[-1], ()), key=place.__getitem__, reverse=True)
        return items

    groups = [with_followers(item) for item in result if item not in moved]
    groups.sort(key=lambda group: min(place[item] for item in group))
    return [item for group in groups for item in group] + [item for item in order if item in superseded.future]


def dropped(superseded: Supersession) -> set[int]:
    """Return the stale memories that may be left out: never those that are merely similar to a newer one."""
    return {i for i in superseded.stale if superseded.because[i] != "similar" or i in superseded.certain}


def _stated_pairs(
    memories: Sequence[Memory], positions: Sequence[int], deadline: Deadline | None
) -> dict[tuple[int, int], StaleReason]:
    """Return (older, newer) of the memories that name each other in their metadata."""
    by_id: dict[str | None, list[int]] = defaultdict(list)  # two retrievers may return the same memory
    for i in positions:
        by_id[memories[i].id].append(i)
    pairs: dict[tuple[int, int], StaleReason] = {}
    for i in positions:
        if deadline is not None and deadline.expired:
            break
        for field_name, is_newer in (("supersedes", True), ("superseded_by", False)):
            value = memories[i].metadata.get(field_name)
            listed = value if isinstance(value, (list, tuple)) else [value]
            # Lists may be long, and may repeat an id.
            for other in dict.fromkeys(as_id(other) for other in listed if not is_missing(other)):
                for j in by_id.get(other, ()):
                    if j != i:
                        pairs[(j, i) if is_newer else (i, j)] = "stated"
    return pairs


def _inferred_pairs(
    memories: Sequence[Memory],
    positions: Sequence[int],
    reference: Moment | None,
    judged: Collection[tuple[int, int]],
) -> dict[tuple[int, int], StaleReason]:
    """Return (older, newer) of the states that share a key, and of those that the model judged.

    A state that has ended does not replace one that still holds.
    """
    keyed: dict[str, list[int]] = defaultdict(list)
    for i in positions:
        memory = memories[i]
        if not memory.is_event and memory.date is not None and not is_missing(memory.metadata.get("key")):
            keyed[str(memory.metadata["key"])].append(i)
    known = set(positions)
    pairs: dict[tuple[int, int], StaleReason] = {
        (older, newer): "similar" for older, newer in judged if older in known and newer in known
    }
    for group in keyed.values():
        newest = sorted(group, key=lambda i: (memories[i].started_at or _NEVER).start)[-_MAX_SUCCESSORS:]
        for newer in newest:
            pairs |= {(older, newer): "key" for older in group if _starts_later(memories[newer], memories[older])}
    return {
        pair: reason for pair, reason in pairs.items() if not _outlives(memories[pair[0]], memories[pair[1]], reference)
    }


def _starts_later(newer: Memory, older: Memory) -> bool:
    """Return whether `newer` certainly starts after `older`, which may be known by its end alone."""
    return newer.started_at is not None and older.date is not None and older.date.is_before(newer.started_at)


def _outlives(older: Memory, newer: Memory, reference: Moment | None) -> bool:
    """Return whether the newer one has ended while the older one still holds."""
    return bool(reference and older.is_ongoing and newer.occurred_end and newer.occurred_end.is_before(reference))
