import json
import signal as unix_signals
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import sqlalchemy
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from mnemorank import InputError, Memory
from mnemorank.errors import NotFoundError
from mnemorank.learning.events import RerankEvent, ShownMemory
from mnemorank.learning.settings import PrivacySettings
from mnemorank.learning.signals import Signal
from mnemorank.learning.store import schema
from mnemorank.learning.store.database import EVENT_TIMEOUT, Database
from mnemorank.learning.store.events import DAY, EventStore, _PendingWrite
from tests.learning.conftest import fresh_database
from tests.learning.factories import make_event


def test_events_are_read_as_they_were_recorded(store):
    event = RerankEvent(
        "Where does Ruby work?",
        (ShownMemory(1, Memory("At Acme", id="m1", type="world"), relevance=0.9, raw_score=2.2, propensity=0.95),),
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
    assert (shown.rank, shown.memory, shown.memory_id, shown.relevance, shown.propensity) == (
        1, event.shown[0].memory, "m1", 0.9, 0.95,
    )  # fmt: skip
    assert shown.text_hash == store.text_hash("At Acme")
    assert read.abstained
    assert signals == []
    assert store.event("unknown") is None


def test_texts_are_stored_only_if_allowed(store_url):
    with EventStore(store_url) as store:
        event_id = store.record(make_event(texts=("secret one", "two")))
        shown = store.event(event_id)[0].shown
        assert [memory.memory for memory in shown] == [None, None]
        assert shown[0].text_hash == store.text_hash("secret one")
    with EventStore(store_url, PrivacySettings(texts=True)) as store:
        event = store.event(store.record(make_event(keep_texts=False)))[0]
        assert event.query is None
        assert event.shown[0].memory is None
    with EventStore(store_url, PrivacySettings(queries=False)) as store:
        assert store.event(store.record(make_event()))[0].query is None


def test_everything_is_redacted_before_it_is_written(tmp_path):
    with EventStore(tmp_path / "e.db", PrivacySettings(texts=True, patterns={"badge": r"B-\d+"})) as store:
        memory = Memory("Mail ann@example.org", id="1", context="B-77", metadata={"ssn": "123"}, entities=("x@y.org",))
        event_id = store.record(RerankEvent("call +44 20 7946 0958", (ShownMemory(1, memory),), "v1"))
        store.add_signals([Signal(event_id, "note", note="my key is sk-abcdefghijklmnop1234")])
        event, signals = store.event(event_id)
    raw = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert event.query == "call [phone]"
    assert event.shown[0].memory == Memory("Mail [email]", id="1", context="[badge]", entities=("[email]",))
    assert signals[0].note == "my key is [key]"
    for secret in (b"example.org", b"7946", b"B-77", b"sk-abc", b"y.org", b"ssn"):
        assert secret not in raw


def test_a_repeated_signal_counts_once_and_keeps_the_later_value(store):
    event_id = store.record(make_event(time=1000.0))
    first = Signal(event_id, "stars", 2, 2.0, actor="ann", time=1001.0)
    assert store.add_signals([first, first]) == 1
    assert store.add_signals([Signal(event_id, "stars", 2, 5.0, actor="ann", time=1010.0)]) == 0
    assert store.add_signals([Signal(event_id, "stars", 2, 1.0, actor="ann", time=1005.0)]) == 0
    (stored,) = store.event(event_id)[1]
    assert (stored.rank, stored.value, stored.time) == (2, 5.0, 1010.0)
    assert store.counts()["signals"] == 1


def test_a_signal_on_the_whole_answer_has_no_rank(store):
    event_id = store.record(make_event())
    store.add_signals([Signal(event_id, "thumbs_up")])
    assert store.event(event_id)[1][0].rank is None


def test_a_late_signal_is_stored_separately_and_marked(store):
    event_id = store.record(make_event(time=1000.0))
    late = 1000.0 + 31 * DAY
    store.add_signals([Signal(event_id, "click", 1, time=1001.0), Signal(event_id, "click", 1, time=late)])
    assert [(signal.late, signal.time) for signal in store.event(event_id)[1]] == [(False, 1001.0), (True, late)]


def test_an_anonymous_signal_belongs_to_the_user_of_the_event(store):
    event_id = store.record(make_event(user="ann"))
    store.add_signals([Signal(event_id, "click", 1)])
    assert store.event(event_id)[1][0].actor == "ann"


def test_a_signal_from_before_its_event_takes_the_time_of_the_event(store):
    event_id = store.record(make_event(time=1000.0))
    store.add_signals([Signal(event_id, "thumbs_up", 1, time=900.0)])
    store.add_signals([Signal(event_id, "thumbs_up", 1, time=-5e9)])
    (signal,) = store.event(event_id)[1]
    assert (signal.time, signal.late) == (1000.0, False)


def test_signals_on_what_was_not_shown_are_rejected_as_a_whole(store):
    event_id = store.record(make_event())
    with pytest.raises(NotFoundError) as error:
        store.add_signals([Signal("unknown", "click", 1)])
    assert (error.value.field, error.value.code) == ("event_id", "unknown_event")
    with pytest.raises(InputError) as error:
        store.add_signals([Signal(event_id, "click", 1), Signal(event_id, "click", 8)])
    assert error.value.field == "rank"
    assert store.counts()["signals"] == 0


def test_rank_of_a_memory(store):
    event_id = store.record(make_event())
    assert store.rank_of(event_id, "m-b") == 2
    with pytest.raises(InputError) as error:
        store.rank_of(event_id, "m-z")
    assert error.value.field == "memory_id"


def test_the_rank_selects_one_of_several_memories_with_the_same_id(store):
    event_id = store.record(make_event(texts=("a", "b", "a")))
    assert [store.rank_of(event_id, "m-a", rank) for rank in (1, 3)] == [1, 3]
    for rank in (None, 2):
        with pytest.raises(InputError) as error:
            store.rank_of(event_id, "m-a", rank)
        assert (error.value.field, error.value.code) == ("memory_id", "ambiguous")


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


def test_texts_that_databases_reject_are_cleaned(store):
    event = RerankEvent("nul \0 and \ud800", (ShownMemory(1, Memory("lone \udfff \0", id="\0")),), "v1", tenant="t\0")
    assert "�" in store.event(store.record(event))[0].query


def test_a_new_database_has_the_tables_of_the_schema(store_url):
    database = Database(store_url)
    with database.reading() as connection:
        inspector = sqlalchemy.inspect(connection)
        for table in schema.metadata.sorted_tables:
            columns = inspector.get_columns(table.name)
            assert [column["name"] for column in columns] == [column.name for column in table.columns]
            for actual, expected in zip(columns, table.columns, strict=True):
                assert actual["type"]._type_affinity is expected.type._type_affinity, (table.name, expected.name)
            assert {index["name"] for index in inspector.get_indexes(table.name) if not index["unique"]} == {
                index.name for index in table.indexes
            }
    database.close()


def test_an_existing_store_keeps_its_events(store_url):
    with EventStore(store_url) as store:
        event_id = store.record(make_event("kept"))
    with EventStore(store_url) as store:
        assert store.event(event_id)[0].query == "kept"


@pytest.mark.parametrize("version", ["0", "99", None])
def test_a_store_with_another_schema_version_is_rejected(store_url, version):
    database = Database(store_url)
    is_version = schema.settings.c.name == "schema_version"
    with database.writing() as connection:
        if version is None:
            connection.execute(schema.settings.delete().where(is_version))
        else:
            connection.execute(schema.settings.update().where(is_version).values(value=version))
    database.close()
    with pytest.raises(InputError) as error:
        EventStore(store_url)
    assert (error.value.field, error.value.code) == ("store", "schema_version")


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("mysql://x/y", "invalid"),
        ("postgresql://db:port/name", "invalid"),
        ("sqlite://", "invalid"),
        ("/no/such/folder/e.db", "not_found"),
        ("postgresql://nobody@127.0.0.1:1/none", "unavailable"),
        ("postgresql://" + "h" * 300 + "/none", "unavailable"),
        ("sqlite:///e%00.db", "invalid"),
        ("sqlite:///e\0.db", "invalid"),
    ],
)
def test_an_invalid_url_is_rejected(url, code):
    with pytest.raises(InputError) as error:
        EventStore(url)
    assert (error.value.field, error.value.code) == ("store", code)


