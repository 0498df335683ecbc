import logging
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy

from mnemorank import InputError, Memory
from mnemorank.learning.events import RerankEvent, ShownMemory
from mnemorank.learning.loop import Loop
from mnemorank.learning.mining.miner import HELD_OUT, TRAIN, mine, split_of_query
from mnemorank.learning.mining.propensity import Propensities
from mnemorank.learning.settings import PrivacySettings
from mnemorank.learning.signals import Signal
from mnemorank.learning.store import examples, schema
from mnemorank.learning.store.deletion import delete_by_scope, delete_expired, export_user, list_deletions
from mnemorank.learning.store.events import DAY, EventStore
from tests.learning.factories import make_event

QUERIES = ("Where does Ruby work?", "When is the dentist visit?", "Which database do we use?")
NOW = 1_700_000_000.0


@pytest.fixture
def trained_store(store: EventStore) -> EventStore:
    """Three queries by ann in tenant t, with a signal by bob on the second; a model is trained on all examples."""
    for number, query in enumerate(QUERIES):
        time = 1000.0 * number + 1
        texts = tuple(f"{query} text{i}" for i in range(3))
        event_id = store.record(make_event(query, texts, id=f"e{number}", tenant="t", user="ann", time=time))
        store.add_signals([Signal(event_id, "click", 2, actor="bob" if number == 1 else "ann", time=time + 1)])
    store.record(make_event("Where does Ruby work?", ("x", "y", "z"), id="other", tenant="u", user="ann", time=5000.0))
    mine_again(store)
    examples.load_for_training(store.database, "0002")
    return store


def mine_again(store: EventStore) -> None:
    examples.replace_examples(store.database, mine(store.events(), Propensities()).examples, "feedback")


def test_examples_are_loaded_as_they_were_mined(trained_store):
    mined = mine(trained_store.events(), Propensities()).examples
    assert len(mined) == 3
    assert sorted(examples.load_examples(trained_store.database), key=lambda entry: entry.example.id) == sorted(
        mined, key=lambda entry: entry.example.id
    )
    assert sum(examples.count_examples(trained_store.database).values()) == 3
    assert len(examples.trained_example_ids(trained_store.database, "0002")) == 3


@pytest.mark.parametrize(
    ("scope", "name", "events", "signals", "deleted_queries"),
    [
        ("event", "e0", 1, 1, {QUERIES[0]}),
        ("user", "bob", 0, 1, {QUERIES[1]}),
        ("user", "ann", 3, 3, set(QUERIES)),
        ("tenant", "t", 3, 3, set(QUERIES)),
        ("memory", "m-Which database do we use? text1", 1, 1, {QUERIES[2]}),
        ("memory", "m-Which database do we use? text0", 1, 0, {QUERIES[2]}),
    ],
)
def test_a_deletion_reaches_examples_and_names_models(trained_store, scope, name, events, signals, deleted_queries):
    deletion = delete_by_scope(trained_store, scope, name, "t")
    assert (deletion.events, deletion.signals, deletion.examples) == (events, signals, len(deleted_queries))
    assert deletion.models == {"0002": len(deleted_queries)}
    remaining = {entry.example.query for entry in examples.load_examples(trained_store.database)}
    assert remaining == set(QUERIES) - deleted_queries
    mine_again(trained_store)
    mined = {entry.example.query for entry in examples.load_examples(trained_store.database)}
    # If the memory was only skipped, the other labels of the example are mined again, without it.
    was_only_skipped = scope == "memory" and not name.endswith("text1")
    assert mined == (remaining | deleted_queries & mined if was_only_skipped else remaining)
    for entry in examples.load_examples(trained_store.database):
        assert all(candidate.memory.id != name for candidate in entry.example.candidates)
    (recorded,) = list_deletions(trained_store)
    assert (recorded.scope, recorded.models) == (scope, deletion.models)
    assert len(recorded.subject) == 32, "a keyed hash, not the name"
    assert trained_store.event("other") is not None


@pytest.mark.parametrize(
    ("scope", "name", "count"),
    [("user", "bob", 1), ("event", "e0", 1), ("tenant", "t", 3), ("memory", "m-Which database do we use? text1", 1)],
)
def test_a_deletion_names_models_whose_examples_were_replaced_since(trained_store, scope, name, count):
    examples.replace_examples(trained_store.database, [], "feedback")
    deletion = delete_by_scope(trained_store, scope, name, "t")
    assert (deletion.examples, deletion.models) == (0, {"0002": count})
    assert delete_by_scope(trained_store, scope, name, "t").models == {}, "only once"
    assert delete_by_scope(trained_store, "tenant", "t", "t").models == ({"0002": 3 - count} if count < 3 else {})


