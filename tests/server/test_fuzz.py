"""schemathesis on the OpenAPI schema: no request is a 5xx, and responses match the schema. Then mutated requests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

pytestmark = pytest.mark.slow

CHECKS = [not_a_server_error, response_schema_conformance, status_code_conformance]
ROUTES = (
    "POST /v2/rerank",
    "POST /v1/rerank",
    "POST /rerank",
    "POST /infinity/rerank",
    "POST /score",
    "POST /v1/score",
    "POST /v1/memories/rerank",
    "POST /v1/index/add",
    "POST /v1/index/update",
    "POST /v1/index/delete",
    "POST /v1/index/search",
    "GET /v1/index/get",
    "POST /v1/models/swap",
    "POST /v1/feedback",
    "DELETE /v1/feedback",
    "POST /v1/learning/evaluate",
    "POST /v1/learning/promote",
    "POST /v1/learning/rollback",
    "POST /v1/learning/runs/{run_id}/cancel",
    "GET /v1/feedback/export",
    "GET /v1/learning/runs/{run_id}",
    "GET /v1/learning/runs/{run_id}/log",
    "GET /v1/learning/reports/unused",
    "GET /v1/learning/reports/no-hits",
    "GET /v1/learning/reports/daily",
    "GET /v1/learning/examples",
    "GET /v1/learning/shadow/{version}",
    "POST /v1/console/memories",
    "POST /v1/console/compare",
)
# Requests without a body and parameters cannot be invalid.
PLAIN = (
    "GET /health",
    "GET /ready",
    "GET /info",
    "GET /metrics",
    "GET /v1/models",
    "GET /v1/index/stats",
    "GET /v1/learning/status",
    "GET /v1/learning/history",
    "GET /v1/learning/runs",
    "POST /v1/learning/mine",
    "GET /v1/console/session",
    "GET /v1/console/health",
)
# They start training runs.
EXCLUDED = ("POST /v1/learning/train", "POST /v1/learning/run")


def learning_server(start, folder, **changes):
    """Start a server with a learning loop that stores texts."""
    (folder / "learning.toml").write_text("[privacy]\ntexts = true\n")
    return start(learning=folder, threads=1, **changes)


@pytest.fixture(scope="module")
def learner(start, tmp_path_factory, split_onnx):
    folder = tmp_path_factory.mktemp("loop")
    running = learning_server(start, folder, model=str(split_onnx), index=folder / "index.db")
    answer = running.client.post("/v1/memories/rerank", json={"query": "ruby", "memories": ["ruby", "cat"]})
    running.event_id = answer.json()["event_id"]
    return running


@pytest.fixture(scope="module")
def schema(learner):
    # Created by the first request, which may take longer on a busy machine than the loader waits.
    learner.client.get("/openapi.json", timeout=120)
    return schemathesis.openapi.from_url(f"{learner.url}/openapi.json")


def test_every_route_is_fuzzed(schema):
    listed = {f"{method.upper()} {path}" for path in schema for method in schema[path]}
    assert listed == {*ROUTES, *PLAIN, *EXCLUDED}


@pytest.mark.parametrize(
    ("route", "mode"),
    [(route, mode) for route in ROUTES for mode in GenerationMode]
    + [(route, GenerationMode.POSITIVE) for route in PLAIN],
)
def test_no_request_is_a_server_error(schema, learner, route, mode):
    method, path = route.split()
    operation = schema[path][method]
    count = 0

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=8 if method == "POST" else 3,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
        derandomize=True,
        phases=[Phase.generate],
    )
    def fuzz(case):
        nonlocal count
        count += 1
        if isinstance(case.body, dict) and "event_id" in case.body and mode == GenerationMode.POSITIVE:
            case.body["event_id"] = learner.event_id  # otherwise every response is a 404
        case.call_and_validate(checks=CHECKS, timeout=60)

    fuzz()
    assert count > 0
    assert learner.client.get("/ready").status_code == 200


@pytest.mark.timeout(300)
def test_no_mutated_request_is_a_server_error(split_onnx):
    """A short version of what the script does with 100,000 requests."""
    script = Path(__file__).parents[2] / "benchmarks" / "fuzz.py"
    command = [sys.executable, str(script), "--requests", "1000", "--model", str(split_onnx), "--index"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "| all 1000 |" in done.stdout
