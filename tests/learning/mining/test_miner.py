import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from mnemorank import InputError, Memory
from mnemorank.learning.events import RerankEvent, ShownMemory
from mnemorank.learning.mining.evidence import is_chitchat, query_key, votes
from mnemorank.learning.mining.golden import mine_golden
from mnemorank.learning.mining.miner import HELD_OUT, TRAIN, mine, split_of
from mnemorank.learning.mining.propensity import Propensities
from mnemorank.learning.mining.rules import MiningRules
from mnemorank.learning.signals import Signal
from mnemorank.learning.store.examples import content_of
from mnemorank.memory.moment import Moment
from tests.learning.learning_cases import make_event

FLAT = Propensities((1.0,) * 20)
STEEP = Propensities((1.0, 0.5, 0.25, 0.05))
QUERY = "Where does Ruby work?"


def feedback(*kinds, actor="ann", query=QUERY, texts=("alpha", "beta", "gamma", "delta"), **fields):
    """An event with signals (kind, position); text hashes as a store would fill them in."""
    event = make_event(query, texts, **fields)
    event = replace(event, shown=tuple(replace(s, text_hash=f"h-{s.memory.text}") for s in event.shown))
    return event, [
        Signal(event.id, kind, position, *value, actor=actor, time=event.time + 1) for kind, position, *value in kinds
    ]


def labels(mined, number=0):
    """What was judged."""
    example = mined.examples[number].example
    return {candidate.memory.text: candidate.label for candidate in example.candidates if candidate.weight}


def test_a_click_is_a_positive_and_what_was_skipped_above_it_negative():
    assert labels(mine([feedback(("click", 2))], FLAT)) == {"gamma": 1.0, "alpha": 0.0, "beta": 0.0}


def test_the_top_memory_is_no_positive_because_the_answer_was_liked():
    mined = mine([feedback(("thumbs_up", -1), ("stars", -1, 5.0))], FLAT)
    assert mined.examples == ()
    assert mined.dropped["events without evidence"] == 1


def test_thumbs_down_and_contradicted_give_negatives():
    given = feedback(("cited", 0), ("thumbs_down", 1), ("contradicted", 3))
    assert labels(mine([given], FLAT)) == {"alpha": 1.0, "beta": 0.0, "delta": 0.0}


def test_a_downvoted_click_is_a_negative():
    assert labels(mine([feedback(("click", 0), ("thumbs_down", 0), ("cited", 3))], FLAT))["alpha"] == 0.0


def test_ignored_counts_only_beside_something_that_was_not():
    assert mine([feedback(("ignored", 0), ("ignored", 1))], FLAT).examples == ()
    assert labels(mine([feedback(("ignored", 0), ("used", 1))], FLAT)) == {"beta": 1.0, "alpha": 0.0}


@pytest.mark.parametrize("kind", ["click", "thumbs_down", "thumbs_up", "cited"])
def test_the_same_word_for_everything_says_nothing(kind):
    assert mine([feedback(*((kind, position) for position in range(4)))], FLAT).examples == ()


def test_position_is_corrected_by_inverse_propensity_with_clipping():
    event, signals = feedback(("click", 1), ("click", 3), ("cited", 2))
    weight = {vote.shown.position: vote.weight for vote in votes(event, signals, STEEP, clip=5.0)}
    assert weight == {0: 0.3, 1: 0.5 / 0.5, 2: 1.0, 3: 0.5 * 5.0}  # skipped, click, cited (an agent), click clipped


def test_being_passed_over_counts_more_where_it_shows_less_often():
    event, signals = feedback(("click", 3))
    weight = {vote.shown.position: vote.weight for vote in votes(event, signals, Propensities(passed=(0.8, 0.4, 0.1)))}
    assert {place: weight[place] for place in (0, 1, 2)} == pytest.approx({0: 0.3, 1: 0.6, 2: 0.3 * 5})


def train_query(number: int) -> str:
    """A query of the training split."""
    return [q for i in range(1000) if split_of(q := f"question {i} alpha") == TRAIN][number]


