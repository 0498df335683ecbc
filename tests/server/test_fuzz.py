"""schemathesis over the OpenAPI: whatever is sent, no 5xx, and answers as the schema says."""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

CHECKS = [not_a_server_error, response_schema_conformance, status_code_conformance]
ROUTES = {
    "/v2/rerank": "POST",
    "/v1/rerank": "POST",
    "/rerank": "POST",
    "/score": "POST",
    "/v1/score": "POST",
    "/v1/memories/rerank": "POST",
    "/v1/models/swap": "POST",
    "/health": "GET",
    "/ready": "GET",
    "/info": "GET",
    "/metrics": "GET",
    "/v1/models": "GET",
}


@pytest.fixture(scope="module")
def schema(server):
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json")


@pytest.mark.parametrize(
    ("path", "mode"),
    [
        (path, mode)
        for path, method in ROUTES.items()
        for mode in GenerationMode
        if method == "POST" or mode == GenerationMode.POSITIVE
    ],
)
def test_no_request_is_a_server_error(schema, server, path, mode):
    operation = schema[path][ROUTES[path]]
    count = 0

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=8 if ROUTES[path] == "POST" else 3,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
        derandomize=True,
        phases=[Phase.generate],
    )
    def fuzz(case):
        nonlocal count
        count += 1
        case.call_and_validate(checks=CHECKS)

    fuzz()
    assert count > 0
    assert server.client.get("/ready").status_code == 200
