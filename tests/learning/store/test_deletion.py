import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy

from mnemorank import InputError, Memory
from mnemorank.learning.events import RerankEvent, ShownMemory
from mnemorank.learning.loop import Loop
from mnemorank.learning.mining.miner import HELD_OUT, TRAIN, mine, split_of
from mnemorank.learning.mining.propensity import Propensities
from mnemorank.learning.signals import Signal
from mnemorank.learning.store import examples, schema
from mnemorank.learning.store.database import _engine
from mnemorank.learning.store.deletion import delete_by_scope, deletions, expire, export_user
from mnemorank.learning.store.events import DAY, EventStore
from tests.learning.learning_cases import make_event

QUERIES = ("Where does Ruby work?", "When is the dentist visit?", "Which database do we use?")
NOW = 1_700_000_000.0


@pytest.fixture
def filled(store: EventStore) -> EventStore:
    """Three queries of ann's in tenant t, with bob's signals on the second; a model trained on all examples."""
    for number, query in enumerate(QUERIES):
        texts = tuple(f"{query} text{i}" for i in range(3))
        event_id = store.record(
            make_event(query, texts, id=f"e{number}", tenant="t", user="ann", time=1000.0 * number + 1)
        )
        store.signal([Signal(event_id, "click", 1, actor="bob" if number == 1 else "ann", time=event_time(number))])
    store.record(make_event("Where does Ruby work?", ("x", "y", "z"), id="other", tenant="u", user="ann", time=5000.0))
    remine(store)
    examples.load_for_training(store.database, "0002")
    return store


def event_time(number: int) -> float:
    return 1000.0 * number + 2


def remine(store: EventStore) -> None:
    examples.save(store.database, mine(store.events(), Propensities()).examples, "feedback")


def test_examples_come_back_as_they_were_mined(filled):
    mined = mine(filled.events(), Propensities()).examples
    assert len(mined) == 3
    assert sorted(examples.load(filled.database), key=lambda e: e.example.id) == sorted(
        mined, key=lambda e: e.example.id
    )
    assert sum(examples.counts(filled.database).values()) == 3
    assert len(examples.trained_on(filled.database, "0002")) == 3


@pytest.mark.parametrize(
    ("scope", "name", "events", "signals", "gone"),
    [
        ("event", "e0", 1, 1, {QUERIES[0]}),
        ("user", "bob", 0, 1, {QUERIES[1]}),
        ("user", "ann", 3, 3, set(QUERIES)),
        ("tenant", "t", 3, 3, set(QUERIES)),
        ("memory", "m-Which database do we use? text1", 1, 1, {QUERIES[2]}),
        ("memory", "m-Which database do we use? text0", 1, 0, {QUERIES[2]}),
    ],
)
def test_a_deletion_reaches_examples_and_is_recorded_for_models(filled, scope, name, events, signals, gone):
    done = delete_by_scope(filled, scope, name, "t")
    assert (done.events, done.signals, done.examples) == (events, signals, len(gone))
    assert done.models == {"0002": len(gone)}
    left = {entry.example.query for entry in examples.load(filled.database)}
    assert left == set(QUERIES) - gone
    remine(filled)
    again = {entry.example.query for entry in examples.load(filled.database)}
    # A memory that was only skipped leaves the example's other labels to be mined again, without it.
    assert again == (left if scope != "memory" or name.endswith("text1") else left | gone & again)
    for entry in examples.load(filled.database):
        assert all(candidate.memory.id != name for candidate in entry.example.candidates)
    (record,) = deletions(filled)
    assert (record.scope, record.models) == (scope, done.models)
    assert len(record.subject) == 32  # a keyed hash, not the name
    assert filled.event("other") is not None


@pytest.mark.parametrize(
    ("scope", "name", "count"),
    [("user", "bob", 1), ("event", "e0", 1), ("tenant", "t", 3), ("memory", "m-Which database do we use? text1", 1)],
)
def test_a_deletion_is_recorded_for_a_model_whose_examples_were_mined_away(filled, scope, name, count):
    examples.save(filled.database, [], "feedback")
    done = delete_by_scope(filled, scope, name, "t")
    assert (done.examples, done.models) == (0, {"0002": count})
    assert delete_by_scope(filled, scope, name, "t").models == {}, "once"
    assert delete_by_scope(filled, "tenant", "t", "t").models == ({"0002": 3 - count} if count < 3 else {})