def test_the_weight_of_the_votes_goes_with_the_label_into_training():
    given = [feedback(("click", 1), query=train_query(0)), feedback(("click", 2), query=train_query(1))]
    mined = sorted(mine(given, STEEP).examples, key=lambda entry: len(entry.example.candidates))
    first, second = ({c.memory.text: c.weight for c in entry.example.candidates} for entry in mined)
    # Clicks weigh .5/.5 and .5/.25: their mean is 1.5. All that was skipped weighs the same.
    assert first == pytest.approx({"beta": 1 / 1.5, "alpha": 1.0}, abs=1e-3)
    assert second == pytest.approx({"gamma": 2 / 1.5, "alpha": 1.0, "beta": 1.0}, abs=1e-3)
    plain = mine(given, STEEP, MiningRules(weighted=False)).examples
    assert {c.weight for entry in plain for c in entry.example.candidates} == {1.0}


def test_a_held_out_example_holds_all_that_was_shown():
    query = next(q for i in range(99) if split_of(q := f"question {i} alpha") == HELD_OUT)
    (mined,) = mine([feedback(("click", 1), query=query)], FLAT).examples
    found = {c.memory.text: (c.label, c.weight) for c in mined.example.candidates}
    assert found == {"beta": (1.0, 1.0), "alpha": (0.0, 1.0), "gamma": (0.0, 0.0), "delta": (0.0, 0.0)}
    assert ("text", "h-delta") in mined.sources
    (top,) = mine([feedback(("click", 0), query=query)], FLAT).examples
    assert sorted(c.memory.text for c in top.example.candidates) == ["alpha", "beta", "delta", "gamma"], "each once"
    (cut,) = mine([feedback(("click", 1), query=query)], FLAT, MiningRules(unjudged=1)).examples
    assert [c.memory.text for c in cut.example.candidates] == ["beta", "alpha", "gamma"]


@pytest.mark.parametrize("query", ["hi there", "Thanks!", "ok", "good morning", "how are you doing", "", "?!"])
def test_chitchat_is_dropped(query):
    assert is_chitchat(query)
    assert mine([feedback(("click", 2), query=query)], FLAT).dropped["chit-chat"] == 1


def test_questions_are_not_chitchat():
    assert not is_chitchat("who is Ann?")
    assert not is_chitchat("OAuth")


def test_one_user_has_one_vote_however_often_they_click():
    spam = [feedback(("click", 2), actor="spam") for _ in range(50)]
    honest = [feedback(("click", 1), ("thumbs_down", 2), actor=name) for name in ("ann", "bob")]
    assert labels(mine(spam + honest, FLAT))["beta"] == 1.0
    assert labels(mine(spam + honest, FLAT)).get("gamma") != 1.0


def test_disputed_memories_are_left_out():
    given = [feedback(("thumbs_up", 1), actor="ann"), feedback(("thumbs_down", 1), ("cited", 2), actor="bob")]
    mined = mine(given, FLAT)
    assert "beta" not in labels(mined)
    assert mined.dropped["disputed memories"] == 1


def test_a_majority_above_the_floor_decides():
    given = [feedback(("thumbs_up", 1), ("ignored", 0), actor=name) for name in "abc"]
    given.append(feedback(("thumbs_down", 1), ("cited", 3), actor="d"))
    assert labels(mine(given, FLAT))["beta"] == 1.0


def test_position_correction_alone_does_not_outvote_people():
    given = [feedback(("click", 3), actor="attacker"), feedback(("thumbs_down", 3), ("cited", 0), actor="b")]
    given.append(feedback(("thumbs_down", 3), ("cited", 0), actor="c"))
    assert labels(mine(given, STEEP))["delta"] == 0.0


def test_a_few_cannot_push_what_nobody_else_has_looked_at():
    given = [feedback(("click", 1), actor=f"honest{i}") for i in range(6)]
    given += [feedback(("click", 3), ("ignored", 0), actor=f"pusher{i}") for i in range(3)]
    assert "delta" not in labels(mine(given, FLAT))
    given += [feedback(("cited", 3), actor=f"more{i}") for i in range(3)]
    assert labels(mine(given, FLAT))["delta"] == 1.0