def test_a_version_takes_over_the_training_record_of_its_run(trained_store):
    examples.load_for_training(trained_store.database, "run:7")
    examples.replace_examples(trained_store.database, [], "feedback")
    assert delete_by_scope(trained_store, "event", "e0", "t").models == {"0002": 1, "run:7": 1}
    examples.copy_training_record(trained_store.database, "run:7", "0003")
    assert len(examples.trained_example_ids(trained_store.database, "0003")) == 3
    assert delete_by_scope(trained_store, "tenant", "t", "t").models == {"0002": 2, "0003": 2, "run:7": 2}


def query_in(split: str) -> str:
    return next(query for i in range(99) if split_of_query(query := f"question {i} alpha") == split)


@pytest.mark.parametrize("scope", ["user", "event"])
def test_a_deletion_reaches_texts_in_examples_of_other_users(store, scope):
    """Bob's events supply an easy negative, unjudged memories, and the wording of a query."""
    train_query, held_out_query = query_in(TRAIN), query_in(HELD_OUT)
    store.record(make_event("weather", ("bob easy",), id="b0", tenant="t", user="bob"))
    store.record(make_event(held_out_query, ("bob silent",), id="b1", tenant="t", user="bob"))
    for query, texts in ((train_query, ("one",)), (held_out_query, ("two", "three"))):
        event_id = store.record(make_event(query, texts, tenant="t", user="ann"))
        store.add_signals([Signal(event_id, "click", len(texts), actor="ann")])
    mine_again(store)
    assert sum("bob" in str(entry.example) for entry in examples.load_examples(store.database)) == 2
    assert [record["record"] for record in export_user(store, "bob", "t")] == ["event", "event"], "not ann's queries"
    for name in ("bob",) if scope == "user" else ("b0", "b1"):
        delete_by_scope(store, scope, name, "t")
    assert not any("bob" in str(entry.example) for entry in examples.load_examples(store.database))


def test_the_event_that_supplies_the_wording_is_a_source(store):
    """Two users ask the same in other words; the labels do not use the vote of the later one."""
    feedback = (("question alpha", [("cited", 1), ("contradicted", 2)]), ("Alpha, a QUESTION", [("thumbs_up", 2)]))
    for number, (query, signals) in enumerate(feedback):
        store.record(make_event(query, tuple("abc"), id=f"e{number}", tenant="t", user=f"u{number}", time=NOW + number))
        store.add_signals([Signal(f"e{number}", kind, rank, time=NOW + 9) for kind, rank in signals])
    (mined,) = mine(store.events(), Propensities()).examples
    assert mined.example.query == "Alpha, a QUESTION"
    assert "e1" not in mined.provenance["events"]
    assert ("event", "e1") in mined.sources


def test_an_empty_deletion_is_not_recorded(trained_store):
    assert delete_by_scope(trained_store, "user", "nobody", "t").is_empty
    assert delete_by_scope(trained_store, "memory", "m-x", "t").is_empty, "it belongs to another tenant"
    assert list_deletions(trained_store) == []


def test_an_unknown_scope_is_rejected(sqlite_store):
    with pytest.raises(InputError) as error:
        delete_by_scope(sqlite_store, "world", "x", "t")
    assert error.value.field == "scope"


def test_expired_events_are_deleted_with_their_examples(trained_store):
    deletion = delete_expired(trained_store, now=365 * DAY + 1500.0)
    assert (deletion.events, deletion.examples, deletion.models) == (2, 2, {"0002": 2})
    assert trained_store.event("e1") is None
    assert trained_store.event("e2") is not None
    assert delete_expired(trained_store, now=365 * DAY + 1500.0).events == 0


def test_an_export_contains_everything_about_a_user(trained_store):
    records = list(export_user(trained_store, "ann", "t"))
    assert [record["record"] for record in records] == ["event"] * 3 + ["example"] * 3
    assert records[0]["query"] == QUERIES[0]
    assert records[0]["shown"][1]["memory"]["text"] == f"{QUERIES[0]} text1"
    assert records[0]["signals"][0]["kind"] == "click"
    not_stored = {"degraded", "keep_texts", "index"}
    assert not_stored.isdisjoint({*records[0], *records[0]["shown"][0]})
    of_bob = list(export_user(trained_store, "bob", "t"))
    assert [record["record"] for record in of_bob] == ["signals", "example"]
    assert list(export_user(trained_store, "nobody", "t")) == []


