"""API keys: hashed, scoped, and required on addresses other than loopback."""

from __future__ import annotations

import socket
import stat
import time

import pytest

from mnemorank.errors import InputError
from mnemorank.server import ServerSettings, auth, create_app
from mnemorank.server.auth import Caller, add_key, read_keys, resolve_tenant
from mnemorank.server.errors import Problem

BODY = {"query": "ruby", "documents": ["ruby"]}


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    path = tmp_path_factory.mktemp("keys") / "keys.toml"
    return path, {
        "reader": add_key(path, "reader"),
        "both": add_key(path, "both", ["read", "feedback"], tenant="acme"),
        "admin": add_key(path, "admin", ["admin"]),
        "acme": add_key(path, "acme", ["admin"], tenant="acme"),
    }


@pytest.fixture(scope="module")
def guarded(start, keys):
    return start(keys=keys[0])


def bearer(key):
    return {"authorization": f"Bearer {key}"}


def test_the_file_holds_hashes_and_is_readable_by_its_owner_only(keys):
    path, made = keys
    content = path.read_text()
    assert not any(key in content for key in made.values())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    ring = read_keys(path)
    assert ring.identify(made["reader"]).scopes == {"read"}
    assert ring.identify(made["both"]).tenant == "acme"
    assert ring.identify("mnk_other") is None


def test_a_key_is_required_in_either_header(guarded, keys):
    _, made = keys
    assert guarded.client.post("/v2/rerank", json=BODY).status_code == 401
    assert guarded.client.post("/v2/rerank", json=BODY, headers=bearer("mnk_wrong")).status_code == 401
    assert guarded.client.post("/v2/rerank", json=BODY, headers=bearer(made["reader"])).status_code == 200
    assert guarded.client.post("/v2/rerank", json=BODY, headers={"x-api-key": made["both"]}).status_code == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v2/rerank", {"message": "an API key is required: send Authorization: Bearer KEY"}),
        ("/v1/rerank", {"detail": "an API key is required: send Authorization: Bearer KEY"}),
        (
            "/rerank",
            {"error": "an API key is required: send Authorization: Bearer KEY", "error_type": "Validation"},
        ),
    ],
)
def test_refusals_use_the_format_of_the_dialect(guarded, path, body):
    answer = guarded.client.post(path, json={**BODY, "texts": ["a"]})
    assert (answer.status_code, answer.json()) == (401, body)


def test_the_body_of_an_unknown_caller_is_not_read(guarded):
    head = b"POST /rerank HTTP/1.1\r\nHost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: 9000\r\n\r\n"
    with socket.create_connection(("127.0.0.1", guarded.port), timeout=5) as stranger:
        stranger.sendall(head + b"{")
        assert stranger.recv(200).startswith(b"HTTP/1.1 401 ")


def test_an_unknown_caller_who_is_sending_a_body_can_read_the_error(guarded):
    head = b"POST /rerank HTTP/1.1\r\nHost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: 9000\r\n\r\n"
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", guarded.port), timeout=5) as stranger:
            stranger.sendall(head)
            time.sleep(0.01)
            stranger.sendall(b"{" + b" " * 4000)
            time.sleep(0.01)
            stranger.sendall(b" " * 4999)
            answer = b"".join(iter(lambda: stranger.recv(4096), b""))
        assert answer.startswith(b"HTTP/1.1 401 ")
        assert b"an API key is required" in answer