def test_a_version_takes_over_what_its_run_was_trained_on(filled):
    examples.load_for_training(filled.database, "run:7")
    examples.save(filled.database, [], "feedback")
    assert delete_by_scope(filled, "event", "e0", "t").models == {"0002": 1, "run:7": 1}
    examples.hand_over(filled.database, "run:7", "0003")
    assert len(examples.trained_on(filled.database, "0003")) == 3
    assert delete_by_scope(filled, "tenant", "t", "t").models == {"0002": 2, "0003": 2, "run:7": 2}


def test_trainings_from_before_sources_were_kept_are_found(store_url):
    engine = _engine(store_url)
    with engine.execution_options(mnemorank_write=True).begin() as connection:
        schema.migrate(connection, to=3)
        rows = {"version": "0002", "example_id": "feedback-1"}
        connection.execute(sqlalchemy.text("INSERT INTO model_examples VALUES (:version, :example_id)"), rows)
        given = {"example_id": "feedback-1", "kind": "actor", "source": "t\x1fann"}
        connection.execute(schema.example_sources.insert(), given)
    engine.dispose()
    with EventStore(store_url) as store:
        assert delete_by_scope(store, "user", "ann", "t").models == {"0002": 1}


def query_of(split: str) -> str:
    return next(query for i in range(99) if split_of(query := f"question {i} alpha") == split)


@pytest.mark.parametrize("scope", ["user", "event"])
def test_a_deletion_reaches_texts_in_the_examples_of_others(store, scope):
    """Bob's events supply an easy negative, memories that nobody judged, and the wording of a query."""
    asked, held_out = query_of(TRAIN), query_of(HELD_OUT)
    store.record(make_event("weather", ("bob easy",), id="b0", tenant="t", user="bob"))
    store.record(make_event(held_out, ("bob silent",), id="b1", tenant="t", user="bob"))
    for query, texts in ((asked, ("one",)), (held_out, ("two", "three"))):
        event_id = store.record(make_event(query, texts, tenant="t", user="ann"))
        store.signal([Signal(event_id, "click", len(texts) - 1, actor="ann")])
    remine(store)
    assert sum("bob" in str(entry.example) for entry in examples.load(store.database)) == 2
    assert [record["record"] for record in export_user(store, "bob", "t")] == ["event", "event"], "not ann's questions"
    for name in ("bob",) if scope == "user" else ("b0", "b1"):
        delete_by_scope(store, scope, name, "t")
    assert not any("bob" in str(entry.example) for entry in examples.load(store.database))


def test_a_deletion_reaches_the_wording_of_a_query(store):
    """Two ask the same in other words; the vote of the latest is not among those that its labels rest on."""
    given = (("question alpha", [("cited", 0), ("contradicted", 1)]), ("Alpha, a QUESTION", [("thumbs_up", 1)]))
    for number, (query, signals) in enumerate(given):
        store.record(make_event(query, tuple("abc"), id=f"e{number}", tenant="t", user=f"u{number}", time=NOW + number))
        store.signal([Signal(f"e{number}", kind, place, time=NOW + 9) for kind, place in signals])
    (mined,) = mine(store.events(), Propensities()).examples
    assert mined.example.query == "Alpha, a QUESTION"
    assert "e1" not in mined.provenance["events"]
    assert ("event", "e1") in mined.sources


def test_nothing_found_is_nothing_recorded(filled):
    assert not delete_by_scope(filled, "user", "nobody", "t").found_anything
    assert not delete_by_scope(filled, "memory", "m-x", "t").found_anything  # of another tenant
    assert deletions(filled) == []
    with pytest.raises(InputError, match="scope: expected event"):
        delete_by_scope(filled, "world", "x", "t")


def test_old_events_expire_with_their_examples(filled):
    done = expire(filled, now=365 * DAY + 1500.0)
    assert (done.events, done.examples, done.models) == (2, 2, {"0002": 2})
    assert filled.event("e1") is None
    assert filled.event("e2") is not None
    assert expire(filled, now=365 * DAY + 1500.0).events == 0


def test_a_user_gets_all_their_data(filled):
    records = list(export_user(filled, "ann", "t"))
    assert [record["record"] for record in records] == ["event"] * 3 + ["example"] * 3
    assert records[0]["query"] == QUERIES[0]
    assert records[0]["shown"][1]["memory"]["text"] == f"{QUERIES[0]} text1"
    assert records[0]["signals"][0]["kind"] == "click"
    of_bob = list(export_user(filled, "bob", "t"))
    assert [record["record"] for record in of_bob] == ["signals", "example"]
    assert list(export_user(filled, "nobody", "t")) == []


