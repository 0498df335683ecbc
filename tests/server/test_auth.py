"""API keys: hashed, scoped, required where strangers can reach the server."""

from __future__ import annotations

import socket
import stat
import time

import pytest

from mnemorank.errors import InputError
from mnemorank.server import ServerSettings, create_app
from mnemorank.server.auth import add_key, read_keys

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


def test_the_file_holds_hashes_and_is_the_owners_alone(keys):
    path, made = keys
    content = path.read_text()
    assert not any(key in content for key in made.values())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    ring = read_keys(path)
    assert ring.identify(made["reader"]).scopes == {"read"}
    assert ring.identify(made["both"]).tenant == "acme"
    assert ring.identify("mnk_other") is None


def test_a_key_is_needed_and_either_header_carries_it(guarded, keys):
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
def test_refusals_are_in_shape(guarded, path, body):
    answer = guarded.client.post(path, json={**BODY, "texts": ["a"]})
    assert (answer.status_code, answer.json()) == (401, body)


def test_the_body_of_a_stranger_is_not_even_read(guarded):
    head = b"POST /rerank HTTP/1.1\r\nHost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: 9000\r\n\r\n"
    with socket.create_connection(("127.0.0.1", guarded.port), timeout=5) as stranger:
        stranger.sendall(head + b"{")
        assert stranger.recv(200).startswith(b"HTTP/1.1 401 ")


def test_a_stranger_whose_body_is_on_its_way_reads_why(guarded):
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


def test_a_stranger_who_asks_first_is_not_invited_to_send_a_body(guarded):
    """curl asks so before it sends more than a megabyte; invited, it would be reset in the midst of its body."""
    head = b"POST /rerank HTTP/1.1\r\nHost: 127.0.0.1\r\ncontent-type: application/json\r\nexpect: 100-continue\r\n"
    with socket.create_connection(("127.0.0.1", guarded.port), timeout=5) as stranger:
        stranger.sendall(head + b"content-length: 9000\r\n\r\n")
        answer = b"".join(iter(lambda: stranger.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"an API key is required" in answer


def test_scopes_are_kept(guarded, keys):
    _, made = keys
    swap = guarded.client.post("/v1/models/swap", json={}, headers=bearer(made["reader"]))
    assert (swap.status_code, swap.json()["error"]["code"]) == (403, "forbidden")
    assert guarded.client.post("/v1/models/swap", json={}, headers=bearer(made["admin"])).status_code == 200
    assert guarded.client.post("/v2/rerank", json=BODY, headers=bearer(made["admin"])).status_code == 403
    assert guarded.client.get("/metrics").status_code == 401
    assert guarded.client.get("/metrics", headers=bearer(made["reader"])).status_code == 200


def test_a_key_bound_to_a_tenant_cannot_speak_for_another(guarded, keys):
    _, made = keys
    body = {"query": "ruby", "memories": ["ruby"], "tenant": "other"}
    answer = guarded.client.post("/v1/memories/rerank", json=body, headers=bearer(made["both"]))
    assert (answer.status_code, answer.json()["error"]["field"]) == (403, "tenant")


def test_a_tenants_admin_does_not_swap_the_model_of_all(guarded, keys):
    _, made = keys
    before = guarded.app.state.slot.current
    answer = guarded.client.post("/v1/models/swap", json={}, headers=bearer(made["acme"]))
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")
    assert guarded.app.state.slot.current is before


def test_health_and_readiness_need_no_key(guarded):
    assert guarded.client.get("/health").json() == {"status": "ok"}
    assert guarded.client.get("/ready").status_code == 200


def test_strangers_are_not_served_without_keys_unless_so_named(tiny_settings):
    with pytest.raises(InputError, match=r"0\.0\.0\.0 is reachable from outside.*--no-auth"):
        create_app(tiny_settings(host="0.0.0.0"))
    create_app(tiny_settings(host="0.0.0.0", no_auth=True))
    create_app(tiny_settings(host="::1"))
    with pytest.raises(InputError, match="no_auth: contradicts keys"):
        ServerSettings(no_auth=True, keys="x").check_auth()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "has no"),
        ("keys = [", "not valid TOML"),
        ('[[keys]]\nname = "a"\nsha256 = "zz"\nscopes = ["read"]', "key 1: sha256"),
        ('[[keys]]\nname = "a"\nsha256 = "' + "0" * 64 + '"\nscopes = ["root"]', "key 1: scopes"),
        ("[[keys]]\nname = 3", "key 1: name"),
    ],
)
def test_a_bad_key_file_is_an_error_that_names_the_place(tmp_path, content, words):
    path = tmp_path / "keys.toml"
    path.write_text(content)
    with pytest.raises(InputError, match=words):
        read_keys(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_keys(tmp_path / "none.toml")