def test_an_unknown_caller_gets_no_100_continue(guarded):
    """curl waits for 100-continue before it sends a large body; otherwise it would be reset while sending."""
    head = b"POST /rerank HTTP/1.1\r\nHost: 127.0.0.1\r\ncontent-type: application/json\r\nexpect: 100-continue\r\n"
    with socket.create_connection(("127.0.0.1", guarded.port), timeout=5) as stranger:
        stranger.sendall(head + b"content-length: 9000\r\n\r\n")
        answer = b"".join(iter(lambda: stranger.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"an API key is required" in answer


def test_scopes_are_enforced(guarded, keys):
    _, made = keys
    swap = guarded.client.post("/v1/models/swap", json={}, headers=bearer(made["reader"]))
    assert (swap.status_code, swap.json()["error"]["code"]) == (403, "forbidden")
    assert guarded.client.post("/v1/models/swap", json={}, headers=bearer(made["admin"])).status_code == 200
    assert guarded.client.post("/v2/rerank", json=BODY, headers=bearer(made["admin"])).status_code == 403
    assert guarded.client.get("/metrics").status_code == 401
    assert guarded.client.get("/metrics", headers=bearer(made["reader"])).status_code == 200


def test_a_key_bound_to_a_tenant_cannot_act_for_another(guarded, keys):
    _, made = keys
    body = {"query": "ruby", "memories": ["ruby"], "tenant": "other"}
    answer = guarded.client.post("/v1/memories/rerank", json=body, headers=bearer(made["both"]))
    assert (answer.status_code, answer.json()["error"]["field"]) == (403, "tenant")


def test_an_admin_key_bound_to_a_tenant_cannot_swap_the_model(guarded, keys):
    _, made = keys
    before = guarded.app.state.slot.current
    answer = guarded.client.post("/v1/models/swap", json={}, headers=bearer(made["acme"]))
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")
    assert guarded.app.state.slot.current is before


def test_health_and_readiness_need_no_key(guarded):
    assert guarded.client.get("/health").json() == {"status": "ok"}
    assert guarded.client.get("/ready").status_code == 200


def test_public_addresses_need_keys_or_no_auth(tiny_settings):
    with pytest.raises(InputError) as caught:
        create_app(tiny_settings(host="0.0.0.0"))
    assert caught.value.field == "host"
    create_app(tiny_settings(host="0.0.0.0", no_auth=True))
    create_app(tiny_settings(host="::1"))
    with pytest.raises(InputError) as caught:
        ServerSettings(no_auth=True, keys="x").check_auth()
    assert caught.value.field == "no_auth"


@pytest.mark.parametrize(
    ("content", "field"),
    [
        ("", "keys"),
        ('[[keys]]\nname = "a"\nsha256 = "zz"\nscopes = ["read"]', "keys.0.sha256"),
        ('[[keys]]\nname = "a"\nsha256 = "' + "0" * 64 + '"\nscopes = ["root"]', "keys.0.scopes"),
        ('[[keys]]\nname = "a"\nsha256 = "' + "0" * 64 + '"\nscopes = ["read"]\ntenant = ""', "keys.0.tenant"),
        ('[[keys]]\nname = "a"\nsha256 = "' + "0" * 64 + '"\nscopes = ["read"]\ntenant = 3', "keys.0.tenant"),
        ("[[keys]]\nname = 3", "keys.0.name"),
    ],
)
def test_an_invalid_key_file_is_an_error_that_names_the_field(tmp_path, content, field):
    path = tmp_path / "keys.toml"
    path.write_text(content)
    with pytest.raises(InputError) as caught:
        read_keys(path)
    assert (caught.value.location, caught.value.field) == (str(path), field)


@pytest.mark.parametrize("content", [None, "keys = ["])
def test_a_key_file_that_cannot_be_read_is_an_error_that_names_it(tmp_path, content):
    path = tmp_path / "keys.toml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=r"keys\.toml"):
        read_keys(path)


@pytest.mark.parametrize("tenant", ["", " "])
def test_a_key_cannot_be_bound_to_an_empty_tenant(tmp_path, tenant):
    """It would look restricted and could access the data of every tenant."""
    with pytest.raises(InputError) as caught:
        add_key(tmp_path / "keys.toml", "agent", ["admin"], tenant=tenant)
    assert caught.value.field == "tenant"
    assert not (tmp_path / "keys.toml").exists()


def test_the_tenant_of_the_key_wins_even_if_it_is_empty():
    bound, unbound = Caller("a", frozenset(), tenant=""), Caller("b", frozenset())
    assert resolve_tenant(bound, None) == ""
    with pytest.raises(Problem) as caught:
        resolve_tenant(bound, "acme")
    assert (caught.value.status_code, caught.value.field) == (403, "tenant")
    assert resolve_tenant(unbound, "acme") == "acme"
    assert resolve_tenant(unbound, None) is None


def test_keys_are_read_again_when_the_file_changes(start, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(auth, "_CHECK_SECONDS", 0.0)
    path = tmp_path / "keys.toml"
    first = add_key(path, "first")
    only_first = path.read_text()
    second = add_key(path, "second")
    running = start(keys=path)

    def statuses():
        return [running.client.get("/info", headers=bearer(key)).status_code for key in (first, second)]

    assert statuses() == [200, 200]
    path.write_text(only_first)
    assert statuses() == [200, 401]
    third = add_key(path, "third")
    assert running.client.get("/info", headers=bearer(third)).status_code == 200
    path.write_text("[[keys]]\nname = 7\n")
    assert statuses() == [200, 401], "a mistake in the file locks nobody out"
    assert "keys.0.name" in caplog.text
    path.unlink()
    assert statuses() == [200, 401]
    path.write_text(only_first.replace("first", "renamed"))
    assert statuses() == [200, 401]
