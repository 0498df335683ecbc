import numpy as np
import pytest

from mnemorank import Memory, Moment
from mnemorank.artifact.manifest import Manifest
from mnemorank.model.judge import Judge
from mnemorank.ranking.supersession import (
    Supersession,
    demote,
    dropped,
    find_superseded,
    judge_pairs,
    not_begun,
)
from mnemorank.scorers.protocol import Passage


def fact(text, start, end=None, **more):
    return Memory(
        text, type="world", occurred_start=Moment.parse(start), occurred_end=Moment.parse(end) if end else None, **more
    )


OLD = fact("Ruby works as an engineer at Zenith", "2019", "2024-02", entities=("Ruby",))
NEW = fact("Ruby works as an engineer at Aurora", "2024-03", entities=("Ruby",))


class WordJudge:
    """Judges by words: a memory with "now" replaces every other that starts with the same word."""

    width, max_memory = 2, 20

    def prepare(self, texts):
        return [Passage(text, len(text.split()), text) for text in texts]

    def embed(self, passages):
        return np.array([[1.0, 0.0] if "dog" not in passage.text else [0.0, 1.0] for passage in passages])

    def replacement(self, pairs):
        replaced = [
            older.text.split()[0] == newer.text.split()[0] and "now" in newer.text and "now" not in older.text
            for older, newer in pairs
        ]
        return np.where(replaced, 4.0, -4.0)

    def asks_about_past(self, query):
        return 1.0 if "before" in query else -1.0


JUDGE = Judge(WordJudge(), Manifest(name="words"))


def judged(*memories):
    pool = [Memory.of(memory) for memory in memories]
    return judge_pairs(pool, range(len(pool)), JUDGE, 0.5)


def test_the_model_judges_by_wording_without_dates():
    assert judged("Ruby works at Zenith", "Ruby works at Aurora now", "Tom works at Aurora now") == {(0, 1)}
    pool = [Memory("Ruby works at Zenith"), Memory("Ruby works at Aurora now")]
    found = find_superseded(pool, judged={(0, 1)})
    assert found.stale == {0: 1}
    assert found.because == {0: "similar"}


def test_dates_decide_the_direction_of_a_judgment():
    old = {"text": "Ruby works at Zenith", "created_at": "2024-05-01"}
    new = {"text": "Ruby works at Aurora now", "created_at": "2022-05-01"}
    assert judged(old, new) == set()
    assert judged(old, {**new, "created_at": "2025-01-01"}) == {(0, 1)}


def test_events_long_texts_speakers_and_keys_are_not_judged():
    old, new = {"text": "Ruby works at Zenith"}, {"text": "Ruby works at Aurora now"}
    assert judged({**old, "type": "event"}, new) == set()
    assert judged({"text": "Ruby works at Zenith " * 9}, new) == set()
    assert judged({**old, "speaker": "Ana"}, {**new, "speaker": "Tom"}) == set()
    assert judged({**old, "key": "job"}, {**new, "key": "second job"}) == set()
    assert judged({**old, "key": "job"}, new) == {(0, 1)}


def test_dissimilar_memories_are_not_judged():
    assert judged("Ruby has a dog", "Ruby works at Aurora now") == set()


def test_the_newer_state_replaces_the_older():
    keyed = [fact(memory.text, str(memory.occurred_start), metadata={"key": "job"}) for memory in (NEW, OLD)]
    assert find_superseded(keyed).stale == {1: 0}


def test_missing_keys_do_not_match():
    missing = float("nan")
    pool = [
        fact("The wifi password is hunter2", "2022", metadata={"key": missing}),
        fact("Ann has three cats", "2024", metadata={"key": missing}),
    ]
    assert not find_superseded(pool).stale


def test_a_memory_with_only_an_end_date_is_not_newer():
    ended = Memory("Ruby works at Zenith", occurred_end="2024-05", metadata={"key": "job"})
    current = Memory("Ruby works at Aurora", occurred_start="2024-03", metadata={"key": "job"})
    assert not find_superseded([ended, current]).stale
    long_ago = Memory("Ruby works at Zenith", occurred_end="2019", metadata={"key": "job"})
    assert find_superseded([long_ago, current]).stale == {0: 1}
    assert not not_begun([ended], Moment(2021))
    assert not_begun([current], Moment(2021)) == {0}


def test_a_memory_starting_at_as_of_has_begun():
    at = Moment.parse("2024-03-05T10:00:00Z")
    assert not not_begun([Memory("x", occurred_start=at)], at)


