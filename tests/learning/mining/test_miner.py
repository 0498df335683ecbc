import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from mnemorank import InputError, Memory
from mnemorank.learning.events import RerankEvent, ShownMemory
from mnemorank.learning.mining.golden import mine_golden
from mnemorank.learning.mining.miner import HELD_OUT, TRAIN, mine, split_of_query
from mnemorank.learning.mining.propensity import Propensities
from mnemorank.learning.mining.votes import is_small_talk, query_key, votes_of_event
from mnemorank.learning.settings import LearningSettings, MiningSettings
from mnemorank.learning.signals import Signal
from mnemorank.learning.store.examples import content_hash
from mnemorank.memory.moment import Moment
from tests.learning.factories import make_event

FLAT = Propensities((1.0,) * 20)
STEEP = Propensities((1.0, 0.5, 0.25, 0.05))
QUERY = "Where does Ruby work?"


def feedback(*signals, actor="ann", query=QUERY, texts=("alpha", "beta", "gamma", "delta"), **fields):
    """An event with signals (kind, rank); text hashes as a store would set them."""
    event = make_event(query, texts, **fields)
    event = replace(event, shown=tuple(replace(s, text_hash=f"h-{s.memory.text}") for s in event.shown))
    return event, [
        Signal(event.id, kind, rank, *value, actor=actor, time=event.time + 1) for kind, rank, *value in signals
    ]


def labels(mined, number=0):
    """Text → label of the judged memories of an example."""
    example = mined.examples[number].example
    return {candidate.memory.text: candidate.label for candidate in example.candidates if candidate.weight}


def test_a_clicked_memory_is_positive_and_the_skipped_ones_above_are_negative():
    assert labels(mine([feedback(("click", 3))], FLAT)) == {"gamma": 1.0, "alpha": 0.0, "beta": 0.0}


def test_a_liked_answer_does_not_make_its_top_memory_positive():
    mined = mine([feedback(("thumbs_up", None), ("stars", None, 5.0))], FLAT)
    assert mined.examples == ()
    assert mined.dropped["events without evidence"] == 1


def test_negative_ratings_and_contradictions_are_negative():
    log = [feedback(("cited", 1), ("thumbs_down", 2), ("contradicted", 4))]
    assert labels(mine(log, FLAT)) == {"alpha": 1.0, "beta": 0.0, "delta": 0.0}


def test_a_click_with_a_negative_rating_is_negative():
    assert labels(mine([feedback(("click", 1), ("thumbs_down", 1), ("cited", 4))], FLAT))["alpha"] == 0.0


def test_ignored_counts_only_next_to_a_useful_memory():
    assert mine([feedback(("ignored", 1), ("ignored", 2))], FLAT).examples == ()
    assert labels(mine([feedback(("ignored", 1), ("used", 2))], FLAT)) == {"beta": 1.0, "alpha": 0.0}


@pytest.mark.parametrize("kind", ["click", "thumbs_down", "thumbs_up", "cited"])
def test_the_same_signal_on_everything_has_no_effect(kind):
    assert mine([feedback(*((kind, rank) for rank in range(1, 5)))], FLAT).examples == ()


def test_position_bias_is_corrected_by_clipped_inverse_propensity():
    event, signals = feedback(("click", 2), ("click", 4), ("cited", 3))
    weights = {vote.shown.rank: vote.weight for vote in votes_of_event(event, signals, STEEP, clip=5.0)}
    # skipped, clicked, cited (by an agent, without bias), clicked and clipped
    assert weights == {1: 0.3, 2: 0.5 / 0.5, 3: 1.0, 4: 0.5 * 5.0}


def test_a_skip_weighs_more_where_it_is_observed_less_often():
    event, signals = feedback(("click", 4))
    propensities = Propensities(skip_observed=(0.8, 0.4, 0.1))
    weights = {vote.shown.rank: vote.weight for vote in votes_of_event(event, signals, propensities)}
    assert {rank: weights[rank] for rank in (1, 2, 3)} == pytest.approx({1: 0.3, 2: 0.6, 3: 0.3 * 5})


