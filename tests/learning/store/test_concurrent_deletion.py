"""A deletion or cancellation that comes while examples are mined, or a training prepared, is not undone by either."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mnemorank import InputError, Memory
from mnemorank.learning import worker
from mnemorank.learning.loop import Loop
from mnemorank.learning.mining.rules import MiningRules
from mnemorank.learning.runs import STORE_VARIABLE
from mnemorank.learning.settings import Settings, Training
from mnemorank.learning.signals import Signal
from mnemorank.learning.store import examples
from mnemorank.learning.store.deletion import delete_by_scope, deletions
from mnemorank.learning.store.events import EventStore
from tests.learning.learning_cases import make_event


@pytest.fixture
def loop(tmp_path, store_url, tiny_onnx):
    """Ann and nine others asked; texts are not stored, so that mining looks each up."""
    training = Training(model=str(tiny_onnx), least_examples=1, nice=0)
    settings = Settings(mining=MiningRules(held_out=1e-9), training=training)
    with Loop(tmp_path / "loop", settings, store_url=store_url) as opened:
        for number, user in enumerate(("ann", *(f"u{i}" for i in range(9)))):
            event_id = opened.store.record(make_event(f"{user} asks {number}", (f"{user} a", f"{user} b"), user=user))
            opened.store.signal([Signal(event_id, "cited", 1, actor=user)])
        opened.runs.start = lambda *_: None
        yield opened


def memory_of(memory_id: str) -> Memory:
    return Memory(memory_id.removeprefix("m-"), id=memory_id)


def asked(loop: Loop) -> set[str]:
    return {entry.example.query.split()[0] for entry in examples.load(loop.store.database)}


def test_a_deletion_while_mining_is_not_undone(loop):
    loop.mine(lookup=memory_of)
    assert "ann" in asked(loop)
    removed = []

    def lookup(memory_id: str) -> Memory:
        if not removed:
            removed.append(loop.forget("user", "ann", "default").examples)
        return memory_of(memory_id)

    mined = loop.mine(lookup=lookup)
    assert removed == [1]
    assert asked(loop) == {f"u{i}" for i in range(9)}
    assert len(mined.examples) == 9, "what is told is what was stored"


def test_mining_gives_up_where_deletions_do_not_end(loop):
    loop.mine(lookup=memory_of)
    users = iter(f"u{i}" for i in range(9))
    forgotten = set()

    def lookup(memory_id: str) -> Memory:
        if memory_id == "m-ann b":
            forgotten.add(user := next(users))
            loop.forget("user", user, "default")
        return memory_of(memory_id)

    with pytest.raises(InputError, match="mining: something was deleted during each of 5 attempts"):
        loop.mine(lookup=lookup)
    assert forgotten
    assert asked(loop) == {"ann", *(f"u{i}" for i in range(9))} - forgotten


class Forgetting(threading.Thread):
    """Forgets ann; `reached` waits until the store has, while the files of runs may still be waited for."""

    def __init__(self, root: Path, store_url: str) -> None:
        super().__init__()
        self._root, self._url = root, store_url

    def run(self) -> None:
        with Loop(self._root, store_url=self._url) as loop:
            loop.forget("user", "ann", "default")

    def reached(self, store: EventStore) -> None:
        self.start()
        end = time.monotonic() + 60
        while not deletions(store):
            assert time.monotonic() < end
            time.sleep(0.01)


@pytest.mark.parametrize("moment", ["before it is recorded", "before it is written"])
def test_a_deletion_while_a_training_is_prepared_reaches_its_file(loop, monkeypatch, moment):
    loop.mine(lookup=memory_of)
    forgetting = Forgetting(loop.root, loop.store_url)
    write = examples.write_with_provenance

    def writes(given, path: Path) -> int:
        forgetting.reached(loop.store)
        forgetting.join(0.5)  # it has to wait for the file
        return write(given, path)

    if moment == "before it is written":
        monkeypatch.setattr(examples, "write_with_provenance", writes)
    else:  # the registry is empty: the first version is added while the training is prepared
        loop.registry._step = lambda step: forgetting.reached(loop.store) if step == "add: rename" else None
    run, _ = loop.train()
    forgetting.join(60)
    told = (loop.runs.folder(run.id) / "feedback.jsonl").read_text()
    assert "u1 asks" in told
    assert "ann" not in told
    (done,) = deletions(loop.store)
    assert done.models == ({f"run:{run.id}": 1} if moment == "before it is written" else {})
    assert loop.forget("user", "ann", "default").models == {}, "nothing of it was recorded after it was deleted"


def work(loop: Loop, run_id: str, monkeypatch, train: Callable[[Path], None]) -> int:
    """What the process of a run does, in this one; `train` is given the file that it would train on."""
    monkeypatch.setenv(STORE_VARIABLE, loop.store_url)
    monkeypatch.setattr(worker.signal, "signal", lambda *_: None)
    monkeypatch.setattr(worker, "training_base", lambda *_: None)
    monkeypatch.setattr(worker, "train_candidate", lambda *given: train(given[3]))
    return worker.work(loop.root, run_id)


def test_a_deletion_by_a_server_that_knows_only_the_store_is_not_trained_on(loop, monkeypatch):
    loop.mine(lookup=memory_of)
    run, _ = loop.train()
    with EventStore(loop.store_url) as alone:
        assert delete_by_scope(alone, "user", "ann", "default").models == {f"run:{run.id}": 1}
    seen = []

    def train(path: Path) -> None:
        seen.append(path.read_text())
        raise InputError("enough")

    assert work(loop, run.id, monkeypatch, train) == 1
    assert loop.runs.get(run.id).error == "enough"
    (told,) = seen
    assert "ann" not in told
    assert told.count("\n") == 9


def test_a_run_cancelled_before_its_process_begins_stays_cancelled(loop, monkeypatch):
    loop.mine(lookup=memory_of)
    run, _ = loop.train()
    loop.runs.cancel(run.id)
    assert work(loop, run.id, monkeypatch, lambda _: pytest.fail("it trains")) == 0
    assert loop.runs.get(run.id).state == "cancelled"
    assert loop.train()[0].id != run.id


def test_a_run_whose_cancelling_was_interrupted_is_cancelled_by_the_next_process(loop, monkeypatch):
    loop.mine(lookup=memory_of)
    run, _ = loop.train()
    (loop.runs.folder(run.id) / "cancel").touch()
    assert work(loop, run.id, monkeypatch, lambda _: pytest.fail("it trains")) == 0
    assert loop.recover().state == "cancelled"
    assert loop.runs.open_run() is None
    assert not (loop.runs.folder(run.id) / "feedback.jsonl").exists()


def test_a_run_that_is_given_up_keeps_no_texts(loop):
    loop.mine(lookup=memory_of)
    run, _ = loop.train()
    folder = loop.runs.folder(run.id)
    for name in ("torch", "onnx"):
        (folder / name).mkdir()
    loop.runs.update(run.id, attempt=loop.settings.training.attempts)
    assert loop.recover().state == "failed"
    assert {path.name for path in folder.iterdir()} <= {".lock", "run.json"}


def test_a_run_given_up_by_an_earlier_release_loses_its_texts_with_the_record_of_them(loop):
    loop.mine(lookup=memory_of)
    run, _ = loop.train()
    loop.runs.update(run.id, state="failed")
    assert loop.untrained() == 10
    assert not (loop.runs.folder(run.id) / "feedback.jsonl").exists()