@pytest.mark.parametrize("more", [{}, {"key": "home"}])
def test_stated_supersession_overrides_dates(more):
    correction = fact("Ruby lives in Lisbon, Portugal", "2023-01", id="A", metadata={"supersedes": "B", **more})
    withdrawn = fact("Ruby lives in Porto, Portugal", "2023-03", id="B", metadata=more)
    found = find_superseded([correction, withdrawn])
    assert found.stale == {1: 0}
    assert found.because == {1: "stated"}


def test_stated_supersession_overrides_similarity():
    old = fact("Ruby lives in Porto", "2020", id="1", metadata={"superseded_by": "9"})
    pool = [old, fact("Ruby lives in Braga", "2024", id="5"), Memory("Ruby left Porto", id="9")]
    found = find_superseded(pool, judged={(0, 1)})
    assert found.stale == {0: 2}
    assert found.because == {0: "stated"}


def test_every_copy_of_a_replaced_memory_is_stale():
    copies = [fact("Ruby lives in Porto", "2020", id="1")] * 2
    assert find_superseded([*copies, Memory("She moved", id="2", metadata={"supersedes": "1"})]).stale == {0: 2, 1: 2}


def test_overlapping_dates_do_not_supersede():
    assert not find_superseded([fact(NEW.text, "2024"), fact(OLD.text, "2024-03")]).stale


def test_a_key_or_link_is_enough():
    a = fact("tea", "2020", metadata={"key": "drink"})
    b = fact("coffee", "2021", metadata={"key": "drink"})
    assert find_superseded([a, b]).stale == {0: 1}
    assert find_superseded([Memory("a", id="1"), Memory("b", id="2", metadata={"supersedes": "1"})]).stale == {0: 1}
    assert find_superseded([Memory("a", id="1", metadata={"superseded_by": ["2"]}), Memory("b", id="2")]).stale == {
        0: 1
    }


def test_the_strongest_reason_is_given():
    older = {"id": "1", "text": "Ruby works at Zenith.", "occurred_start": "2019"}
    newer = {"id": "2", "text": "Ruby works at Aurora.", "occurred_start": "2024"}

    def reason(**more):
        pool = [Memory.of({**older, **more}), Memory.of({**newer, **more})]
        return find_superseded(pool, judged={(0, 1)}).because

    assert reason() == {0: "similar"}
    assert reason(key="job") == {0: "key"}
    assert reason(key="job", metadata={"supersedes": "1"}) == {0: "stated"}


def test_longer_cycles_are_ignored():
    chain = {"a": "b", "b": "c", "c": "d", "d": "b"}
    pool = [Memory(name, id=name, metadata={"superseded_by": by}) for name, by in chain.items()]
    assert find_superseded(pool).stale == {0: 1}


def test_drop_removes_stale_memories():
    found = Supersession({0: 2, 1: 2, 3: 2}, because={0: "key", 1: "similar", 3: "stated"})
    assert dropped(found) == {0, 3}, "similar words alone never drop a memory"


def test_a_memory_with_a_keyed_and_a_newer_similar_successor_is_dropped():
    pool = [
        fact("Ruby works at Zenith", "2019", metadata={"key": "job"}),
        fact("a job at Apex", "2021", metadata={"key": "job"}),
        fact("Ruby works at Aurora", "2024"),
    ]
    found = find_superseded(pool, judged={(0, 2)})
    assert found.because[0] == "similar"
    assert dropped(found) == {0}


def test_cycles_are_ignored():
    a = Memory("a", id="1", metadata={"supersedes": "2"})
    b = Memory("b", id="2", metadata={"supersedes": "1"})
    assert not find_superseded([a, b]).stale


def test_as_of_excludes_later_memories():
    found = find_superseded([NEW, OLD], as_of=Moment(2022))
    assert found.future == {0}
    assert not found.stale


def test_the_newest_of_a_chain_is_the_successor():
    oldest = fact("Ruby works as an engineer at Apex", "2015", "2018", entities=("Ruby",))
    assert find_superseded([oldest, OLD, NEW], judged={(0, 1), (0, 2), (1, 2)}).stale == {0: 2, 1: 2}


def test_a_successor_takes_the_place_of_the_stale_memory():
    found = Supersession({0: 2})
    assert demote([0, 1, 2, 3], found, [0.9, 0.8, 0.7, 0.6]) == [2, 0, 1, 3]
    assert demote([3, 0, 1, 2], found, [0.9, 0.8, 0.7, 0.6]) == [3, 2, 0, 1]
    assert demote([2, 1, 0, 3], found, [0.9, 0.8, 0.7, 0.6]) == [2, 1, 0, 3]