def train_query(number: int) -> str:
    """A query of the training split."""
    return [query for i in range(1000) if split_of_query(query := f"question {i} alpha") == TRAIN][number]


def test_labels_are_weighted_by_their_votes():
    log = [feedback(("click", 2), query=train_query(0)), feedback(("click", 3), query=train_query(1))]
    mined = sorted(mine(log, STEEP).examples, key=lambda entry: len(entry.example.candidates))
    first, second = ({c.memory.text: c.weight for c in entry.example.candidates} for entry in mined)
    # The clicks weigh .5/.5 and .5/.25, on average 1.5. All skipped memories weigh the same.
    assert first == pytest.approx({"beta": 1 / 1.5, "alpha": 1.0}, abs=1e-3)
    assert second == pytest.approx({"gamma": 2 / 1.5, "alpha": 1.0, "beta": 1.0}, abs=1e-3)
    unweighted = mine(log, STEEP, MiningSettings(weighted=False)).examples
    assert {c.weight for entry in unweighted for c in entry.example.candidates} == {1.0}


def test_a_held_out_example_contains_everything_that_was_shown():
    query = next(query for i in range(99) if split_of_query(query := f"question {i} alpha") == HELD_OUT)
    (mined,) = mine([feedback(("click", 2), query=query)], FLAT).examples
    candidates = {c.memory.text: (c.label, c.weight) for c in mined.example.candidates}
    assert candidates == {"beta": (1.0, 1.0), "alpha": (0.0, 1.0), "gamma": (0.0, 0.0), "delta": (0.0, 0.0)}
    assert ("text", "h-delta") in mined.sources
    (mined,) = mine([feedback(("click", 1), query=query)], FLAT).examples
    assert sorted(c.memory.text for c in mined.example.candidates) == ["alpha", "beta", "delta", "gamma"], "each once"
    (mined,) = mine([feedback(("click", 2), query=query)], FLAT, MiningSettings(max_unjudged=1)).examples
    assert [c.memory.text for c in mined.example.candidates] == ["beta", "alpha", "gamma"]


@pytest.mark.parametrize("query", ["hi there", "Thanks!", "ok", "good morning", "how are you doing", "", "?!"])
def test_small_talk_is_dropped(query):
    assert is_small_talk(query)
    assert mine([feedback(("click", 3), query=query)], FLAT).dropped["small talk"] == 1


def test_questions_are_not_small_talk():
    assert not is_small_talk("who is Ann?")
    assert not is_small_talk("OAuth")


def test_a_user_has_one_vote_regardless_of_the_number_of_clicks():
    spam = [feedback(("click", 3), actor="spam") for _ in range(50)]
    honest = [feedback(("click", 2), ("thumbs_down", 3), actor=name) for name in ("ann", "bob")]
    assert labels(mine(spam + honest, FLAT))["beta"] == 1.0
    assert labels(mine(spam + honest, FLAT)).get("gamma") != 1.0


def test_disputed_memories_are_dropped():
    log = [feedback(("thumbs_up", 2), actor="ann"), feedback(("thumbs_down", 2), ("cited", 3), actor="bob")]
    mined = mine(log, FLAT)
    assert "beta" not in labels(mined)
    assert mined.dropped["disputed memories"] == 1


def test_a_sufficient_majority_decides():
    log = [feedback(("thumbs_up", 2), ("ignored", 1), actor=name) for name in "abc"]
    log.append(feedback(("thumbs_down", 2), ("cited", 4), actor="d"))
    assert labels(mine(log, FLAT))["beta"] == 1.0


def test_position_correction_alone_does_not_outvote_people():
    log = [feedback(("click", 4), actor="attacker"), feedback(("thumbs_down", 4), ("cited", 1), actor="b")]
    log.append(feedback(("thumbs_down", 4), ("cited", 1), actor="c"))
    assert labels(mine(log, STEEP))["delta"] == 0.0


def test_a_few_users_cannot_push_a_memory_that_nobody_else_looked_at():
    log = [feedback(("click", 2), actor=f"honest{i}") for i in range(6)]
    log += [feedback(("click", 4), ("ignored", 1), actor=f"attacker{i}") for i in range(3)]
    assert "delta" not in labels(mine(log, FLAT))
    log += [feedback(("cited", 4), actor=f"supporter{i}") for i in range(3)]
    assert labels(mine(log, FLAT))["delta"] == 1.0