def test_nobody_speaks_on_more_queries_than_their_share():
    flood = [feedback(("click", 2), actor="flood", query=f"question number{i}") for i in range(99)]
    log = [*flood, feedback(("click", 2), actor="ann")]
    mined = mine(log, FLAT, MiningRules(per_user=20, user_share=0.1))
    assert len(mined.examples) == 20 + 1
    assert mined.dropped["votes over an actor's limit"] == 79 * 3
    assert len(mine(log, FLAT, MiningRules(per_user=20, user_share=0.5)).examples) == 50 + 1


@pytest.mark.parametrize("actor", ["ann", ""])
def test_the_only_actor_of_a_tenant_speaks_on_all_queries(actor):
    log = [feedback(("click", 2), actor=actor, query=f"question number{i}", tenant="alone") for i in range(100)]
    log += [feedback(("click", 2), actor=name, tenant="others") for name in ("bob", "cid")]
    mined = mine(log, FLAT)
    assert sum(entry.tenant == "alone" for entry in mined.examples) == 100
    assert not mined.dropped["votes over an actor's limit"]


def test_the_queries_of_other_tenants_do_not_raise_an_actors_limit():
    log = [feedback(("click", 2), actor="flood", query=f"question number{i}", tenant="a") for i in range(100)]
    log.append(feedback(("click", 2), actor="ann", tenant="a"))
    log += [feedback(("click", 2), query=f"other number{i}", tenant="b") for i in range(400)]
    assert sum(entry.tenant == "a" for entry in mine(log, FLAT).examples) == 20 + 1


def test_an_actor_whom_others_contradict_is_left_out():
    given = []
    for i in range(8):
        query = f"topic{i} question"
        given += [feedback(("thumbs_up", 1), ("thumbs_down", 2), actor=name, query=query) for name in ("ann", "bob")]
        given.append(feedback(("thumbs_up", 2), ("thumbs_down", 1), actor="troll", query=query))
    given.append(feedback(("click", 3), actor="troll", query="only the troll asks this"))
    mined = mine(given, FLAT)
    assert mined.dropped["actors whom others contradict"] == 1
    assert len(mined.examples) == 8
    assert all(labels(mined, i) == {"beta": 1.0, "gamma": 0.0} for i in range(8))


def test_queries_that_differ_in_case_and_order_are_one():
    given = [feedback(("click", 1), query="Where does Ruby work"), feedback(("click", 1), query="ruby WORKS where")]
    assert len(mine(given, FLAT).examples) == 1
    assert query_key("Ruby's works") == query_key("work, RUBY")


def test_tenants_stay_apart():
    given = [feedback(("click", 1), tenant="a"), feedback(("thumbs_down", 1), ("cited", 2), tenant="b")]
    assert [(e.tenant, e.split) for e in mine(given, FLAT).examples] == [
        ("a", split_of(QUERY)),
        ("b", split_of(QUERY)),
    ]


def test_a_query_with_positives_alone_gets_negatives_that_share_no_word_with_it():
    given = [
        feedback(("click", 0), texts=("Ruby works at Aurora", "x")),
        feedback(query="weather", texts=("rain", "work rota")),
    ]
    assert labels(mine(given, FLAT)) == {"Ruby works at Aurora": 1.0, "rain": 0.0, "x": 0.0}


def test_caps_per_query_keep_the_weightiest():
    texts = tuple(f"text{i}" for i in range(20))
    given = feedback(*(("cited", i) for i in range(10, 16)), *(("contradicted", i) for i in range(4)), texts=texts)
    found = labels(mine([given], FLAT, MiningRules(positives=2, negatives=3)))
    assert sorted(found.values()) == [0.0, 0.0, 0.0, 1.0, 1.0]
    assert {text for text, label in found.items() if label == 0} <= {f"text{i}" for i in range(4)}


