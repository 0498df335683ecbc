"""The events of a loop may be in another store than that of its settings: commands find it, or fail."""

import json
import time

import pytest

from mnemorank import InputError
from mnemorank.cli import main
from mnemorank.errors import ConflictError
from mnemorank.learning import worker
from mnemorank.learning.loop import Loop
from mnemorank.learning.store.database import public_address
from mnemorank.learning.store.events import DAY, EventStore
from tests.learning.factories import make_event


@pytest.fixture
def other_store(tmp_path):
    """The store of a loop whose server was started with --store."""
    url = f"sqlite:///{tmp_path}/other.db"
    with Loop(tmp_path / "loop", store_url=url) as loop:
        loop.store.record(make_event(user="ann", tenant="default"))
    return url


def delete_ann(tmp_path, *arguments: str) -> int:
    return main(["learn", "delete", "user", "ann", "--root", str(tmp_path / "loop"), "--json", *arguments])


def test_a_command_without_the_store_fails(tmp_path, other_store, capsys):
    assert delete_ann(tmp_path) == 2
    error = capsys.readouterr().err
    assert f"sqlite:///{tmp_path}/other.db" in error
    assert "--store" in error
    assert not (tmp_path / "loop" / "events.db").exists()


def test_the_store_is_given_by_option_or_environment(tmp_path, other_store, capsys, monkeypatch):
    assert delete_ann(tmp_path, "--store", other_store) == 0
    assert json.loads(capsys.readouterr().out)["events"] == 1
    monkeypatch.setenv("MNEMORANK_STORE", other_store)
    assert delete_ann(tmp_path) == 0
    assert json.loads(capsys.readouterr().out)["events"] == 0


def test_the_store_of_the_settings_needs_no_option(tmp_path, other_store):
    (tmp_path / "loop" / "learning.toml").write_text(f'store = "{other_store}"\n')
    with Loop(tmp_path / "loop") as loop:
        assert loop.store.counts()["events"] == 1
    with Loop(tmp_path / "loop", store_url=str(tmp_path / "loop" / "events.db")):
        pass
    with pytest.raises(ConflictError, match=r"events.db") as error:
        Loop(tmp_path / "loop")
    assert (error.value.field, error.value.code) == ("store", "other_store")


@pytest.mark.parametrize("is_configured", [True, False])
def test_a_training_run_leaves_the_recorded_address_unchanged(tmp_path, other_store, monkeypatch, is_configured):
    root = tmp_path / "loop"
    if is_configured:
        (root / "store.txt").unlink()
        (root / "learning.toml").write_text(f'store = "{other_store}"\n')
    with Loop(root, store_url=None if is_configured else other_store) as loop:
        fields = {"who": "", "promote": False, "base_version": "0001", "examples": 1}
        run = loop.runs.create(**fields, settings=loop.settings.to_table())
    opened = []
    monkeypatch.setenv(worker.STORE_VARIABLE, other_store)
    monkeypatch.setattr(worker._Worker, "work", lambda self: opened.append(self._loop.store.counts()["events"]) or 0)
    assert worker.work(root, run.id) == 0
    assert opened == [1]
    assert (root / "store.txt").exists() is not is_configured


def test_a_public_address_contains_no_secret():
    address = public_address("postgresql://ann:pa%2Fss@db:5433/feedback?password=x&host=/run/db")
    assert address == public_address("postgres://db:5433/feedback?host=/run/db")
    assert not any(secret in address for secret in ("ann", "pa", "x&", "word"))
    with pytest.raises(InputError) as error:
        public_address("mysql://db/feedback")
    assert error.value.field == "store"


def test_expire_works_on_a_store_without_a_loop(tmp_path, capsys):
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
        "delete user ann",
        "expire",
        "export ann",
        "report unused",
    ],
)
def test_a_command_without_a_loop_fails_and_creates_none(tmp_path, monkeypatch, capsys, action):
    monkeypatch.chdir(tmp_path)
    for variable in ("MNEMORANK_LEARNING", "MNEMORANK_STORE"):
        monkeypatch.delenv(variable, raising=False)
    assert main(["learn", *action.split()]) == 2
    output = capsys.readouterr()
    assert (output.out, output.err.count("\n")) == ("", 1)
    assert "--root" in output.err
    assert ".mnemorank" in output.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("action", ["run --after 0", "run --after -1", "report unused --min-count 0"])
def test_counts_are_positive(tmp_path, capsys, action):
    with pytest.raises(SystemExit) as caught:
        main(["learn", *action.split(), "--root", str(tmp_path)])
    assert caught.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_mining_creates_a_loop(tmp_path, capsys):
    assert main(["learn", "mine", "--root", str(tmp_path / "loop"), "--json"]) == 0
    assert main(["learn", "status", "--root", str(tmp_path / "loop"), "--json"]) == 0