def test_the_queries_of_a_user_are_limited():
    log = [feedback(("click", 3), actor="flood", query=f"question number{i}") for i in range(99)]
    log.append(feedback(("click", 3), actor="ann"))
    mined = mine(log, FLAT, MiningSettings(max_queries_per_user=20, max_share_per_user=0.1))
    assert len(mined.examples) == 20 + 1
    assert mined.dropped["votes beyond an actor's limit"] == 79 * 3
    settings = MiningSettings(max_queries_per_user=20, max_share_per_user=0.5)
    assert len(mine(log, FLAT, settings).examples) == 50 + 1


@pytest.mark.parametrize("actor", ["ann", ""])
def test_the_only_actor_of_a_tenant_has_no_limit(actor):
    log = [feedback(("click", 3), actor=actor, query=f"question number{i}", tenant="alone") for i in range(100)]
    log += [feedback(("click", 3), actor=name, tenant="others") for name in ("bob", "cid")]
    mined = mine(log, FLAT)
    assert sum(entry.tenant == "alone" for entry in mined.examples) == 100
    assert not mined.dropped["votes beyond an actor's limit"]


def test_queries_of_other_tenants_do_not_raise_the_limit():
    log = [feedback(("click", 3), actor="flood", query=f"question number{i}", tenant="a") for i in range(100)]
    log.append(feedback(("click", 3), actor="ann", tenant="a"))
    log += [feedback(("click", 3), query=f"other number{i}", tenant="b") for i in range(400)]
    assert sum(entry.tenant == "a" for entry in mine(log, FLAT).examples) == 20 + 1


def test_actors_who_are_contradicted_by_others_have_no_vote():
    log = []
    for i in range(8):
        query = f"topic{i} question"
        log += [feedback(("thumbs_up", 2), ("thumbs_down", 3), actor=name, query=query) for name in ("ann", "bob")]
        log.append(feedback(("thumbs_up", 3), ("thumbs_down", 2), actor="troll", query=query))
    log.append(feedback(("click", 4), actor="troll", query="only the troll asks this"))
    mined = mine(log, FLAT)
    assert mined.dropped["actors contradicted by others"] == 1
    assert len(mined.examples) == 8
    assert all(labels(mined, i) == {"beta": 1.0, "gamma": 0.0} for i in range(8))


def test_queries_that_differ_in_case_and_order_are_the_same():
    log = [feedback(("click", 2), query="Where does Ruby work"), feedback(("click", 2), query="ruby WORKS where")]
    assert len(mine(log, FLAT).examples) == 1
    assert query_key("Ruby's works") == query_key("work, RUBY")


def test_tenants_are_separate():
    log = [feedback(("click", 2), tenant="a"), feedback(("thumbs_down", 2), ("cited", 3), tenant="b")]
    split = split_of_query(QUERY)
    assert [(entry.tenant, entry.split) for entry in mine(log, FLAT).examples] == [("a", split), ("b", split)]


def test_a_query_without_negatives_gets_memories_that_share_no_word_with_it():
    log = [
        feedback(("click", 1), texts=("Ruby works at Aurora", "x")),
        feedback(query="weather", texts=("rain", "work rota")),
    ]
    assert labels(mine(log, FLAT)) == {"Ruby works at Aurora": 1.0, "rain": 0.0, "x": 0.0}


def test_the_memories_per_query_are_limited_by_weight():
    texts = tuple(f"text{i}" for i in range(1, 21))
    signals = [*(("cited", rank) for rank in range(11, 17)), *(("contradicted", rank) for rank in range(1, 5))]
    settings = MiningSettings(max_positives=2, max_negatives=3)
    mined = labels(mine([feedback(*signals, texts=texts)], FLAT, settings))
    assert sorted(mined.values()) == [0.0, 0.0, 0.0, 1.0, 1.0]
    assert {text for text, label in mined.items() if label == 0} <= {f"text{i}" for i in range(1, 5)}