def test_the_split_is_fixed_by_the_words_of_the_query():
    queries = [f"question about topic{i}" for i in range(2000)]
    held_out = [query for query in queries if split_of(query) == HELD_OUT]
    assert 0.27 < len(held_out) / 2000 < 0.33
    assert all(split_of(f"TOPIC{q[20:]}, a question about") == split_of(q) for q in queries)
    assert split_of("Where does Ruby work?") in (TRAIN, HELD_OUT)


def test_every_example_tells_where_it_comes_from():
    event, signals = feedback(("click", 1), user="asker", tenant="t")
    (mined,) = mine([(event, signals)], FLAT).examples
    assert mined.provenance["events"] == [event.id]
    assert mined.provenance["labels"] == [
        {"text_hash": "h-beta", "label": 1.0, "weight": 0.5, "votes": {"click": 1}},
        {"text_hash": "h-alpha", "label": 0.0, "weight": 0.3, "votes": {"skipped": 1}},
    ]
    assert {
        ("event", event.id),
        ("actor", "t\x1fann"),
        ("actor", "t\x1fasker"),
        ("text", "h-beta"),
        ("memory", "t\x1fm-alpha"),
        ("tenant", "t"),
    } <= mined.sources


def test_texts_that_were_not_stored_can_be_looked_up():
    from dataclasses import replace

    event, signals = feedback(("click", 1))
    bare = replace(event, shown=tuple(replace(s, memory=None) for s in event.shown))
    assert mine([(bare, signals)], FLAT).dropped["memories without a text"] == 2
    found = mine([(bare, signals)], FLAT, lookup=lambda name: Memory(name.upper(), id=name))
    assert labels(found) == {"M-BETA": 1.0, "M-ALPHA": 0.0}


def test_golden_files_of_every_format_bootstrap(tmp_path):
    lists = tmp_path / "golden.jsonl"
    lists.write_text(
        json.dumps({"query": "q one", "candidates": [{"text": "a", "label": 1}, {"text": "b", "label": 0}]})
        + "\n"
        + json.dumps({"query": "q none", "candidates": [{"text": "b", "label": 0}]})
    )
    (mined,) = mine_golden(lists, 0.3)
    assert mined.example.source == "golden"
    assert mined.provenance == {"origin": "golden", "file": "golden.jsonl", "record": 1}
    triplets = tmp_path / "triplets.jsonl"
    triplets.write_text(json.dumps({"query": "q", "positive": {"text": "a"}, "negative": {"text": "b"}}))
    graded = tmp_path / "graded.jsonl"
    graded.write_text(json.dumps({"query": "q", "text": "a", "label": 0.8}))
    assert [len(mine_golden(path, 0.3)) for path in (triplets, graded)] == [1, 1]
    other = tmp_path / "other.jsonl"
    other.write_text('{"query": "q"}')
    with pytest.raises(InputError, match=r"other.jsonl:1"):
        mine_golden(other, 0.3)


def test_golden_files_are_split_by_the_group_that_they_state(tmp_path):
    def sides(**fields):
        rows = [
            {"query": f"question {i} alpha", "text": "a", "label": 1, **{k: f"{v}{i // 10}" for k, v in fields.items()}}
            for i in range(200)
        ]
        path = tmp_path / "golden.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return [(one.example.group, one.example.query, one.split) for one in mine_golden(path, 0.3)]

    by_group = {(group, split) for group, _, split in sides(group="the ")}
    assert len(by_group) == 20, "one side each"
    assert {split for _, split in by_group} == {TRAIN, HELD_OUT}
    assert all(split == split_of(query) for _, query, split in sides()), "as the same question of the feedback"


@pytest.mark.parametrize("fields", [{"floor": 0.5}, {"floor": 1.1}, {"held_out": 0}, {"held_out": 1}])
def test_bad_rules_are_refused(fields):
    with pytest.raises(InputError, match=r"mining\."):
        MiningRules(**fields)


OLD = Memory("Ruby had lunch with Sam.", id="old", occurred_start="2019-05-02")
NEW = Memory("Ruby had lunch with Sam.", id="new", occurred_start="2024-03-05")
CAT = Memory("The cat sleeps.", id="cat")


