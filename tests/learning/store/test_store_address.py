"""A loop's store may be elsewhere: commands find it, or say so."""

import json
import time

import pytest

from mnemorank import InputError
from mnemorank.cli import main
from mnemorank.learning import worker
from mnemorank.learning.loop import Loop
from mnemorank.learning.settings import settings_to_table
from mnemorank.learning.store.database import address
from mnemorank.learning.store.events import DAY, EventStore
from tests.learning.learning_cases import make_event


@pytest.fixture
def elsewhere(tmp_path):
    """The store of a loop that a server was started on with --store."""
    url = f"sqlite:///{tmp_path}/elsewhere.db"
    with Loop(tmp_path / "loop", store_url=url) as loop:
        loop.store.record(make_event(user="ann", tenant="default"))
    return url


def forget(tmp_path, *arguments: str) -> int:
    return main(["learn", "forget", "user", "ann", "--root", str(tmp_path / "loop"), "--json", *arguments])


def test_a_command_without_the_store_is_refused(tmp_path, elsewhere, capsys):
    assert forget(tmp_path) == 2
    error = capsys.readouterr().err
    assert f"the events of this loop are in sqlite:///{tmp_path}/elsewhere.db" in error
    assert "--store" in error
    assert not (tmp_path / "loop" / "events.db").exists()


def test_a_command_takes_the_store_by_option_or_environment(tmp_path, elsewhere, capsys, monkeypatch):
    assert forget(tmp_path, "--store", elsewhere) == 0
    assert json.loads(capsys.readouterr().out)["events"] == 1
    monkeypatch.setenv("MNEMORANK_STORE", elsewhere)
    assert forget(tmp_path) == 0
    assert json.loads(capsys.readouterr().out)["events"] == 0


def test_a_store_that_the_settings_name_needs_no_option(tmp_path, elsewhere):
    (tmp_path / "loop" / "learning.toml").write_text(f'store = "{elsewhere}"\n')
    with Loop(tmp_path / "loop") as loop:
        assert loop.store.counts()["events"] == 1
    with Loop(tmp_path / "loop", store_url=str(tmp_path / "loop" / "events.db")):
        pass
    with pytest.raises(InputError, match=r"events.db; name it with --store"):
        Loop(tmp_path / "loop")


@pytest.mark.parametrize("is_stated", [True, False])
def test_a_training_leaves_the_note_as_it_is(tmp_path, elsewhere, monkeypatch, is_stated):
    root = tmp_path / "loop"
    if is_stated:
        (root / "store.txt").unlink()
        (root / "learning.toml").write_text(f'store = "{elsewhere}"\n')
    with Loop(root, store_url=None if is_stated else elsewhere) as loop:
        fields = {"who": "", "promote": False, "base_version": "0001", "examples": 1}
        run = loop.runs.create(**fields, settings=settings_to_table(loop.settings))
    opened = []
    monkeypatch.setenv(worker.STORE_VARIABLE, elsewhere)
    monkeypatch.setattr(worker._Worker, "work", lambda self: opened.append(self._loop.store.counts()["events"]) or 0)
    assert worker.work(root, run.id) == 0
    assert opened == [1]
    assert (root / "store.txt").exists() is not is_stated


def test_an_address_holds_no_secret():
    told = address("postgresql://ann:pa%2Fss@db:5433/feedback?password=x&host=/run/db")
    assert told == address("postgres://db:5433/feedback?host=/run/db")
    assert not any(secret in told for secret in ("ann", "pa", "x&", "word"))
    with pytest.raises(InputError, match="store: expected"):
        address("mysql://db/feedback")


def test_a_store_without_a_loop_is_expired_by_command(tmp_path, capsys):
    url = f"sqlite:///{tmp_path}/alone.db"
    with EventStore(url) as store:
        store.record(make_event(id="old", time=time.time() - 366 * DAY))
        store.record(make_event(id="new"))
    assert main(["learn", "expire", "--root", str(tmp_path / "loop"), "--store", url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["events"] == 1
    with EventStore(url) as store:
        assert (store.event("old"), store.event("new") is not None) == (None, True)


@pytest.mark.parametrize(
    "action",
    [
        "status",
        "evaluate 0002",
        "promote 0002",
        "rollback",
        "history",
        "cancel 1",
        "log 1",
        "forget user ann",
        "expire",
        "export ann",
        "report unused",
    ],
)
def test_where_there_is_no_loop_a_command_says_so_and_makes_none(tmp_path, monkeypatch, capsys, action):
    monkeypatch.chdir(tmp_path)
    for variable in ("MNEMORANK_LEARNING", "MNEMORANK_STORE"):
        monkeypatch.delenv(variable, raising=False)
    assert main(["learn", *action.split()]) == 2
    said = capsys.readouterr()
    message = ".mnemorank: there is no learning loop here; give --root or MNEMORANK_LEARNING"
    assert (said.out, said.err.count("\n"), message in said.err) == ("", 1, True)
    assert list(tmp_path.iterdir()) == []


def test_a_loop_may_begin_with_mining(tmp_path, capsys):
    assert main(["learn", "mine", "--root", str(tmp_path / "loop"), "--json"]) == 0
    assert main(["learn", "status", "--root", str(tmp_path / "loop"), "--json"]) == 0
