"""From an event and its signals to votes: who says what about which memory, corrected for position."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from mnemorank.learning.events import SEPARATOR, RerankEvent, ShownMemory
from mnemorank.learning.mining.propensity import Propensities
from mnemorank.learning.signals import KINDS, SHOWS_INTEREST, Signal, Verdict, merge
from mnemorank.memory.memory import Memory
from mnemorank.text.words import STOPWORDS, terms, words

CHITCHAT = frozenset(
    "bye cheers cool fine good great hello hey hi lol morning evening night nice ok okay please pls sure test testing "
    "thank thanks thx welcome wow yeah yep yes nope haha hmm right got doing going today".split()
)
# What these mean depends on the day.
RELATIVE_TIMES = frozenset(
    "today yesterday tomorrow tonight now current currently last next this ago recent recently latest".split()
)
SKIPPED = "skipped"
_ENOUGH_TO_JUDGE = 3
_DATE = len("2024-03-05")

Lookup = Callable[[str], Memory | None]


@dataclass(frozen=True, slots=True)
class Vote:
    """One actor's word on one memory for one query.

    :param value: +1 or -1.
    :param weight: strength of the signal over the chance that the position was looked at.
    :param kind: the signal, or `skipped`.
    """

    event: RerankEvent
    shown: ShownMemory
    actor: str
    value: int
    weight: float
    kind: str


def is_chitchat(query: str) -> bool:
    """Nothing is asked: greetings, thanks, single interjections."""
    found = words(query)
    return not found or all(word in CHITCHAT or word in STOPWORDS for word in found)


def query_key(query: str) -> str:
    """What makes two queries the same: their stems, in any order and case."""
    return " ".join(sorted(set(terms(query))))


def question_key(event: RerankEvent) -> str:
    """What makes the questions of two events the same: their `query_key`, and the day where they speak of it."""
    asked = event.query or ""
    if not RELATIVE_TIMES.intersection(words(asked)):
        return query_key(asked)
    return query_key(asked) + SEPARATOR + _day(event)


def _day(event: RerankEvent) -> str:
    """The day that the question was asked on: the asker's own, as `query_time` writes it, else that of the log."""
    return event.query_time[:_DATE] if event.query_time else f"{event.time // 86400:.0f}"


def votes(
    event: RerankEvent,
    signals: Iterable[Signal],
    propensities: Propensities,
    *,
    clip: float = 5.0,
    skip_weight: float = 0.3,
) -> list[Vote]:
    """The votes of one event.

    - A person's signal counts 1/propensity of its position, at most `clip`; an agent reads all it is given.
    - A memory above one that was clicked or cited, itself without a signal, was skipped: a weak vote against it, which
      counts over the chance that it shows.
    - `ignored` counts only beside something that was not.
    - An actor with the same word for everything shown says nothing about the order, and has no vote.
    """
    by_actor: dict[str, list[Verdict]] = defaultdict(list)
    for verdict in merge(signals):
        by_actor[verdict.actor].append(verdict)
    shown = {memory.position: memory for memory in event.shown}
    found = []
    for actor, verdicts in by_actor.items():
        for position, value, weight, kind in _weighed(verdicts, shown, propensities, clip, skip_weight):
            found.append(Vote(event, shown[position], actor, value, weight, kind))
    return found


def _weighed(
    verdicts: Sequence[Verdict],
    shown: dict[int, ShownMemory],
    propensities: Propensities,
    clip: float,
    skip_weight: float,
) -> list[tuple[int, int, float, str]]:
    given = [verdict for verdict in verdicts if verdict.position in shown]
    if len(shown) >= _ENOUGH_TO_JUDGE and len(given) == len(shown) and len({verdict.value for verdict in given}) == 1:
        return []
    likes_something = any(verdict.value > 0 for verdict in given)
    result = []
    for verdict in given:
        if verdict.kind == "ignored" and not likes_something:
            continue
        correction = 1.0
        if KINDS[verdict.kind].seen_in_order:
            correction = min(1 / propensities.at(verdict.position), clip)
        result.append((verdict.position, verdict.value, verdict.strength * correction, verdict.kind))
    judged = {verdict.position for verdict in given}
    wanted = [verdict.position for verdict in given if verdict.value > 0 and verdict.kind in SHOWS_INTEREST]
    for position in range(max(wanted, default=0)):
        if position in shown and position not in judged:
            correction = min(1 / propensities.passed_at(position), clip)
            result.append((position, -1, skip_weight * correction, SKIPPED))
    return result