def test_deleted_texts_are_gone_from_the_files(tmp_path: Path):
    from mnemorank.learning.store.redaction import Policy

    with EventStore(tmp_path / "events.db", Policy(texts=True)) as store:
        store.record(make_event("keep this", ("kept text",), id="a"))
        store.record(make_event("unforgettable question", ("unforgettable text",), id="b"))
        delete_by_scope(store, "event", "b", "default")
        raw = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"kept text" in raw
    assert b"unforgettable" not in raw


@pytest.mark.parametrize("later", ["deletion", "mining", "close"])
def test_a_deletion_does_not_wait_for_a_reader_and_the_log_is_emptied_later(sqlite_store, tmp_path, caplog, later):
    sqlite_store.record(make_event("unforgettable question", ("unforgettable text",), id="b"))
    with closing(sqlite3.connect(tmp_path / "events.db", isolation_level=None)) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM events").fetchone() == (1,)
        thread = threading.Thread(target=delete_by_scope, args=(sqlite_store, "event", "b", "default"))
        thread.start()
        thread.join(15)  # half of what a writer is patient for
        assert not thread.is_alive()
        assert "still hold what was deleted" in caplog.text
        log = tmp_path / "events.db-wal"
        assert b"unforgettable" in log.read_bytes()
        with sqlite_store.database.reading() as connection:
            assert connection.execute(sqlalchemy.text("PRAGMA busy_timeout")).scalar() == 30_000
        reader.execute("COMMIT")
        if later == "deletion":
            delete_by_scope(sqlite_store, "user", "nobody", "default")
        elif later == "mining":  # of another process
            with Loop(tmp_path) as loop:
                loop.mine()
        else:
            sqlite_store.close()
        assert b"unforgettable" not in log.read_bytes(), "though another connection is open"
        assert b"unforgettable" not in (tmp_path / "events.db").read_bytes()


def test_a_memory_that_was_shown_with_many_texts_is_deleted(store):
    """More than one statement could name: SQLite takes a thousand conditions, PostgreSQL 65,535 parameters."""
    events = [
        RerankEvent(
            "Who am I?", (ShownMemory(0, Memory(f"text {number}", id="profile"), "profile"),), "v1", id=f"e{number}"
        )
        for number in range(1100)
    ]
    store.record_many(events)
    texts = [store.text_hash(f"text {number}") for number in range(1100)]
    many = 66_000
    with store.database.writing() as connection:
        row = {"tenant": "default", "split": TRAIN, "record": "{}", "provenance": "{}", "mined_at": NOW, "content": ""}
        connection.execute(schema.examples.insert(), [{"id": f"feedback-{i}", **row} for i in range(many)])
        sources = [{"example_id": f"feedback-{i}", "kind": "text", "source": texts[i % 1100]} for i in range(many)]
        connection.execute(schema.example_sources.insert(), sources)
    done = delete_by_scope(store, "memory", "profile", "default")
    assert (done.events, done.examples) == (1100, many)
    assert examples.counts(store.database) == {}


@pytest.mark.parametrize("name", ["old", "new", "copy"])
def test_a_deletion_reaches_memories_that_share_their_words_with_others(store, name):
    """`copy` is `new` under another id: examples hold it by the name of the first that was logged."""
    words = "Ruby had lunch with Sam."
    dates = {"old": "2019-05-02", "new": "2024-03-05", "copy": "2024-03-05"}
    lunches = {one: Memory(words, id=one, occurred_start=date) for one, date in dates.items()}
    for number, (first, second) in enumerate((("old", "new"), ("old", "copy"))):
        shown = tuple(ShownMemory(place, lunches[one], one) for place, one in enumerate((first, second)))
        event_id = store.record(
            RerankEvent("When was Ruby's lunch in 2024?", shown, "v1", user="ann", time=1.0 + number)
        )
        store.signal([Signal(event_id, "click", 1, actor="ann", time=2.0 + number)])
    remine(store)
    (entry,) = examples.load(store.database)
    assert {c.memory.id: c.label for c in entry.example.candidates} == {"new": 1.0, "old": 0.0}
    examples.load_for_training(store.database, "0002")
    done = delete_by_scope(store, "memory", name, "default")
    assert (done.events, done.examples, done.models) == (2 if name == "old" else 1, 1, {"0002": 1})
    assert examples.load(store.database) == []
