import json
import signal as signals_of_unix
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy

from mnemorank import InputError, Memory
from mnemorank.learning.events import RerankEvent, ShownMemory
from mnemorank.learning.signals import Signal
from mnemorank.learning.store import schema
from mnemorank.learning.store.database import EVENT_PATIENCE, Database, _engine
from mnemorank.learning.store.events import DAY, EventStore, _Waiting
from mnemorank.learning.store.redaction import Policy
from tests.learning.learning_cases import make_event


def test_an_event_comes_back_as_it_was_logged(store):
    event = RerankEvent(
        "Where does Ruby work?",
        (ShownMemory(0, Memory("At Acme", id="m1", type="world"), relevance=0.9, raw_score=2.2, propensity=0.95),),
        "v1",
        time=1000.5,
        tenant="acme",
        user="ruby",
        query_time="2024-05-01",
        abstained=True,
    )
    store.record(event)
    read, signals = store.event(event.id)
    shown = read.shown[0]
    assert (read.query, read.time, read.tenant, read.user, read.query_time) == (
        event.query, 1000.5, "acme", "ruby", "2024-05-01",
    )  # fmt: skip
    assert (shown.memory, shown.memory_id, shown.relevance, shown.propensity) == (
        event.shown[0].memory,
        "m1",
        0.9,
        0.95,
    )
    assert shown.text_hash == store.text_hash("At Acme")
    assert read.abstained
    assert signals == []
    assert store.event("nothing") is None


def test_texts_are_stored_only_where_allowed(store_url):
    with EventStore(store_url) as store:
        kept = store.record(make_event(texts=("secret one", "two")))
        shown = store.event(kept)[0].shown
        assert [memory.memory for memory in shown] == [None, None]
        assert shown[0].text_hash == store.text_hash("secret one")
    with EventStore(store_url, Policy(texts=True)) as store:
        refused = store.event(store.record(make_event(keep_texts=False)))[0]
        assert refused.query is None
        assert refused.shown[0].memory is None
    with EventStore(store_url, Policy(queries=False)) as store:
        assert store.event(store.record(make_event()))[0].query is None


def test_everything_is_redacted_before_it_is_written(tmp_path):
    with EventStore(tmp_path / "e.db", Policy(texts=True, patterns={"badge": r"B-\d+"})) as store:
        memory = Memory("Mail ann@example.org", id="1", context="B-77", metadata={"ssn": "123"}, entities=("x@y.org",))
        event_id = store.record(RerankEvent("call +44 20 7946 0958", (ShownMemory(0, memory),), "v1"))
        store.signal([Signal(event_id, "note", note="my key is sk-abcdefghijklmnop1234")])
        event, signals = store.event(event_id)
    raw = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert event.query == "call [phone]"
    assert event.shown[0].memory == Memory("Mail [email]", id="1", context="[badge]", entities=("[email]",))
    assert signals[0].note == "my key is [key]"
    for secret in (b"example.org", b"7946", b"B-77", b"sk-abc", b"y.org", b"ssn"):
        assert secret not in raw


def test_a_repeated_signal_counts_once_and_keeps_the_later_value(store):
    event_id = store.record(make_event(time=1000.0))
    first = Signal(event_id, "stars", 1, 2.0, actor="ann", time=1001.0)
    assert store.signal([first, first]) == 1
    assert store.signal([Signal(event_id, "stars", 1, 5.0, actor="ann", time=1010.0)]) == 0
    assert store.signal([Signal(event_id, "stars", 1, 1.0, actor="ann", time=1005.0)]) == 0
    (stored,) = store.event(event_id)[1]
    assert (stored.value, stored.time) == (5.0, 1010.0)
    assert store.counts()["signals"] == 1


def test_a_late_signal_is_kept_apart_and_marked(store):
    event_id = store.record(make_event(time=1000.0))
    store.signal([Signal(event_id, "click", 0, time=1001.0), Signal(event_id, "click", 0, time=1000.0 + 31 * DAY)])
    assert [(signal.late, signal.time) for signal in store.event(event_id)[1]] == [
        (False, 1001.0),
        (True, 1000.0 + 31 * DAY),
    ]


