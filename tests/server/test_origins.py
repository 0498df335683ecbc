"""Web pages of other origins cannot change anything on a server without keys."""

from __future__ import annotations

import pytest

from mnemorank.server.auth import add_key
from tests.server.test_invalid_requests import PATHS, check_error_format

BODILESS = ("/v1/learning/mine", "/v1/learning/run", "/v1/learning/runs/123/cancel")
FOREIGN = ("https://evil.example", "null", "http://127.0.0.1:1", "http://localhost.evil.example")


@pytest.mark.parametrize("path", BODILESS)
@pytest.mark.parametrize("origin", FOREIGN)
def test_a_page_of_another_origin_is_refused(client, path, origin):
    answer = client.post(path, headers={"origin": origin})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "foreign_origin")
    assert "cors_origins" in answer.text


@pytest.mark.parametrize("path", BODILESS)
@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
def test_content_types_of_forms_are_refused(client, path, kind):
    answer = client.post(path, headers={"content-type": kind})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "not_json")


@pytest.mark.parametrize("path", BODILESS)
def test_programs_and_pages_of_the_server_are_accepted(client, server, path):
    for headers in ({}, {"origin": server.url}, {"content-type": "application/json; charset=utf-8"}):
        answer = client.post(path, headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "no_learning")


@pytest.mark.parametrize("path", PATHS)
def test_refusals_use_the_format_of_the_dialect(client, path):
    answer = client.post(path, json={}, headers={"origin": "https://evil.example"})
    assert answer.status_code == 403
    check_error_format(path, answer)


def test_deletion_is_checked_and_reading_is_left_to_cors(client):
    headers = {"origin": "https://evil.example"}
    assert client.delete("/v1/feedback?user=ann", headers=headers).status_code == 403
    answer = client.get("/health", headers=headers)
    assert answer.status_code == 200
    assert "access-control-allow-origin" not in answer.headers


def test_allowed_origins_may_call(start):
    named = start(cors_origins=("https://app.example",))
    body = {"query": "ruby", "texts": ["ruby"]}
    assert named.client.post("/rerank", json=body, headers={"origin": "https://app.example"}).status_code == 200
    assert named.client.post("/rerank", json=body, headers={"origin": "https://evil.example"}).status_code == 403
    anyone = start(cors_origins=("*",))
    assert anyone.client.post("/rerank", json=body, headers={"origin": "https://evil.example"}).status_code == 200


def test_with_keys_the_origin_does_not_matter(start, tmp_path):
    key = add_key(tmp_path / "keys.toml", "page", ["read"])
    keyed = start(keys=tmp_path / "keys.toml")
    headers = {"origin": "https://app.example", "authorization": f"Bearer {key}"}
    assert keyed.client.post("/rerank", json={"query": "a", "texts": ["a"]}, headers=headers).status_code == 200