def asked_of(memories, query=QUERY, **fields):
    """An event that showed the memories; hashes are of their texts, as a store's are."""
    shown = tuple(ShownMemory(place, one, one.id, f"h-{one.text}") for place, one in enumerate(memories))
    return RerankEvent(query, shown, "v1", **fields)


def by_id(mined):
    return [{c.memory.id: c.label for c in one.example.candidates if c.weight} for one in mined.examples]


def test_memories_with_the_same_words_are_told_apart_by_their_dates():
    event = asked_of((OLD, NEW, CAT))
    said = [Signal(event.id, "thumbs_down", 0, actor="ann"), Signal(event.id, "thumbs_up", 1, actor="ann")]
    assert by_id(mine([(event, said)], FLAT)) == [{"new": 1.0, "old": 0.0}]
    other = asked_of((NEW, OLD, CAT))
    more = [Signal(other.id, "thumbs_up", 0, actor="bob")]
    assert by_id(mine([(event, said), (other, more)], FLAT)) == [{"new": 1.0, "old": 0.0}], "wherever they stood"


def test_without_stored_texts_memories_with_the_same_words_are_told_apart_by_their_ids():
    event = asked_of((OLD, NEW, CAT))
    event = replace(event, shown=tuple(replace(one, memory=None) for one in event.shown))
    said = [Signal(event.id, "thumbs_down", 0, actor="ann"), Signal(event.id, "thumbs_up", 1, actor="ann")]
    known = {one.id: one for one in (OLD, NEW, CAT)}
    (mined,) = mine([(event, said)], FLAT, lookup=known.get).examples
    assert {c.memory.id: c.label for c in mined.example.candidates if c.weight} == {"new": 1.0, "old": 0.0}
    assert ("text", f"h-{NEW.text}") in mined.sources


def test_labels_that_change_places_between_memories_with_the_same_words_are_new():
    event = asked_of((OLD, NEW, CAT))
    contents = set()
    for place in (0, 1):
        said = [Signal(event.id, "thumbs_up", place), Signal(event.id, "thumbs_down", 1 - place)]
        (mined,) = mine([(event, said)], FLAT).examples
        contents.add(content_of(mined, b"salt"))
    assert len(contents) == 2


def test_what_is_asked_of_the_day_is_another_question_on_another_day():
    monday, tuesday = (Memory(f"Ann ate {what}.", id=what) for what in ("soup", "rice"))
    log = []
    for time, shown in (("2024-03-04T09:00", (monday, CAT)), ("2024-03-05", (tuesday, monday, CAT))):
        event = asked_of(shown, "What did Ann eat today?", query_time=time)
        log.append((event, [Signal(event.id, "thumbs_up", 0, actor="ann")]))
    mined = mine(log, FLAT).examples
    right = {
        str(one.example.query_time)[:10]: [c.memory.id for c in one.example.candidates if c.label] for one in mined
    }
    assert right == {"2024-03-04": ["soup"], "2024-03-05": ["rice"]}
    assert len({one.split for one in mined}) == len({one.example.group for one in mined}) == 1, "on one side of a split"
    by_the_log = [(replace(event, query_time=None, time=86400.0 * day), said) for day, (event, said) in enumerate(log)]
    assert len(mine(by_the_log, FLAT).examples) == 2
    same = [(replace(event, query="What did Ann eat at noon?"), said) for event, said in log]
    assert len(mine(same, FLAT).examples) == 1


NOON = datetime(2024, 3, 5, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, Moment.parse(NOON)),
        ({"query_time": "2019-05"}, Moment(2019, 5)),
        ({"time": 1e300}, None),
    ],
)
def test_an_example_is_of_the_time_that_its_question_was_answered_by(fields, expected):
    earlier = asked_of((OLD, CAT), time=NOON.timestamp() - 86400, query_time="2001")
    event = asked_of((OLD, CAT), **{"time": NOON.timestamp(), **fields})
    log = [(one, [Signal(one.id, "thumbs_up", 0, actor=name)]) for name, one in (("ann", earlier), ("bob", event))]
    (mined,) = mine(log, FLAT).examples
    assert mined.example.query_time == expected