def test_a_signal_of_nobody_is_the_askers(store):
    event_id = store.record(make_event(user="ann"))
    store.signal([Signal(event_id, "click", 0)])
    assert store.event(event_id)[1][0].actor == "ann"


def test_signals_on_what_was_not_shown_are_refused_and_leave_nothing(store):
    event_id = store.record(make_event())
    with pytest.raises(InputError, match="event_id: no event 'nope'"):
        store.signal([Signal("nope", "click", 0)])
    with pytest.raises(InputError, match="showed no memory at 7"):
        store.signal([Signal(event_id, "click", 0), Signal(event_id, "click", 7)])
    assert store.counts()["signals"] == 0
    assert store.position_of(event_id, "m-b") == 1
    with pytest.raises(InputError, match="did not show the memory 'm-z'"):
        store.position_of(event_id, "m-z")


def test_of_two_memories_of_one_id_the_rank_tells_which_is_meant(store):
    event_id = store.record(make_event(texts=("a", "b", "a")))
    assert [store.position_of(event_id, "m-a", rank) for rank in (0, 2)] == [0, 2]
    for rank in (None, 1):
        with pytest.raises(InputError, match=r"'m-a' more than once, at the ranks 0, 2; give its rank as well$"):
            store.position_of(event_id, "m-a", rank)


def test_events_are_read_in_order_without_test_traffic(store):
    store.record_many([make_event(f"q{i}", time=float(i % 7)) for i in range(1200)])
    store.record(make_event("t1", tenant="test"))
    store.record(make_event("t2", test=True))
    store.record(make_event("other", tenant="other", time=3.0))
    times = [event.time for event, _ in store.events()]
    assert len(times) == 1201
    assert times == sorted(times)
    assert [event.query for event, _ in store.events(tenant="other")] == ["other"]
    assert {event.query for event, _ in store.events(test=True)} == {"t1", "t2"}
    assert store.counts() == {"events": 1201, "test_events": 2, "signals": 0}


def test_odd_texts_are_stored(store):
    event = RerankEvent("nul \0 and \ud800", (ShownMemory(0, Memory("lone \udfff \0", id="\0")),), "v1", tenant="t\0")
    assert "�" in store.event(store.record(event))[0].query


def test_migrations_make_the_tables_that_the_code_reads(store_url):
    database = Database(store_url)
    with database.reading() as connection:
        inspector = sqlalchemy.inspect(connection)
        for table in schema.metadata.sorted_tables:
            columns = inspector.get_columns(table.name)
            assert [column["name"] for column in columns] == [column.name for column in table.columns]
            for made, wanted in zip(columns, table.columns, strict=True):
                assert made["type"]._type_affinity is wanted.type._type_affinity, (table.name, wanted.name)
            assert {index["name"] for index in inspector.get_indexes(table.name) if not index["unique"]} == {
                index.name for index in table.indexes
            }
    database.close()


def test_an_old_store_is_migrated_with_its_events(store_url):
    engine = _engine(store_url)
    with engine.begin() as connection:
        schema.migrate(connection, to=1)
        connection.execute(
            schema.events.insert().values(
                id="old", time=1.0, tenant="default", query="q", model_version="v0", abstained=False, test=False
            )
        )
    engine.dispose()
    with EventStore(store_url) as store:
        assert store.event("old")[0].query == "q"
        with store.database.reading() as connection:
            assert schema.schema_version(connection) == schema.VERSION


def test_a_newer_store_is_refused(store_url):
    EventStore(store_url).close()
    database = Database(store_url)
    with database.writing() as connection:
        connection.execute(schema.settings.update().where(schema.settings.c.name == "schema").values(value="99"))
    database.close()
    with pytest.raises(InputError, match="schema 99, newer than this mnemorank reads"):
        EventStore(store_url)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql://x/y", "expected a"),
        ("sqlite://", "expected the path of a file"),
        ("/no/such/folder/e.db", "folder /no/such/folder does not exist"),
        ("postgresql://nobody@127.0.0.1:1/none", "cannot open"),
    ],
)
def test_a_bad_url_says_what_is_wrong(url, message):
    with pytest.raises(InputError, match=message):
        EventStore(url)


