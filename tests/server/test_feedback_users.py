"""Who may give feedback: a caller cannot invent users who outvote others."""

from __future__ import annotations

import pytest

from mnemorank.errors import InputError
from mnemorank.server.auth import add_key, new_user_secret, read_keys, sign_user

MEMORIES = [{"id": "cat", "text": "the cat"}, {"id": "ruby", "text": "ruby"}]
SECRET = new_user_secret()


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    path = tmp_path_factory.mktemp("keys") / "keys.toml"
    scopes = ["read", "feedback"]
    plain = {name: {"x-api-key": add_key(path, name, scopes)} for name in ("app", "agent")}
    return path, {**plain, "browser": {"x-api-key": add_key(path, "browser", scopes, user_secret=SECRET)}}


@pytest.fixture(scope="module")
def launch(start, keys, tmp_path_factory):
    def launch(**settings):
        return start(store=str(tmp_path_factory.mktemp("store") / "e.db"), keys=keys[0], **settings)

    return launch


@pytest.fixture(scope="module")
def strict(launch):
    return launch()


@pytest.fixture(scope="module")
def lenient(launch):
    return launch(max_feedback_users=3)


def ask(running, headers, user=None, **more_headers):
    body = {"query": "ruby", "memories": MEMORIES, **({"user": user} if user else {})}
    return running.client.post("/v1/memories/rerank", json=body, headers={**headers, **more_headers})


def speak(running, headers, event_id, user=None, **more_headers):
    signals = [{"kind": "thumbs_down", "memory_id": "ruby"}]
    body = {"event_id": event_id, "signals": signals, **({"user": user} if user else {})}
    return running.client.post("/v1/feedback", json=body, headers={**headers, **more_headers})


def actors(running, event_id):
    return {(signal.actor, signal.caller) for signal in running.app.state.event_log.store.event(event_id)[1]}


def test_only_the_user_who_asked_may_give_feedback(strict, keys):
    _, headers = keys
    event_id = ask(strict, headers["app"], "ann").json()["event_id"]
    for key in ("app", "agent"):
        refused = speak(strict, headers[key], event_id, "bob")
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "too_many_users")
        assert refused.json()["error"]["field"] == "user"
    assert speak(strict, headers["app"], event_id, "ann").json() == {"stored": 1, "new": 1}
    assert speak(strict, headers["app"], event_id).json() == {"stored": 1, "new": 0}
    assert speak(strict, headers["agent"], event_id).json() == {"stored": 1, "new": 1}
    assert actors(strict, event_id) == {("ann", "app"), ("ann", "agent")}


def test_on_an_event_without_a_user_the_first_one_speaks(strict, keys):
    _, headers = keys
    event_id = ask(strict, headers["app"]).json()["event_id"]
    assert speak(strict, headers["app"], event_id, "ann").status_code == 200
    assert speak(strict, headers["app"], event_id, "ann").status_code == 200
    assert speak(strict, headers["app"], event_id, "bob").status_code == 409
    assert speak(strict, headers["app"], event_id).status_code == 409


def test_a_server_may_accept_a_few_more_users_for_each_key(lenient, keys):
    _, headers = keys
    event_id = ask(lenient, headers["app"], "ann").json()["event_id"]
    assert [speak(lenient, headers["app"], event_id, user).status_code for user in ("b", "c", "d", "ann")] == [
        200,
        200,
        409,
        200,
    ]
    assert [speak(lenient, headers["agent"], event_id, user).status_code for user in ("e", "f", "g")] == [200, 200, 409]


def test_a_key_with_a_secret_names_users_only_with_a_token(strict, keys):
    _, headers = keys
    browser = headers["browser"]
    token = {"x-user-token": sign_user(SECRET, "ann")}
    event_id = ask(strict, browser, "ann", **token).json()["event_id"]
    invalid = {
        "missing": {},
        "of another user": {"x-user-token": sign_user(SECRET, "bob")},
        "by another secret": {"x-user-token": sign_user(new_user_secret(), "ann")},
        "expired": {"x-user-token": sign_user(SECRET, "ann", valid_seconds=-5)},
        "prolonged": {"x-user-token": "9" + token["x-user-token"]},
        "malformed": {"x-user-token": "ann"},
    }
    for name, header in invalid.items():
        for answer in (
            ask(strict, browser, "ann", **header),
            speak(strict, browser, event_id, "ann", **header),
            speak(strict, browser, event_id, **header),
        ):
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "invalid_user_token"), name
    assert speak(strict, browser, event_id, **token).status_code == 200
    assert speak(strict, browser, event_id, "ann", **token).json() == {"stored": 1, "new": 0}
    assert ask(strict, browser).status_code == 200, "nobody is named"


def test_a_short_secret_is_refused(tmp_path):
    with pytest.raises(InputError) as error:
        add_key(tmp_path / "keys.toml", "app", user_secret="tooshort!")
    assert error.value.field == "user_secret"
    add_key(tmp_path / "keys.toml", "app")
    with (tmp_path / "keys.toml").open("a") as stream:
        stream.write('user_secret = "tooshort!"\n')
    with pytest.raises(InputError) as error:
        read_keys(tmp_path / "keys.toml")
    assert error.value.field == "keys.0.user_secret"
    assert "tooshort!" not in str(error.value)


def test_secrets_are_not_in_the_representation_of_a_caller(keys):
    assert SECRET not in repr(read_keys(keys[0]))
