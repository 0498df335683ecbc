import threading
from datetime import datetime, timedelta

import pytest

from mnemorank import InputError
from mnemorank.learning.loop import Loop
from mnemorank.learning.schedule import Scheduler, next_run
from mnemorank.learning.settings import LearningSettings, load_settings
from mnemorank.learning.signals import Signal
from mnemorank.learning.store import examples
from tests.learning.factories import make_event


@pytest.mark.parametrize(
    ("cron", "after", "expected"),
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
        ("58-1 * * * *", "2024-03-05T10:01", "2024-03-05T10:58"),
    ],
)
def test_next_run_of_a_cron_expression(cron, after, expected):
    assert next_run(cron, datetime.fromisoformat(after)) == datetime.fromisoformat(expected)


INVALID = [
    "", "* * * *", "60 * * * *", "a * * * *", "*/0 * * * *", "* * 0 * *", "every day", "0 25 * * *",
    "0 3 * *", "- - - - -", "0 3 * * * *", "@daily",
]  # fmt: skip


@pytest.mark.parametrize("cron", INVALID)
def test_invalid_expressions_are_rejected(cron):
    with pytest.raises(InputError) as error:
        next_run(cron, datetime(2024, 1, 1))
    assert error.value.field == "cron"
    with pytest.raises(InputError) as error:
        LearningSettings.from_table({"schedule": {"cron": cron}})
    assert error.value.field == "schedule.cron"


def test_an_expression_that_never_occurs_is_rejected():
    with pytest.raises(InputError) as error:
        next_run("0 0 31 2 *", datetime(2024, 1, 1))
    assert (error.value.field, error.value.code) == ("cron", "never")


def test_a_run_is_due_once():
    scheduler = Scheduler(lambda: None, lambda: 0, cron="0 3 * * *")
    due = scheduler.next_run
    assert not scheduler.is_due(due.replace(year=due.year - 1))
    assert scheduler.is_due(due)
    assert not scheduler.is_due(due)


def test_setting_back_the_clock_does_not_stop_the_schedule():
    scheduler = Scheduler(lambda: None, lambda: 0, cron="0 3 * * *")
    wrong = datetime(2099, 5, 1, 3, 0)
    assert scheduler.is_due(wrong)
    assert not scheduler.is_due(wrong - timedelta(seconds=2)), "a small correction does not repeat the run"
    assert not scheduler.is_due(wrong)
    right = datetime(2026, 1, 1, 12, 0)
    assert not scheduler.is_due(right)
    assert scheduler.is_due(right + timedelta(hours=15))


def test_enough_new_examples_start_a_run_and_an_error_does_not_end_the_schedule():
    counts = [0, 5, 12, 12, 21, 22, 22]
    has_run_twice = threading.Event()
    calls = []

    def run():
        calls.append(1)
        if len(calls) == 2:
            has_run_twice.set()
        raise RuntimeError("training failed")

    scheduler = Scheduler(run, lambda: counts.pop(0) if len(counts) > 1 else counts[0], after_examples=10, interval=0.0)
    scheduler.start()
    assert has_run_twice.wait(10)
    scheduler.stop()
    assert len(counts) == 1


def test_examples_that_a_run_did_not_train_on_do_not_start_another_run():
    counts = [12, 12, 21, 22, 22, 3, 12, 13]
    scheduler = Scheduler(lambda: None, lambda: counts.pop(0), after_examples=10)
    now = datetime.now()
    assert [scheduler.is_due(now) for _ in range(8)] == [True, False, False, True, False, False, False, True]


@pytest.fixture
def loop(tmp_path):
    (tmp_path / "learning.toml").write_text("[privacy]\ntexts = true\n[mining]\nheld_out = 1e-9\n")
    with Loop(tmp_path) as loop:
        yield loop


def give_feedback(loop: Loop, query: str, *signals: tuple[str, int]) -> None:
    event_id = loop.store.record(make_event(query, tuple(f"{query[::-1]} {letter}" for letter in "abc")))
    loop.store.add_signals([Signal(event_id, kind, rank, actor="ann") for kind, rank in signals])


def test_examples_are_new_if_their_labels_change(loop):
    give_feedback(loop, "first question", ("click", 1))
    give_feedback(loop, "second question", ("cited", 3))
    assert loop.count_new_examples() == 2
    examples.load_for_training(loop.store.database, "0002")
    give_feedback(loop, "unrelated matters")
    assert loop.count_new_examples() == 0, "other weights and easy negatives do not count"
    give_feedback(loop, "second question", ("thumbs_down", 3), ("thumbs_up", 2))
    assert loop.count_new_examples() == 1


@pytest.mark.parametrize(("state", "count"), [("failed", 1), ("canceled", 1), ("running", 0), ("done", 0)])
def test_the_examples_of_an_unsuccessful_run_are_still_new(loop, state, count):
    give_feedback(loop, "first question", ("cited", 2))
    loop.mine()
    run = loop.runs.create(who="", promote=True, base_version="0001", examples=1, settings={}, state=state)
    examples.load_for_training(loop.store.database, f"run:{run.id}")
    assert loop.status()["untrained_examples"] == loop.count_new_examples() == count


def test_the_log_is_mined_only_if_there_is_new_feedback(loop, monkeypatch):
    calls = []
    monkeypatch.setattr(loop, "mine", lambda: calls.append(1))
    give_feedback(loop, "first question", ("cited", 2))
    for _ in range(3):
        loop.count_new_examples()
    assert len(calls) == 1
    loop.store.record(make_event("without feedback"))
    loop.count_new_examples()
    assert len(calls) == 1
    give_feedback(loop, "first question", ("cited", 2))
    loop.count_new_examples()
    assert len(calls) == 2


def test_settings_are_loaded(tmp_path):
    assert load_settings(tmp_path) == LearningSettings()
    (tmp_path / "learning.toml").write_text(
        'explore = 0.05\n[privacy]\ntexts = true\n[gate.tolerances]\ngeneral = 0.05\n[schedule]\ncron = "0 3 * * *"\n'
    )
    settings = load_settings(tmp_path)
    assert (settings.explore, settings.privacy.texts, settings.gate.tolerances["general"]) == (0.05, True, 0.05)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("explode = 1", "explode"),
        ("[gate]\nalpha = 2.0", "gate.alpha"),
        ("[schedule]\ncron = 'x'", "schedule.cron"),
        ("[training]\nquantize = 'int2'", "training.quantize"),
        ("explore = 0.9", "explore"),
        ("[", None),
    ],
)
def test_invalid_settings_name_the_key(tmp_path, text, field):
    (tmp_path / "learning.toml").write_text(text)
    with pytest.raises(InputError) as error:
        load_settings(tmp_path)
    assert (error.value.location, error.value.field) == (str(tmp_path / "learning.toml"), field)


def test_settings_are_restored_from_a_run_without_the_database_password():
    settings = LearningSettings.from_table({"store": "postgresql://ann:secret@db/x", "gate": {"alpha": 0.01}})
    table = settings.to_table()
    assert "store" not in table
    assert LearningSettings.from_table(table) == settings.model_copy(update={"store": None})