def test_many_threads_write_at_once(store):
    def write(number: int) -> None:
        for i in range(25):
            event_id = store.record(make_event(f"{number}-{i}"))
            store.signal([Signal(event_id, "click", 0)])

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.counts() == {"events": 100, "test_events": 0, "signals": 100}


WRITER = """
import sys
from mnemorank.learning.store.redaction import Policy
from mnemorank.learning.store.events import EventStore
from tests.learning.learning_cases import make_event
store = EventStore(sys.argv[1], Policy(texts=True))
while True:
    print(store.record(make_event(texts=tuple("abcdefgh"))), flush=True)
"""


def test_no_logged_event_is_lost_on_kill(store_url):
    """Each id is printed after `log` returned; the process is killed in the midst of its work, again and again."""
    printed = []
    for count in (1, 40, 133):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, store_url], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3]
        )
        printed += [writer.stdout.readline().strip() for _ in range(count)]
        writer.send_signal(signals_of_unix.SIGKILL)
        rest = writer.stdout.read().split("\n")
        writer.wait()
        printed += rest[:-1]
        writer.stdout.close()
    with EventStore(store_url) as store:
        stored = {event.id: len(event.shown) for event, _ in store.events()}
    assert len(printed) >= 174
    assert all(stored.get(event_id) == 8 for event_id in printed)
    assert set(stored.values()) == {8}


def test_memories_are_stored_as_json_that_reads_back(sqlite_store):
    memory = Memory.of({"text": "é", "occurred_start": "2024-03", "entities": ["Ann"], "trust": 0.5})
    event_id = sqlite_store.record(RerankEvent("q", (ShownMemory(0, memory),), "v1"))
    assert sqlite_store.event(event_id)[0].shown[0].memory == memory
    with sqlite_store.database.reading() as connection:
        assert json.loads(connection.execute(sqlalchemy.select(schema.shown.c.memory)).scalar_one())["text"] == "é"


def test_errors_of_the_database_do_not_tell_texts(store):
    from sqlalchemy.exc import SQLAlchemyError

    store.record(make_event("private question", ("private memory",), id="same"))
    with pytest.raises(SQLAlchemyError) as caught:
        store.record(make_event("private question", ("private memory",), id="same"))
    assert "private" not in str(caught.value)


def test_a_locked_store_fails_events_soon_and_other_writes_wait(tmp_path):
    """One answer each waits for these events; the first to fail must not make the others wait in turn."""
    locking = sqlite3.connect(tmp_path / "e.db", isolation_level=None, check_same_thread=False)
    with closing(locking) as other, EventStore(tmp_path / "e.db") as store:
        kept = store.record(make_event())
        other.execute("BEGIN IMMEDIATE")
        failed: list[str] = []

        def log() -> None:
            try:
                store.record(make_event())
            except sqlalchemy.exc.SQLAlchemyError as error:
                failed.append(str(error))

        threads = [threading.Thread(target=log, daemon=True) for _ in range(8)]
        started = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(10 - (time.monotonic() - started), 0))
        assert len(failed) == 8
        assert "database is locked" in failed[0]
        threading.Timer(EVENT_PATIENCE / 1000 + 0.5, other.execute, ("ROLLBACK",)).start()
        assert store.signal([Signal(kept, "click", 0)]) == 1, "nobody's answer waits for it"
        store.record(make_event())
        assert store.counts()["events"] == 2


def test_an_event_does_not_wait_for_a_thread_that_holds_the_store(tmp_path):
    with EventStore(tmp_path / "e.db") as store, ThreadPoolExecutor(1) as pool:
        with store.database.writing():
            asked = pool.submit(store.record, make_event())
            with pytest.raises(sqlalchemy.exc.TimeoutError, match="locked by another thread for 1000 ms"):
                asked.result(10)
        store.record(make_event())


def test_a_bad_event_fails_nobody_elses(store):
    """They are written together where they wait for each other."""
    store.record(make_event(id="same"))
    good, bad = (_Waiting([store._event_row(make_event(id=name))], []) for name in ("good", "same"))
    store._waiting.extend([bad, good])
    store._write_waiting()
    assert isinstance(bad.error, sqlalchemy.exc.IntegrityError)
    assert good.error is None
    assert store.event("good") is not None
