"""Fuzz every route of a server with mutated requests.

    pip install 'mnemorank[serve,learn]'
    python benchmarks/fuzz.py --requests 100000

The server runs in its own process with a learning loop and, if the model is a split one, an index. Requests start as
valid ones. Then values, keys, bytes, parameters and headers are changed at random: types, extreme numbers, odd texts,
deep and long structures, truncated and corrupt JSON. tests/server/test_fuzz.py does the same from the OpenAPI schema.

Prints the number of responses by route and status. Exits with 1 if a request was a 5xx (other than a 504 that it asked
for by its deadline), got no response or an error that is not JSON, or if the server does not work afterwards. A request
can be repeated with `--seed` and `--only`.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import string
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import local
from typing import Any
from urllib.parse import quote, urlencode

import httpx

from load_clients import server

# Examples can never be enough, so that the routes that start a training run answer 409.
SETTINGS = "[privacy]\ntexts = true\n[training]\nmin_examples = 1000000000\nmodel = {model}\n"
MEMORY = {
    "id": "m1", "text": "Ruby works at Aurora Labs.", "occurred_start": "2024-03-05", "key": "job", "score": 0.8,
    "entities": ["Ruby"], "supersedes": ["m2"], "trust": 0.9, "proof_count": 2, "metadata": {"source": "chat"},
}  # fmt: skip
DOCUMENTS = ["Ruby works at Aurora Labs.", {"text": "The cat sleeps.", "occurred_start": "2024-03"}]
RANKING = {
    "query": "Where does Ruby work now?", "top_k": 2, "now": "2025-01-15", "as_of": "2025-01-01",
    "time_range": ["2024-01", "2024-12"], "explain": True, "user": "ann", "test": False,
    "options": {"diversity": 0.5, "token_budget": 100, "recency": "linear", "weights": {"same_day": 0.5}},
}  # fmt: skip
SIGNALS = [{"kind": "click", "rank": 1}, {"kind": "stars", "memory_id": "m1", "value": 4, "note": "fine"}]
# Valid requests of every route: a body, or parameters for those without one.
SEEDS: dict[str, list[Any]] = {
    "POST /v1/memories/rerank": [
        {**RANKING, "memories": [MEMORY, {"id": "m2", "text": "Ruby works at Zenith.", "key": "job"}, "A cat."]},
        {"query": "ruby", "memories": ["ruby", "cat"], "field": "text", "on_error": "skip", "tenant": "acme"},
    ],
    "POST /v2/rerank": [
        {"model": "mini", "query": "ruby", "documents": DOCUMENTS, "top_n": 1, "rank_fields": ["text"]}
    ],
    "POST /v1/rerank": [
        {"model": "mini", "query": "ruby", "documents": DOCUMENTS, "top_n": 1, "return_documents": True}
    ],
    "POST /rerank": [
        {"query": "ruby", "texts": ["ruby", "cat"], "raw_scores": True, "return_text": True, "truncate": True},
        {"model": "mini", "query": "ruby", "documents": DOCUMENTS, "top_n": 1},
    ],
    "POST /infinity/rerank": [
        {"model": "mini", "query": "ruby", "documents": ["ruby", "cat"], "return_documents": True}
    ],
    "POST /score": [{"text_1": "ruby", "text_2": ["ruby", "cat"]}, {"queries": ["a", "b"], "documents": ["a", "b"]}],
    "POST /v1/score": [{"model": "mini", "text_1": ["ruby"], "text_2": ["cat"]}],
    "POST /v1/index/add": [{"memories": [MEMORY, {"id": "m2", "text": "A cat."}]}],
    "POST /v1/index/update": [{"memories": [MEMORY]}],
    "POST /v1/index/delete": [{"ids": ["m1", "m2"]}],
    "POST /v1/index/search": [{**RANKING}],
    "GET /v1/index/get": [{"id": "m1"}],
    "GET /v1/index/stats": [{}],
    "POST /v1/feedback": [{"event_id": "EVENT", "user": "ann", "signals": SIGNALS}],
    "DELETE /v1/feedback": [{"event": "EVENT"}, {"user": "bob", "tenant": "acme"}, {"memory": "m9"}],
    "GET /v1/feedback/export": [{"user": "ann", "tenant": "acme"}],
    "POST /v1/models/swap": [{"model": "no-such-model"}],
    "GET /v1/models": [{}],
    "GET /health": [{}],
    "GET /ready": [{}],
    "GET /info": [{}],
    "GET /metrics": [{}],
    "POST /v1/learning/mine": [None],
    "POST /v1/learning/run": [None],
    "POST /v1/learning/train": [{"promote": False}],
    "POST /v1/learning/evaluate": [{"version": "0002"}],
    "POST /v1/learning/promote": [{"version": "0002", "force": True, "why": "better"}],
    "POST /v1/learning/rollback": [{"version": "0001", "why": "worse"}],
    "GET /v1/learning/status": [{}],
    "GET /v1/learning/history": [{}],
    "GET /v1/learning/runs": [{}],
    "GET /v1/learning/runs/{run_id}": [{"run_id": "20250101-000000-abcdef"}],
    "GET /v1/learning/runs/{run_id}/log": [{"run_id": "20250101-000000-abcdef", "last": "10"}],
    "POST /v1/learning/runs/{run_id}/cancel": [{"run_id": "20250101-000000-abcdef"}],
    "GET /v1/learning/reports/unused": [{"min_count": "1"}],
    "GET /v1/learning/reports/no-hits": [{"min_count": "1"}],
    "GET /v1/learning/reports/daily": [{"days": "7"}],
    "GET /v1/learning/examples": [{"limit": "5"}],
    "GET /v1/learning/shadow/{version}": [{"version": "0001"}],
    "GET /v1/console/session": [{}],
    "GET /v1/console/health": [{}],
    "POST /v1/console/memories": [{"name": "m.jsonl", "content": '{"text": "ruby"}\n"cat"'}, {"content": "text\nruby"}],
    "POST /v1/console/compare": [{**RANKING, "memories": [MEMORY, "A cat."], "model": "version 0001"}],
}
# How often a route is chosen: there is more to change in a body. The last ones read the whole log or load a model.
WEIGHTS = {route: 1.0 if examples in ([{}], [None]) else 4.0 for route, examples in SEEDS.items()}
WEIGHTS |= {"POST /v1/models/swap": 0.5, "POST /v1/learning/mine": 0.1, "POST /v1/learning/run": 0.1}
TEXTS = [
    "", " ", "\x00", "\ufeff", "\u2028", "\ud800", "a" * 5000, "ruby " * 2000, "😀" * 300, "e\u0301" * 500,
    "../../etc/passwd", "' OR 1=1 --", "%00%ff", "NaN", "null", "-0001", "9999-12-31T23:59:59+14:00", "2024-13-45",
    "2024-02-30", "0000", "{}", "[1, 2", '{"text": "ruby", "occurred_start": "2024"}', "[CLS] [SEP] [PAD]",
    "<|endoftext|>", "\x1b[31m",
]  # fmt: skip
NUMBERS = [0, -1, 1, 2, 10**9, 2**31, 2**63, 10**30, -(10**30), 0.1, -0.0, 1e-320, 1e308, -1e308]
STRUCTURES = [None, True, False, [], {}, [[]], [{}], {"": None}, {"text": {"text": "a"}}, [None] * 50, ["a"] * 500]
HEADERS = [
    ("x-deadline-ms", "0.001"), ("x-deadline-ms", "nan"), ("x-deadline-ms", "-1"), ("x-deadline-ms", "1e400"),
    ("content-type", "text/plain"), ("content-type", "application/json; charset=utf-16"), ("content-encoding", "gzip"),
    ("x-request-id", "x" * 300), ("x-api-key", "unknown"), ("authorization", "Bearer \xff"), ("origin", "https://a.b"),
    ("host", "evil.example"), ("accept", "text/html"), ("x-user-token", "a.b.c"),
]  # fmt: skip


@dataclass
class Case:
    """A request to send."""

    route: str
    path: str
    parameters: dict[str, str]
    content: bytes | None
    headers: list[tuple[bytes, bytes]]

    @property
    def has_deadline(self) -> bool:
        return b"deadline_ms" in (self.content or b"") or any(name == b"x-deadline-ms" for name, _ in self.headers)


@dataclass
class Results:
    statuses: dict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    failures: list[str] = field(default_factory=list)


def odd_value(rng: random.Random) -> Any:
    kind = rng.randrange(5)
    if kind == 0:
        return "".join(rng.choices(string.printable + "äé漢😀\u202e", k=rng.randrange(40)))
    if kind == 1:
        depth = rng.choice([3, 50, 200])
        return json.loads("[" * depth + "]" * depth)
    return copy.deepcopy(rng.choice((TEXTS, NUMBERS, STRUCTURES)[kind - 2]))


def places(value: Any) -> list[tuple[Any, Any]]:
    """Return all (container, key) in a JSON value."""
    found: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting:
        container = waiting.pop()
        keys = list(container) if isinstance(container, dict) else range(len(container))
        for key in keys:
            found.append((container, key))
            if isinstance(container[key], (dict, list)):
                waiting.append(container[key])
    return found


def mutate(body: Any, rng: random.Random) -> Any:
    """Return a copy of a body with some random changes."""
    changed = copy.deepcopy(body)
    for _ in range(rng.choice([0, 1, 1, 1, 2, 3, 6])):
        candidates = places(changed) if isinstance(changed, (dict, list)) else []
        if not candidates:
            return odd_value(rng)
        container, key = rng.choice(candidates)
        change = rng.randrange(8)
        if change == 0:
            del container[key]
        elif change == 1:
            is_leaf = not isinstance(container[key], (dict, list))
            container[key] = [container[key]] * rng.choice([1, 2, 300] if is_leaf else [1, 2])
        elif change == 2 and isinstance(container, dict):
            container[rng.choice([key.upper(), "", "__proto__", "x" * 300, "text", "id"])] = container.pop(key)
        elif change == 3 and isinstance(container, dict):
            container[f"unknown{rng.randrange(1000)}"] = odd_value(rng)
        elif change == 4:
            other, name = rng.choice(candidates)
            container[key] = copy.deepcopy(other[name])
        else:
            container[key] = odd_value(rng)
    return changed


def corrupt(content: bytes, rng: random.Random) -> bytes:
    """Change bytes, or return them as they are, which is likely."""
    change = rng.randrange(30)
    place = rng.randrange(len(content) + 1)
    if change == 0:
        return content[:place]
    if change == 1:
        return content[:place] + rng.randbytes(rng.randrange(1, 8)) + content[place:]
    if change == 2:
        return content[:place] + content[place + rng.randrange(1, 8) :]
    if change == 3:
        return content + content
    if change == 4:
        return rng.randbytes(rng.randrange(200))
    return content


def make_case(number: int, seed: int, event_id: str) -> Case:
    """Return request `number`; the same for the same seed."""
    rng = random.Random(f"{seed}:{number}")
    (route,) = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))
    method, path = route.split()
    parameters: dict[str, str] = {}
    content = None
    example = copy.deepcopy(rng.choice(SEEDS[route]))
    if method == "POST" and "{" not in path:
        if example is not None and "event_id" in example:
            example["event_id"] = event_id
        content = b"" if example is None else corrupt(json.dumps(mutate(example, rng)).encode(), rng)
    else:
        if example.get("event") == "EVENT":
            example["event"] = f"{event_id[:-1]}x"  # feedback needs the real one later
        for name, value in example.items():
            text = value if rng.random() < 0.5 else str(odd_value(rng))[:2000]
            if "{" + name + "}" in path:
                path = path.replace("{" + name + "}", quote(text.encode("utf-8", "replace"), safe="") or "-")
            elif rng.random() < 0.95:
                parameters[name] = text
        if rng.random() < 0.1:
            parameters[f"unknown{rng.randrange(9)}"] = str(odd_value(rng))[:200]
    headers = [(b"content-type", b"application/json")] if content is not None else []
    if rng.random() < 0.1:
        name, value = rng.choice(HEADERS)
        headers = [each for each in headers if each[0] != name.encode()] + [(name.encode(), value.encode("latin-1"))]
    return Case(route, path, parameters, content, headers)


def problem_of(case: Case, response: httpx.Response) -> str | None:
    """Return what is wrong with a response."""
    status = response.status_code
    if status >= 500 and not (status == 504 and case.has_deadline):
        return f"{status} {response.text[:300]}"
    if status >= 400 and "host" not in dict(case.headers):
        try:
            json.loads(response.content or b"null")
        except ValueError:
            return (
                None if status == 400 and response.text == "Invalid host header" else f"{status} {response.text[:300]}"
            )
    return None


def check_routes(client: httpx.Client) -> None:
    """Raise if the server has a route that is not fuzzed."""
    schema = client.get("/openapi.json").raise_for_status().json()
    served = {f"{method.upper()} {path}" for path, methods in schema["paths"].items() for method in methods}
    missing = sorted(served - set(SEEDS))
    if missing:
        raise SystemExit(f"no example for {', '.join(missing)}")


def fuzz(base_url: str, arguments: argparse.Namespace) -> Results:
    results = Results()
    threads = local()
    with httpx.Client(base_url=base_url, timeout=120) as client:
        check_routes(client)
        body = {"query": "ruby", "memories": [MEMORY, "A cat."], "user": "ann"}
        event_id: str = client.post("/v1/memories/rerank", json=body).raise_for_status().json()["event_id"]

    def send(number: int) -> None:
        if not hasattr(threads, "client"):
            threads.client = httpx.Client(base_url=base_url, timeout=120)
        case = make_case(number, arguments.seed, event_id)
        query = f"?{urlencode(case.parameters, errors='replace')}" if case.parameters else ""
        method = case.route.split()[0]
        try:
            response = threads.client.request(method, case.path + query, content=case.content, headers=case.headers)
            problem = problem_of(case, response)
            results.statuses[case.route][response.status_code] += 1
        except httpx.HTTPError as error:
            problem = f"no response: {type(error).__name__}: {error}"
        if problem is not None:
            results.failures.append(
                f"request {number}, {case.route}: {problem}\n  {query} {(case.content or b'')[:500]!r}"
            )

    numbers = [arguments.only] if arguments.only is not None else range(arguments.requests)
    with ThreadPoolExecutor(arguments.clients) as pool:
        for _ in pool.map(send, numbers):
            pass
    with httpx.Client(base_url=base_url, timeout=120) as client:
        client.get("/ready").raise_for_status()
        client.post("/v1/memories/rerank", json=body).raise_for_status()
    return results


def report(statuses: Mapping[str, Counter[int]]) -> None:
    columns = sorted({status for counts in statuses.values() for status in counts})
    print(f"| route | {' | '.join(map(str, columns))} |\n|---{'|---' * len(columns)}|")
    for route in SEEDS:
        print(f"| {route} | {' | '.join(str(statuses[route][status] or '') for status in columns)} |")
    total = sum((counts for counts in statuses.values()), Counter())
    print(f"| all {total.total()} | {' | '.join(str(total[status]) for status in columns)} |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--clients", type=int, default=4, help="concurrent clients")
    parser.add_argument("--model", default="mini", help="bundled model, or model folder")
    parser.add_argument("--index", action="store_true", help="serve an index, too; needs a split model")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="send only the request of this number")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "learning.toml").write_text(SETTINGS.format(model=json.dumps(arguments.model)))
        index = ["--index", f"{folder}/index.db"] if arguments.index else []
        with server("--learning", folder, *index) as address:
            results = fuzz(f"http://{address.host}:{address.port}", arguments)
    report(results.statuses)
    for failure in results.failures[:20]:
        print(failure, file=sys.stderr)
    print(f"{len(results.failures)} failures", flush=True)
    return 1 if results.failures else 0


if __name__ == "__main__":
    sys.exit(main())
