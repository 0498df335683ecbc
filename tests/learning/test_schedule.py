import threading
from datetime import datetime

import pytest

from mnemorank import InputError
from mnemorank.learning.loop import Loop
from mnemorank.learning.schedule import Cron, Scheduler
from mnemorank.learning.settings import Settings, load_settings
from mnemorank.learning.signals import Signal
from mnemorank.learning.store import examples
from tests.learning.learning_cases import make_event


@pytest.mark.parametrize(
    ("text", "after", "expected"),
    [
        ("* * * * *", "2024-03-05T10:00:30", "2024-03-05T10:01"),
        ("0 3 * * *", "2024-03-05T10:00", "2024-03-06T03:00"),
        ("0 3 * * *", "2024-03-05T03:00", "2024-03-06T03:00"),
        ("*/15 * * * *", "2024-03-05T10:46", "2024-03-05T11:00"),
        ("5/20 8-10 * * *", "2024-03-05T10:30", "2024-03-05T10:45"),
        ("0 0 29 2 *", "2024-03-01T00:00", "2028-02-29T00:00"),
        ("30 2 * * 0", "2024-03-05T00:00", "2024-03-10T02:30"),
        ("30 2 * * 7", "2024-03-05T00:00", "2024-03-10T02:30"),
        ("0 12 1,15 * 1", "2024-03-05T00:00", "2024-03-11T12:00"),
        ("0 0 31 * *", "2024-01-31T00:00", "2024-03-31T00:00"),
    ],
)
def test_the_next_time(text, after, expected):
    assert Cron.parse(text).next_after(datetime.fromisoformat(after)) == datetime.fromisoformat(expected)


@pytest.mark.parametrize("text", ["", "* * * *", "60 * * * *", "a * * * *", "*/0 * * * *", "5-1 * * * *", "* * 0 * *"])
def test_a_bad_expression_is_refused(text):
    with pytest.raises(InputError, match="cron"):
        Cron.parse(text)


def test_a_date_that_never_comes_is_refused():
    with pytest.raises(InputError, match="never comes"):
        Cron.parse("0 0 31 2 *").next_after(datetime(2024, 1, 1))


def test_a_run_is_due_once_a_time():
    scheduler = Scheduler(lambda: None, lambda: 0, cron=Cron.parse("0 3 * * *"))
    due = scheduler._due
    assert not scheduler.is_due(due.replace(year=due.year - 1))
    assert scheduler.is_due(due)
    assert not scheduler.is_due(due)


def test_enough_new_examples_start_a_run_and_an_error_does_not_end_the_schedule():
    waiting = [0, 5, 12, 12, 21, 22, 22]
    ran = threading.Event()
    calls = []

    def run():
        calls.append(1)
        if len(calls) == 2:
            ran.set()
        raise RuntimeError("training failed")

    scheduler = Scheduler(
        run, lambda: waiting.pop(0) if len(waiting) > 1 else waiting[0], after_examples=10, interval=0.0
    )
    scheduler.start()
    assert ran.wait(10)
    scheduler.stop()
    assert len(waiting) == 1


def test_examples_that_a_run_did_not_train_on_do_not_start_one_a_minute():
    found = [12, 12, 21, 22, 22, 3, 12, 13]
    scheduler = Scheduler(lambda: None, lambda: found.pop(0), after_examples=10)
    now = datetime.now()
    assert [scheduler.is_due(now) for _ in range(8)] == [True, False, False, True, False, False, False, True]


@pytest.fixture
def loop(tmp_path):
    (tmp_path / "learning.toml").write_text("[privacy]\ntexts = true\n[mining]\nheld_out = 1e-9\n")
    with Loop(tmp_path) as opened:
        yield opened


def say(loop: Loop, query: str, *kinds: tuple[str, int]) -> None:
    event_id = loop.store.record(make_event(query, tuple(f"{query[::-1]} {letter}" for letter in "abc")))
    loop.store.signal([Signal(event_id, kind, place, actor="ann") for kind, place in kinds])


def test_new_examples_are_counted_by_what_they_say(loop):
    say(loop, "first question", ("click", 0))
    say(loop, "second question", ("cited", 2))
    assert loop.new_examples() == 2
    examples.load_for_training(loop.store.database, "0002")
    say(loop, "unrelated matters")
    assert loop.new_examples() == 0, "other weights and easy negatives are not news"
    say(loop, "second question", ("thumbs_down", 2), ("thumbs_up", 1))
    assert loop.new_examples() == 1, "reversed labels are"


@pytest.mark.parametrize(("state", "count"), [("failed", 1), ("cancelled", 1), ("running", 0), ("done", 0)])
def test_what_a_failed_run_was_to_be_trained_on_is_still_new(loop, state, count):
    say(loop, "first question", ("cited", 1))
    loop.mine()
    run = loop.runs.create(who="", promote=True, base_version="0001", examples=1, settings={}, state=state)
    examples.load_for_training(loop.store.database, f"run:{run.id}")
    assert loop.status()["untrained_examples"] == loop.new_examples() == count


def test_the_log_is_mined_only_where_there_is_new_feedback(loop, monkeypatch):
    mined = []
    monkeypatch.setattr(loop, "mine", lambda: mined.append(1))
    say(loop, "first question", ("cited", 1))
    for _ in range(3):
        loop.new_examples()
    assert len(mined) == 1
    loop.store.record(make_event("nothing said"))
    loop.new_examples()
    assert len(mined) == 1
    say(loop, "first question", ("cited", 1))
    loop.new_examples()
    assert len(mined) == 2


def test_settings_are_read_and_checked(tmp_path):
    assert load_settings(tmp_path) == Settings()
    (tmp_path / "learning.toml").write_text(
        'explore = 0.05\n[privacy]\ntexts = true\n[gate.tolerances]\ngeneral = 0.05\n[schedule]\ncron = "0 3 * * *"\n'
    )
    read = load_settings(tmp_path)
    assert (read.explore, read.privacy.texts, read.gate.tolerances["general"]) == (0.05, True, 0.05)
    for text, message in (
        ("explode = 1", "learning.toml: explode: unknown key"),
        ("[gate]\nalpha = 2.0", "alpha"),
        ("[schedule]\ncron = 'x'", "cron"),
        ("[training]\nquantize = 'int2'", "quantize"),
        ("explore = 0.9", "explore"),
        ("[", "cannot be read as TOML"),
    ):
        (tmp_path / "learning.toml").write_text(text)
        with pytest.raises(InputError, match=message):
            load_settings(tmp_path)
