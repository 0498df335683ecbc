"""Logs and traces of failures say what failed and where, and contain no text of any request."""

from __future__ import annotations

import logging
import sqlite3

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from mnemorank.server.observability import JsonFormatter

PATH = "/v1/memories/rerank"
ASKED = {"query": "secretquery", "memories": [{"id": "secretid", "text": "secrettext"}], "user": "secretuser"}


def written(caplog) -> str:
    """Return everything that was logged, by our formatter and by Python's, which an embedding app may use."""
    ours = [record for record in caplog.records if record.name != "httpx"]
    return "\n".join(form.format(record) for record in ours for form in (JsonFormatter(), logging.Formatter()))


@pytest.fixture
def broken(start, tmp_path):
    """A server with one event in its store, and a function that drops a table."""
    running = start(store=f"sqlite:///{tmp_path / 'feedback.db'}")
    running.event_id = running.client.post(PATH, json=ASKED).json()["event_id"]

    def drop(table: str) -> None:
        with sqlite3.connect(tmp_path / "feedback.db") as connection:
            connection.execute(f"DROP TABLE {table}")
        connection.close()

    running.drop = drop
    return running


def test_a_lost_event_is_logged_without_texts(broken, caplog):
    broken.drop("shown")
    assert broken.client.post(PATH, json=ASKED).status_code == 200
    log = written(caplog)
    assert "event lost: OperationalError" in log
    assert "events.py" in log, "the traceback is logged"
    assert "secret" not in log


def test_feedback_that_cannot_be_stored_is_an_error_without_texts(broken, caplog):
    broken.drop("signals")
    signals = [{"kind": "note", "rank": 1, "note": "secretnote"}]
    body = {"event_id": broken.event_id, "user": "secretuser", "signals": signals}
    answer = broken.client.post("/v1/feedback", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_failed")
    log = written(caplog)
    assert "the event store failed: OperationalError" in log
    assert "secret" not in log + answer.text


def test_an_unexpected_error_is_logged_without_its_message(start, caplog):
    running = start()

    def fail(*arguments, **options):
        try:
            raise KeyError(ASKED["query"])
        except KeyError as error:
            raise ValueError(f"cannot read {ASKED}") from error

    running.app.state.engine.run = fail
    assert running.client.post(PATH, json=ASKED).status_code == 500
    log = written(caplog)
    assert "request failed: ValueError" in log
    assert "KeyError" in log
    assert "in fail" in log
    assert "secret" not in log


def test_spans_of_failures_have_no_texts(start):
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    running = start(tracer_provider=provider)
    dated = {"query": "secretquery", "memories": [{"text": "ruby", "occurred_start": "secretdate"}]}
    assert running.client.post(PATH, json=dated).status_code == 422
    spans = [span.to_json() for span in exporter.get_finished_spans()]
    assert any("InputError" in span for span in spans)
    assert "secret" not in "".join(spans)


def test_spans_have_no_query_strings(start):
    """They name users and memories."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    running = start(tracer_provider=provider)
    assert running.client.delete("/v1/feedback?user=secretuser&tenant=secrettenant").status_code == 404
    assert running.client.get("/secretpath").status_code == 404
    (span, unknown) = exporter.get_finished_spans()
    assert (span.name, unknown.name) == ("DELETE /v1/feedback", "GET unknown")
    assert "secretuser" not in span.to_json()
    assert "secrettenant" not in span.to_json()