def test_an_export_does_not_contain_what_others_said(store):
    event_id = store.record(make_event(user="ann", tenant="t"))
    store.add_signals([Signal(event_id, "note", note=f"a note of {name}", actor=name) for name in ("ann", "bob")])
    (record,) = export_user(store, "ann", "t")
    assert [signal["note"] for signal in record["signals"]] == ["a note of ann"]
    (record,) = export_user(store, "bob", "t")
    assert [signal["note"] for signal in record["signals"]] == ["a note of bob"]


def test_deleted_texts_are_removed_from_the_files(tmp_path: Path):
    with EventStore(tmp_path / "events.db", PrivacySettings(texts=True)) as store:
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
        thread.join(15)  # a writer would wait for 30 seconds
        assert not thread.is_alive()
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        log = tmp_path / "events.db-wal"
        assert b"unforgettable" in log.read_bytes()
        with sqlite_store.database.reading() as connection:
            assert connection.execute(sqlalchemy.text("PRAGMA busy_timeout")).scalar() == 30_000
        reader.execute("COMMIT")
        if later == "deletion":
            delete_by_scope(sqlite_store, "user", "nobody", "default")
        elif later == "mining":  # in another process
            with Loop(tmp_path) as loop:
                loop.mine()
        else:
            sqlite_store.close()
        assert b"unforgettable" not in log.read_bytes(), "although another connection is open"
        assert b"unforgettable" not in (tmp_path / "events.db").read_bytes()


@pytest.mark.slow
def test_a_memory_that_was_shown_with_many_texts_is_deleted(store):
    """There are more names than a statement can list: SQLite allows 1,000 conditions, PostgreSQL 65,535 parameters."""
    events = [
        RerankEvent(
            "Who am I?", (ShownMemory(1, Memory(f"text {number}", id="profile"), "profile"),), "v1", id=f"e{number}"
        )
        for number in range(1100)
    ]
    store.record_many(events)
    texts = [store.text_hash(f"text {number}") for number in range(1100)]
    count = 66_000
    with store.database.writing() as connection:
        row = {"tenant": "default", "split": TRAIN, "record": "{}", "provenance": "{}", "mined_at": NOW, "content": ""}
        connection.execute(schema.examples.insert(), [{"id": f"feedback-{i}", **row} for i in range(count)])
        sources = [{"example_id": f"feedback-{i}", "kind": "text", "source": texts[i % 1100]} for i in range(count)]
        connection.execute(schema.example_sources.insert(), sources)
    deletion = delete_by_scope(store, "memory", "profile", "default")
    assert (deletion.events, deletion.examples) == (1100, count)
    assert examples.count_examples(store.database) == {}


@pytest.mark.parametrize("name", ["old", "new", "copy"])
def test_a_deletion_reaches_memories_with_the_same_text_as_others(store, name):
    """`copy` is `new` with another id: examples contain it under the id that was recorded first."""
    text = "Ruby had lunch with Sam."
    dates = {"old": "2019-05-02", "new": "2024-03-05", "copy": "2024-03-05"}
    memories = {memory_id: Memory(text, id=memory_id, occurred_start=date) for memory_id, date in dates.items()}
    for number, shown_ids in enumerate((("old", "new"), ("old", "copy"))):
        shown = tuple(ShownMemory(rank, memories[shown_id], shown_id) for rank, shown_id in enumerate(shown_ids, 1))
        event_id = store.record(
            RerankEvent("When was Ruby's lunch in 2024?", shown, "v1", user="ann", time=1.0 + number)
        )
        store.add_signals([Signal(event_id, "click", 2, actor="ann", time=2.0 + number)])
    mine_again(store)
    (entry,) = examples.load_examples(store.database)
    assert {c.memory.id: c.label for c in entry.example.candidates} == {"new": 1.0, "old": 0.0}
    examples.load_for_training(store.database, "0002")
    deletion = delete_by_scope(store, "memory", name, "default")
    assert (deletion.events, deletion.examples, deletion.models) == (2 if name == "old" else 1, 1, {"0002": 1})
    assert examples.load_examples(store.database) == []
