"""Deletions and cancellations during mining and the start of a training run take effect."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mnemorank import InputError, Memory
from mnemorank.errors import ConflictError
from mnemorank.learning import worker
from mnemorank.learning.loop import Loop
from mnemorank.learning.runs import STORE_VARIABLE
from mnemorank.learning.settings import LearningSettings, MiningSettings, TrainingSettings
from mnemorank.learning.signals import Signal
from mnemorank.learning.store import examples
from mnemorank.learning.store.deletion import delete_by_scope, list_deletions
from mnemorank.learning.store.events import EventStore
from tests.learning.factories import make_event


@pytest.fixture
def loop(tmp_path, store_url, tiny_onnx):
    """A query each by ann and nine other users. Texts are not stored, so mining looks up every memory."""
    training = TrainingSettings(model=str(tiny_onnx), min_examples=1, nice=0)
    settings = LearningSettings(mining=MiningSettings(held_out=1e-9), training=training)
    with Loop(tmp_path / "loop", settings, store_url=store_url) as loop:
        for number, user in enumerate(("ann", *(f"u{i}" for i in range(9)))):
            event_id = loop.store.record(make_event(f"{user} asks {number}", (f"{user} a", f"{user} b"), user=user))
            loop.store.add_signals([Signal(event_id, "cited", 2, actor=user)])
        loop.runs.start = lambda *_: None
        yield loop


def look_up(memory_id: str) -> Memory:
    return Memory(memory_id.removeprefix("m-"), id=memory_id)


def users_in_examples(loop: Loop) -> set[str]:
    return {entry.example.query.split()[0] for entry in examples.load_examples(loop.store.database)}


def test_mining_does_not_undo_a_concurrent_deletion(loop):
    loop.mine(lookup=look_up)
    assert "ann" in users_in_examples(loop)
    deleted = []

    def delete_and_look_up(memory_id: str) -> Memory:
        if not deleted:
            deleted.append(loop.delete("user", "ann", "default").examples)
        return look_up(memory_id)

    mined = loop.mine(lookup=delete_and_look_up)
    assert deleted == [1]
    assert users_in_examples(loop) == {f"u{i}" for i in range(9)}
    assert len(mined.examples) == 9, "the result is what was stored"


def test_mining_fails_if_deletions_do_not_end(loop):
    loop.mine(lookup=look_up)
    users = iter(f"u{i}" for i in range(9))
    deleted = set()

    def delete_and_look_up(memory_id: str) -> Memory:
        if memory_id == "m-ann b":
            deleted.add(user := next(users))
            loop.delete("user", user, "default")
        return look_up(memory_id)

    with pytest.raises(ConflictError) as error:
        loop.mine(lookup=delete_and_look_up)
    assert error.value.code == "concurrent_deletion"
    assert len(deleted) == 5
    assert users_in_examples(loop) == {"ann", *(f"u{i}" for i in range(9))} - deleted


class DeletingThread(threading.Thread):
    """Deletes ann from the loop."""

    def __init__(self, root: Path, store_url: str) -> None:
        super().__init__()
        self._root, self._url = root, store_url

    def run(self) -> None:
        with Loop(self._root, store_url=self._url) as loop:
            loop.delete("user", "ann", "default")

    def start_and_wait_for_store(self, store: EventStore) -> None:
        """Wait until ann is deleted from the store. The files of runs may still be locked."""
        self.start()
        end = time.monotonic() + 60
        while not list_deletions(store):
            assert time.monotonic() < end
            time.sleep(0.01)


@pytest.mark.parametrize("moment", ["before the examples are loaded", "before the file is written"])
def test_a_deletion_while_a_run_is_created_reaches_its_file(loop, monkeypatch, moment):
    loop.mine(lookup=look_up)
    thread = DeletingThread(loop.root, loop.store_url)
    write = examples.write_with_provenance

    def delete_and_write(mined, path: Path) -> int:
        thread.start_and_wait_for_store(loop.store)
        thread.join(0.5)  # it waits for the file
        return write(mined, path)

    def delete_at_step(step: str) -> None:
        if step == "add: rename":
            thread.start_and_wait_for_store(loop.store)

    if moment == "before the file is written":
        monkeypatch.setattr(examples, "write_with_provenance", delete_and_write)
    else:  # the first version is added while the run is created
        loop.versions._on_step = delete_at_step
    run, _ = loop.train()
    thread.join(60)
    feedback = (loop.runs.folder(run.id) / "feedback.jsonl").read_text()
    assert "u1 asks" in feedback
    assert "ann" not in feedback
    (deletion,) = list_deletions(loop.store)
    assert deletion.models == ({f"run:{run.id}": 1} if moment == "before the file is written" else {})
    assert loop.delete("user", "ann", "default").models == {}, "nothing was recorded after the deletion"


def work(loop: Loop, run_id: str, monkeypatch, train: Callable[[Path], None]) -> int:
    """Work on a run in this process.

    :param train: called with the file of training examples instead of the training.
    """
    monkeypatch.setenv(STORE_VARIABLE, loop.store_url)
    monkeypatch.setattr(worker.signal, "signal", lambda *_: None)
    monkeypatch.setattr(worker, "find_base", lambda *_: None)
    monkeypatch.setattr(worker, "train_candidate", lambda *arguments: train(arguments[3]))
    return worker.work(loop.root, run_id)


def test_what_a_server_without_the_loop_deleted_is_not_trained_on(loop, monkeypatch):
    loop.mine(lookup=look_up)
    run, _ = loop.train()
    with EventStore(loop.store_url) as store:
        assert delete_by_scope(store, "user", "ann", "default").models == {f"run:{run.id}": 1}
    trained_on = []

    def train(path: Path) -> None:
        trained_on.append(path.read_text())
        raise InputError("enough")

    assert work(loop, run.id, monkeypatch, train) == 1
    assert loop.runs.get(run.id).error == "enough"
    (feedback,) = trained_on
    assert "ann" not in feedback
    assert feedback.count("\n") == 9


def test_a_run_that_is_canceled_before_its_process_starts_stays_canceled(loop, monkeypatch):
    loop.mine(lookup=look_up)
    run, _ = loop.train()
    loop.runs.cancel(run.id)
    assert work(loop, run.id, monkeypatch, lambda _: pytest.fail("it trains")) == 0
    assert loop.runs.get(run.id).state == "canceled"
    assert loop.train()[0].id != run.id


def test_an_interrupted_cancellation_is_completed_later(loop, monkeypatch):
    loop.mine(lookup=look_up)
    run, _ = loop.train()
    (loop.runs.folder(run.id) / "cancel").touch()
    assert work(loop, run.id, monkeypatch, lambda _: pytest.fail("it trains")) == 0
    assert loop.recover().state == "canceled"
    assert loop.runs.active() is None
    assert not (loop.runs.folder(run.id) / "feedback.jsonl").exists()


def test_a_run_that_failed_after_too_many_attempts_keeps_no_texts(loop):
    loop.mine(lookup=look_up)
    run, _ = loop.train()
    folder = loop.runs.folder(run.id)
    for name in ("torch", "onnx"):
        (folder / name).mkdir()
    loop.runs.update(run.id, attempt=loop.settings.training.attempts)
    assert loop.recover().state == "failed"
    assert {path.name for path in folder.iterdir()} <= {".lock", "run.json"}


def test_a_failed_run_loses_its_texts_together_with_its_training_record(loop):
    loop.mine(lookup=look_up)
    run, _ = loop.train()
    loop.runs.update(run.id, state="failed")
    assert loop.count_untrained() == 10
    assert not (loop.runs.folder(run.id) / "feedback.jsonl").exists()
