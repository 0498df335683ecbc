"""The console's page and routes: served where it should be, sealed off from other hosts, with the scopes of the API."""

from __future__ import annotations

import gzip
import hashlib
import re
from importlib.resources import files
from pathlib import Path

import pytest

from mnemorank.server import ServerSettings
from mnemorank.server.auth import add_key

ROOT = Path(__file__).parents[2]
ASSETS = Path(str(files("mnemorank"))) / "assets" / "console"
MAX_BYTES = 400 * 1024
MEMORIES = [{"text": "ruby works at aurora labs"}, {"text": "the cat"}, {"text": "ruby was in berlin"}]


def test_the_page_may_load_nothing_from_other_hosts(client):
    response = client.get("/console")
    assert (response.status_code, response.headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = response.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self';")
    assert "unsafe" not in policy
    assert "*" not in policy
    names = re.findall(r'(?:src|href)="([^"]+)"', response.text)
    assert sorted(names) == ["console/app.css", "console/app.js", "console/icon.svg"]
    for name in (*names, "console/sample.jsonl"):
        asset = client.get(f"/{name}")
        assert (asset.status_code, asset.headers["x-content-type-options"]) == (200, "nosniff")
        urls = set(re.findall(r"https?://[\w.]+", asset.text)) - {"http://www.w3.org"}  # namespaces of SVG and MathML
        assert not urls, name


@pytest.mark.parametrize("name", ["source.sha256", "index.html", "../models/mini/mnemorank.json", "%2e%2e"])
def test_no_other_file_is_served(client, name):
    assert client.get(f"/console/{name}").status_code == 404


def test_it_is_on_by_default_only_on_loopback(start):
    assert ServerSettings().has_console
    assert not ServerSettings(host="0.0.0.0", no_auth=True).has_console
    assert ServerSettings(host="0.0.0.0", no_auth=True, console=True).has_console
    off = start(console=False).client
    for path in ("/console", "/console/app.js", "/v1/console/session"):
        assert off.get(path).status_code == 404


def test_the_build_is_small_and_that_of_the_source():
    """A build that is older than its source: run `npm ci && npm run build` in console/."""
    compressed = sum(len(gzip.compress(path.read_bytes())) for path in ASSETS.iterdir())
    assert compressed < MAX_BYTES
    source = ROOT / "console"
    names = ["index.html", "package-lock.json", "vite.config.ts", "tsconfig.json"]
    names += [f"{folder}/{path.name}" for folder in ("src", "public") for path in (source / folder).iterdir()]
    digest = hashlib.sha256()
    for name in sorted(names):
        digest.update(f"{name}\n".encode() + (source / name).read_bytes())
    assert (ASSETS / "source.sha256").read_text().strip() == digest.hexdigest()
    lock = (source / "package-lock.json").read_text()
    assert '"resolved"' not in lock, "the lock file must not name a registry"


def test_reads_files_as_the_command_line_does(client):
    def read(name: str, content: str):
        return client.post("/v1/console/memories", json={"name": name, "content": content})

    memories = read("m.csv", "text,date\nRuby moved,2024-03-05\nThe cat,\n").json()["memories"]
    assert [memory["text"] for memory in memories] == ["Ruby moved", "The cat"]
    assert "2024-03-05" in memories[0].values()
    assert [m["text"] for m in read("m.json", '["a", {"text": "b"}]').json()["memories"]] == ["a", "b"]
    assert [m["text"] for m in read("pasted", '\ufeff{"text": "a"}\n{"text": "b"}').json()["memories"]] == ["a", "b"]
    broken = read("m.jsonl", '{"text": "a"}\n{broken')
    assert broken.status_code == 422
    assert "m.jsonl:2" in broken.json()["error"]["message"]
    assert read("m.jsonl", "").status_code in (400, 422)


def test_compares_with_a_model_that_is_not_served(server, client):
    body = {"query": "where does ruby work", "memories": MEMORIES, "explain": True}
    served = client.post("/v1/memories/rerank", json=body).json()
    names = client.get("/v1/console/session").json()["models"]
    assert "mini" in names
    other = client.post("/v1/console/compare", json={**body, "model": "mini"})
    assert other.status_code == 200, other.text
    assert other.json()["model"]["name"] == "mini"
    assert other.json()["event_id"] is None
    assert len(other.json()["results"]) == 3
    assert client.post("/v1/memories/rerank", json=body).json()["model"] == served["model"], "the served model stays"
    unknown = client.post("/v1/console/compare", json={**body, "model": "/etc"})
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "unknown_model")


def test_keys_and_scopes_apply_to_the_data_but_not_to_the_page(start, tmp_path):
    path = tmp_path / "keys.toml"
    keys = {name: add_key(path, name, scopes) for name, scopes in {"r": ["read"], "f": ["feedback"]}.items()}
    bound = add_key(path, "bound", ["read", "admin"], tenant="acme")
    client = start(keys=path).client
    assert client.get("/console").status_code == 200
    assert client.get("/v1/console/session").status_code == 401
    session = client.get("/v1/console/session", headers={"x-api-key": keys["r"]}).json()
    assert (session["caller"], session["scopes"], session["models"]) == ("r", ["read"], [])
    assert client.get("/v1/console/health", headers={"x-api-key": keys["r"]}).status_code == 200
    assert client.get("/v1/console/health", headers={"x-api-key": keys["f"]}).status_code == 403
    body = {"query": "ruby", "memories": MEMORIES, "model": "mini"}
    for key in (keys["r"], bound):
        assert client.post("/v1/console/compare", json=body, headers={"x-api-key": key}).status_code == 403
    content = {"name": "m.jsonl", "content": '{"text": "a"}'}
    assert client.post("/v1/console/memories", json=content, headers={"x-api-key": keys["f"]}).status_code == 403