def test_only_the_owner_can_read_the_files_of_sqlite(tmp_path):
    with EventStore(tmp_path / "e.db") as store:
        store.record(make_event())
        files = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert files == dict.fromkeys(("e.db", "e.db-wal", "e.db-shm"), 0o600)


def test_the_permissions_of_an_existing_file_stay(tmp_path):
    (tmp_path / "e.db").touch(mode=0o640)
    EventStore(tmp_path / "e.db").close()
    assert stat.S_IMODE((tmp_path / "e.db").stat().st_mode) == 0o640


def test_many_threads_write_concurrently(store):
    def write(number: int) -> None:
        for i in range(25):
            event_id = store.record(make_event(f"{number}-{i}"))
            store.add_signals([Signal(event_id, "click", 1)])

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.counts() == {"events": 100, "test_events": 0, "signals": 100}


WRITER = """
import sys
from mnemorank.learning.settings import PrivacySettings
from mnemorank.learning.store.events import EventStore
from tests.learning.factories import make_event
store = EventStore(sys.argv[1], PrivacySettings(texts=True))
while True:
    print(store.record(make_event(texts=tuple("abcdefgh"))), flush=True)
"""


@pytest.mark.slow
def test_no_recorded_event_is_lost_when_the_process_is_killed(store_url):
    """The writer prints each id after `record` returned, and is killed while it writes."""
    printed = []
    for count in (1, 40, 133):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, store_url], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3]
        )
        printed += [writer.stdout.readline().strip() for _ in range(count)]
        writer.send_signal(unix_signals.SIGKILL)
        rest = writer.stdout.read().split("\n")
        writer.wait()
        printed += rest[:-1]
        writer.stdout.close()
    with EventStore(store_url) as store:
        stored = {event.id: len(event.shown) for event, _ in store.events()}
    assert len(printed) >= 174
    assert all(stored.get(event_id) == 8 for event_id in printed)
    assert set(stored.values()) == {8}