def test_demotion_needs_a_relevant_successor():
    assert demote([0, 1, 2], Supersession({0: 2}), [0.9, 0.8, 0.1]) == [0, 1, 2]


def test_demotion_keeps_every_item_once():
    found = Supersession({0: 1, 1: 2}, frozenset({3}))
    assert demote([3, 0, 1, 2, 4], found, [0.9, 0.9, 0.9, 0.9, 0.1]) == [2, 1, 0, 4, 3]


def test_common_keys_are_not_quadratic():
    pool = [fact(f"value {i}", f"{1000 + i}", metadata={"key": "same"}) for i in range(5_000)]
    assert find_superseded(pool).stale == dict.fromkeys(range(4999), 4999)


def test_events_with_a_shared_key_do_not_supersede():
    pool = [Memory("a", type="Event", occurred_start=Moment(y), metadata={"key": "k"}) for y in (2020, 2021)]
    assert not find_superseded(pool).stale


def test_very_long_chains():
    pool = [Memory(str(i), id=str(i), metadata={"superseded_by": str(i + 1)}) for i in range(3_000)]
    found = find_superseded(pool)
    assert demote(range(3_000), found, [1.0] * 3_000) == list(range(2_999, -1, -1))


def test_keys_and_links_work_for_multi_valued_facts():
    likes = [{"id": "1", "text": "User likes pizza", "occurred_start": "2023", "key": "food"}]
    likes += [{"id": "2", "text": "User likes sushi", "occurred_start": "2024", "key": "food"}]
    assert find_superseded([Memory.of(record) for record in likes]).stale == {0: 1}


def test_plans_do_not_supersede_until_they_begin():
    pool = [
        fact("Ruby works at Aurora", "2024-03", metadata={"key": "ruby/job"}),
        fact("Ruby will join Borealis", "2026-09-01", metadata={"key": "ruby/job"}),
    ]
    assert not find_superseded(pool, now=Moment.parse("2026-01-15")).stale
    assert find_superseded(pool, now=Moment.parse("2026-09-02")).stale == {0: 1}
    assert not find_superseded(pool, Moment.parse("2026-01-15"), now=Moment.parse("2026-09-02")).stale
    stated = [pool[0], fact("Ruby joins Borealis", "2026-09-01", metadata={"supersedes": "a"})]
    named = [Memory("Ruby works at Aurora", id="a", occurred_start="2024-03"), stated[1]]
    assert find_superseded(named, now=Moment.parse("2026-01-15")).because == {0: "stated"}


def test_an_irrelevant_successor_is_skipped():
    key = {"key": "ruby/job"}
    pool = [
        fact("Ruby works at Zenith", "2019", metadata=key),
        fact("Ruby works at Aurora", "2024", metadata=key),
        fact("Ruby is on leave", "2025-06", metadata=key),
    ]
    found = find_superseded(pool)
    assert found.stale == {0: 2, 1: 2}
    assert found.successors == {0: (2, 1), 1: (2,)}
    assert demote([0, 1, 2], found, [0.9, 0.7, 0.1]) == [1, 0, 2]
    assert demote([0, 1, 2], found, [0.9, 0.7, 0.6]) == [2, 0, 1]


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)])
def test_the_newest_of_a_chain_leads(order):
    chain = Supersession({0: 1, 1: 2}, successors={0: (1,), 1: (2,)})
    placed = demote(order, chain, [0.5, 0.5, 0.5])
    assert placed.index(2) < placed.index(1)
    assert placed.index(2) < placed.index(0)


def test_ended_memories_do_not_supersede_ongoing_ones():
    home = fact("Ruby lives in Porto", "2015", metadata={"key": "home"})
    abroad = fact("Ruby lives in Lisbon for a project", "2020", "2021", metadata={"key": "home"})
    found = {day: find_superseded([home, abroad], now=Moment.parse(day)).stale for day in ("2020-06-01", "2025-01-01")}
    assert found == {"2020-06-01": {0: 1}, "2025-01-01": {}}
    assert find_superseded([home, abroad], as_of=Moment.parse("2023"), now=Moment.parse("2025-01-01")).stale == {}
    stated = fact("Ruby lives in Lisbon", "2020", "2021", metadata={"supersedes": "h"})
    assert find_superseded([fact("Ruby lives in Porto", "2015", id="h"), stated], now=Moment.parse("2025")).stale == {
        0: 1
    }


def test_float_ids_from_tables_match():
    pool = [Memory("Ruby works at Zenith", id=1, metadata={"superseded_by": 2.0}), Memory("Ruby leads a team", id=2.0)]
    assert pool[1].id == "2"
    assert find_superseded(pool).stale == {0: 1}