def test_the_split_depends_only_on_the_words_of_the_query():
    queries = [f"question about topic{i}" for i in range(2000)]
    held_out = [query for query in queries if split_of_query(query) == HELD_OUT]
    assert 0.27 < len(held_out) / 2000 < 0.33
    assert all(split_of_query(f"TOPIC{q[20:]}, a question about") == split_of_query(q) for q in queries)
    assert split_of_query("Where does Ruby work?") in (TRAIN, HELD_OUT)


def test_examples_have_provenance_and_sources():
    event, signals = feedback(("click", 2), user="asker", tenant="t")
    (mined,) = mine([(event, signals)], FLAT).examples
    assert mined.provenance["events"] == [event.id]
    judged = [label for label in mined.provenance["labels"] if "unjudged" not in label["votes"]]
    assert judged == [
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


def test_memories_without_a_stored_text_are_looked_up():
    event, signals = feedback(("click", 2))
    event = replace(event, shown=tuple(replace(shown, memory=None) for shown in event.shown))
    assert mine([(event, signals)], FLAT).dropped["memories without a text"] == 2
    mined = mine([(event, signals)], FLAT, lookup=lambda memory_id: Memory(memory_id.upper(), id=memory_id))
    assert labels(mined) == {"M-BETA": 1.0, "M-ALPHA": 0.0}


def test_golden_files_may_have_any_of_our_formats(tmp_path):
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


def test_golden_files_are_split_by_their_groups(tmp_path):
    def splits(**fields):
        rows = [
            {"query": f"question {i} alpha", "text": "a", "label": 1, **{k: f"{v}{i // 10}" for k, v in fields.items()}}
            for i in range(200)
        ]
        path = tmp_path / "golden.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return [(entry.example.group, entry.example.query, entry.split) for entry in mine_golden(path, 0.3)]

    by_group = {(group, split) for group, _, split in splits(group="the ")}
    assert len(by_group) == 20, "each group has one split"
    assert {split for _, split in by_group} == {TRAIN, HELD_OUT}
    assert all(split == split_of_query(query) for _, query, split in splits()), "like the same query in the feedback"


@pytest.mark.parametrize(
    "table", [{"min_agreement": 0.5}, {"min_agreement": 1.1}, {"held_out": 0}, {"held_out": 1}, {"clip": 0.5}]
)
def test_invalid_mining_settings(table):
    with pytest.raises(InputError) as error:
        LearningSettings.from_table({"mining": table})
    assert error.value.field == f"mining.{next(iter(table))}"


OLD = Memory("Ruby had lunch with Sam.", id="old", occurred_start="2019-05-02")
NEW = Memory("Ruby had lunch with Sam.", id="new", occurred_start="2024-03-05")
CAT = Memory("The cat sleeps.", id="cat")


def show(memories, query=QUERY, **fields):
    """An event that shows memories; hashes depend only on the text, as in a store."""
    shown = tuple(ShownMemory(rank, memory, memory.id, f"h-{memory.text}") for rank, memory in enumerate(memories, 1))
    return RerankEvent(query, shown, "v1", **fields)


def labels_by_id(mined):
    return [{c.memory.id: c.label for c in entry.example.candidates if c.weight} for entry in mined.examples]


def test_memories_with_the_same_text_are_distinguished_by_their_dates():
    event = show((OLD, NEW, CAT))
    signals = [Signal(event.id, "thumbs_down", 1, actor="ann"), Signal(event.id, "thumbs_up", 2, actor="ann")]
    assert labels_by_id(mine([(event, signals)], FLAT)) == [{"new": 1.0, "old": 0.0}]
    other = show((NEW, OLD, CAT))
    log = [(event, signals), (other, [Signal(other.id, "thumbs_up", 1, actor="bob")])]
    assert labels_by_id(mine(log, FLAT)) == [{"new": 1.0, "old": 0.0}], "at any rank"


def test_without_stored_texts_memories_with_the_same_text_are_distinguished_by_their_ids():
    event = show((OLD, NEW, CAT))
    event = replace(event, shown=tuple(replace(shown, memory=None) for shown in event.shown))
    signals = [Signal(event.id, "thumbs_down", 1, actor="ann"), Signal(event.id, "thumbs_up", 2, actor="ann")]
    memories = {memory.id: memory for memory in (OLD, NEW, CAT)}
    (mined,) = mine([(event, signals)], FLAT, lookup=memories.get).examples
    assert {c.memory.id: c.label for c in mined.example.candidates if c.weight} == {"new": 1.0, "old": 0.0}
    assert ("text", f"h-{NEW.text}") in mined.sources


def test_the_content_hash_distinguishes_memories_with_the_same_text():
    event = show((OLD, NEW, CAT))
    hashes = set()
    for liked, disliked in ((1, 2), (2, 1)):
        signals = [Signal(event.id, "thumbs_up", liked), Signal(event.id, "thumbs_down", disliked)]
        (mined,) = mine([(event, signals)], FLAT).examples
        hashes.add(content_hash(mined, b"salt"))
    assert len(hashes) == 2


def test_queries_with_relative_times_are_separate_on_each_day():
    monday, tuesday = (Memory(f"Ann ate {food}.", id=food) for food in ("soup", "rice"))
    log = []
    for time, shown in (("2024-03-04T09:00", (monday, CAT)), ("2024-03-05", (tuesday, monday, CAT))):
        event = show(shown, "What did Ann eat today?", query_time=time)
        log.append((event, [Signal(event.id, "thumbs_up", 1, actor="ann")]))
    mined = mine(log, FLAT).examples
    positives = {
        str(entry.example.query_time)[:10]: [c.memory.id for c in entry.example.candidates if c.label]
        for entry in mined
    }
    assert positives == {"2024-03-04": ["soup"], "2024-03-05": ["rice"]}
    assert len({entry.split for entry in mined}) == len({entry.example.group for entry in mined}) == 1
    by_log_time = [
        (replace(event, query_time=None, time=86400.0 * day), signals) for day, (event, signals) in enumerate(log)
    ]
    assert len(mine(by_log_time, FLAT).examples) == 2
    without_relative_time = [(replace(event, query="What did Ann eat at noon?"), signals) for event, signals in log]
    assert len(mine(without_relative_time, FLAT).examples) == 1


NOON = datetime(2024, 3, 5, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, Moment.parse(NOON)),
        ({"query_time": "2019-05"}, Moment(2019, 5)),
        ({"time": 1e300}, None),
    ],
)
def test_the_query_time_of_an_example_is_that_of_the_latest_event(fields, expected):
    earlier = show((OLD, CAT), time=NOON.timestamp() - 86400, query_time="2001")
    latest = show((OLD, CAT), **{"time": NOON.timestamp(), **fields})
    log = [(event, [Signal(event.id, "thumbs_up", 1, actor=name)]) for name, event in (("a", earlier), ("b", latest))]
    (mined,) = mine(log, FLAT).examples
    assert mined.example.query_time == expected


def votes_through_keys(**counts):
    """A log in which the users of `app` like beta and dislike alpha; those of all other keys say the opposite."""
    log = []
    for key, count in counts.items():
        liked, disliked = (2, 1) if key == "app" else (1, 2)
        for number in range(count):
            event, signals = feedback(("thumbs_up", liked), ("thumbs_down", disliked), actor=f"{key}-{number}")
            log.append((event, [replace(signal, caller=key) for signal in signals]))
    return log


def test_invented_users_behind_one_key_do_not_flip_a_label():
    mined = mine(votes_through_keys(app=20, hostile=100), FLAT)
    assert mined.examples == (), "the keys disagree, so the label is disputed"
    assert mined.dropped["votes beyond the limit of an API key"] == 2 * (10 + 90)


def test_a_few_users_of_another_key_do_not_outvote_many():
    assert labels(mine(votes_through_keys(app=100, hostile=3), FLAT)) == {"beta": 1.0, "alpha": 0.0}


def test_behind_a_single_key_all_users_count():
    mined = mine(votes_through_keys(app=50), FLAT)
    assert mined.dropped["votes beyond the limit of an API key"] == 0
    assert mined.examples[0].provenance["actors"] == 50