def test_memories_are_stored_as_json(sqlite_store):
    memory = Memory.of({"text": "é", "occurred_start": "2024-03", "entities": ["Ann"], "trust": 0.5})
    event_id = sqlite_store.record(RerankEvent("q", (ShownMemory(1, memory),), "v1"))
    assert sqlite_store.event(event_id)[0].shown[0].memory == memory
    with sqlite_store.database.reading() as connection:
        assert json.loads(connection.execute(sqlalchemy.select(schema.shown.c.memory)).scalar_one())["text"] == "é"


def test_database_errors_contain_no_texts(store):
    store.record(make_event("private question", ("private memory",), id="same"))
    with pytest.raises(SQLAlchemyError) as caught:
        store.record(make_event("private question", ("private memory",), id="same"))
    assert "private" not in str(caught.value)


def record_in_threads(store: EventStore, count: int) -> tuple[list[SQLAlchemyError], float]:
    """Record events from several threads; return the errors, and the seconds until all have returned."""
    errors: list[SQLAlchemyError] = []

    def record() -> None:
        try:
            store.record(make_event())
        except SQLAlchemyError as error:
            errors.append(error)

    threads = [threading.Thread(target=record, daemon=True) for _ in range(count)]
    started = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(10 - (time.monotonic() - started), 0))
    assert not any(thread.is_alive() for thread in threads)
    return errors, time.monotonic() - started


@pytest.mark.slow
def test_events_fail_soon_when_sqlite_is_locked_and_other_writes_wait(tmp_path):
    locking = sqlite3.connect(tmp_path / "e.db", isolation_level=None, check_same_thread=False)
    with closing(locking) as other, EventStore(tmp_path / "e.db") as store:
        event_id = store.record(make_event())
        other.execute("BEGIN IMMEDIATE")
        errors, seconds = record_in_threads(store, 8)
        assert len(errors) == 8
        assert seconds < 2 * EVENT_TIMEOUT, "the threads must not wait in turn"
        threading.Timer(EVENT_TIMEOUT + 0.5, other.execute, ("ROLLBACK",)).start()
        assert store.add_signals([Signal(event_id, "click", 1)]) == 1, "no response waits for it"
        store.record(make_event())
        assert store.counts()["events"] == 2


def test_an_event_does_not_wait_for_a_thread_that_holds_the_writer_lock(tmp_path):
    with EventStore(tmp_path / "e.db", timeout_seconds=0.2) as store, ThreadPoolExecutor(1) as pool:
        with store.database.writing():
            recording = pool.submit(store.record, make_event())
            with pytest.raises(sqlalchemy.exc.TimeoutError):
                recording.result(10)
        store.record(make_event())


@pytest.fixture
def postgres_url(postgres):
    return fresh_database(postgres)


def test_events_fail_soon_when_postgres_is_locked(postgres_url):
    with EventStore(postgres_url, timeout_seconds=0.5) as store:
        store.record(make_event())
        with store.database.writing() as connection:
            connection.execute(sqlalchemy.text("LOCK TABLE events IN ACCESS EXCLUSIVE MODE"))
            errors, seconds = record_in_threads(store, 8)
        assert len(errors) == 8
        assert seconds < 2.0
        assert store.event(store.record(make_event())) is not None


def postgres_processes(url: str) -> list[int]:
    engine = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as connection:
        query = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid != pg_backend_pid()"
        pids = list(connection.execute(sqlalchemy.text(query)).scalars())
    engine.dispose()
    return pids


@contextmanager
def frozen(url: str) -> Iterator[None]:
    """Stop the server's processes for all open connections."""
    pids = postgres_processes(url)
    assert pids
    try:
        for pid in pids:
            subprocess.run(["kill", "-STOP", str(pid)], check=True)
        yield
    finally:
        for pid in pids:
            subprocess.run(["kill", "-CONT", str(pid)], check=True)


def test_events_fail_soon_when_postgres_is_frozen(postgres_url):
    """No timeout of the server helps if the process of the connection does not run."""
    with EventStore(postgres_url, timeout_seconds=0.5) as store:
        store.record(make_event())
        with frozen(postgres_url):
            errors, seconds = record_in_threads(store, 8)
            later, more_seconds = record_in_threads(store, 2)
        assert (len(errors), len(later)) == (8, 2)
        assert max(seconds, more_seconds) < 2.0
        deadline = time.monotonic() + 10
        while True:  # the connection recovers
            try:
                event_id = store.record(make_event())
                break
            except SQLAlchemyError:
                assert time.monotonic() < deadline
        assert store.event(event_id) is not None


def test_a_statement_on_a_frozen_postgres_fails_and_the_next_one_gets_another_connection(postgres_url, monkeypatch):
    monkeypatch.setattr("mnemorank.learning.store.database._STATEMENT_TIMEOUT", 0.3)
    monkeypatch.setattr("mnemorank.learning.store.postgres._GRACE", 0.2)
    with EventStore(postgres_url) as store, ThreadPoolExecutor(1) as pool:
        event_id = store.record(make_event())

        def write_while_frozen() -> int:
            with pytest.raises(SQLAlchemyError), store.database.writing() as connection, frozen(postgres_url):
                connection.execute(sqlalchemy.text("SELECT 1"))
            with frozen(postgres_url):
                return store.add_signals([Signal(event_id, "click", 1)])

        assert pool.submit(write_while_frozen).result(20) == 1
        assert store.counts()["signals"] == 1


def test_feedback_on_a_locked_postgres_fails_instead_of_waiting_forever(postgres_url, monkeypatch):
    monkeypatch.setattr("mnemorank.learning.store.database._LOCK_TIMEOUT", 0.3)
    with EventStore(postgres_url) as store, EventStore(postgres_url) as other:
        event_id = store.record(make_event())
        with other.database.writing() as connection:
            connection.execute(sqlalchemy.text("LOCK TABLE signals IN ACCESS EXCLUSIVE MODE"))
            with pytest.raises(SQLAlchemyError):
                store.add_signals([Signal(event_id, "click", 1)])
        assert store.add_signals([Signal(event_id, "click", 1)]) == 1


def test_an_event_that_takes_too_long_to_redact_is_refused(tmp_path):
    event = make_event(texts=("call 0171 2345678 or write to ann@example.com. " * 200,) * 500)
    with EventStore(tmp_path / "e.db", PrivacySettings(texts=True), timeout_seconds=0.01) as store:
        with pytest.raises(sqlalchemy.exc.TimeoutError):
            store.record(event)
        assert store.counts()["events"] == 0
    with EventStore(tmp_path / "e.db", PrivacySettings(texts=True), timeout_seconds=60) as store:
        store.record(event)


def test_an_invalid_timeout_is_rejected(tmp_path):
    with pytest.raises(InputError) as error:
        EventStore(tmp_path / "e.db", timeout_seconds=0)
    assert error.value.field == "timeout_seconds"


def test_an_invalid_event_does_not_fail_the_others_of_its_batch(store):
    store.record(make_event(id="same"))
    valid, invalid = (_PendingWrite([store._event_row(make_event(id=name))], []) for name in ("valid", "same"))
    store._pending.extend([invalid, valid])
    store._flush_pending(time.monotonic() + 10)
    assert isinstance(invalid.error, IntegrityError)
    assert valid.error is None
    assert store.event("valid") is not None


@pytest.mark.parametrize("seconds", [float("nan"), float("inf")])
def test_times_must_be_finite(seconds):
    with pytest.raises(InputError) as error:
        Signal("event", "click", 1, time=seconds)
    assert error.value.field == "time"
    with pytest.raises(InputError) as error:
        RerankEvent("q", (), "v1", time=seconds)
    assert error.value.field == "time"
