"""Remote rerankers, tested with real HTTP servers on the local host."""

import json
import logging
import threading
import time

import numpy as np
import pytest

from mnemorank._internal.deadline import Deadline
from mnemorank.artifact.resolve import load_artifact
from mnemorank.cli import main
from mnemorank.errors import ArtifactError, InputError, ScorerError
from mnemorank.memory.memory import Memory
from mnemorank.model.model import Model
from mnemorank.reranker import Reranker
from mnemorank.results import Degradation
from mnemorank.scorers.remote.address import Address
from mnemorank.scorers.remote.dialects import dialects
from tests.helpers.forking import forked
from tests.helpers.rerank_server import overlap, serving

QUERY = "where does ruby work"
TEXTS = ["ruby does work at aurora", "the cat", "ruby has a cat", "where is the work", "nothing"]
MEMORIES = [Memory(text) for text in TEXTS]
EXPECTED = [overlap(QUERY, text) for text in TEXTS]
PATHS = {"cohere": "/v2/rerank", "jina": "/v1/rerank", "voyage": "/v1/rerank", "tei": "/rerank", "vllm": "/score",
         "litellm": "/rerank"}  # fmt: skip


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch):
    for dialect in dialects:
        for variable in dialects[dialect].key_variables:
            monkeypatch.delenv(variable, raising=False)


def opened(server, dialect="tei", **options):
    return Model.load(f"{dialect}:{server.url}", **{"backoff": 0.01, **options})


def scores_of(model, **options):
    return model.score(QUERY, MEMORIES, **options).raw


def test_every_dialect_is_tested():
    assert set(dialects) == set(PATHS)


@pytest.mark.parametrize("dialect", list(PATHS))
def test_each_dialect_posts_to_its_path_and_returns_scores(dialect):
    with serving() as server:
        np.testing.assert_allclose(scores_of(opened(server, dialect)), EXPECTED)
        (request,) = server.script.requests
    assert request["path"] == PATHS[dialect]
    assert request["headers"]["Content-Type"] == "application/json"
    assert "Authorization" not in request["headers"]


def test_each_dialect_has_its_own_request_body():
    bodies = {}
    with serving() as server:
        for dialect in PATHS:
            model = Model.load(f"{dialect}:{server.url}#some-model")
            model.score("q", [Memory("a"), Memory("b")], instruction="find")
            bodies[dialect] = server.script.requests[-1]["body"]
    common = {"model": "some-model", "query": "q", "documents": ["a", "b"]}
    assert bodies == {
        "cohere": {**common, "top_n": 2, "max_tokens_per_doc": 4096},
        "jina": {**common, "top_n": 2, "return_documents": False},
        "voyage": {**common, "top_k": 2, "truncation": True},
        "litellm": {**common, "top_n": 2},
        "tei": {"query": "q", "texts": ["a", "b"], "truncate": True, "raw_scores": False, "return_text": False},
        "vllm": {"model": "some-model", "text_1": "q", "text_2": ["a", "b"], "instruction": "find"},
    }


def test_a_reranker_accepts_an_address():
    with serving() as server, Reranker(f"tei:{server.url}") as reranker:
        ranking = reranker.rerank(QUERY, TEXTS)
    assert [result.raw_score for result in ranking] == sorted(EXPECTED, reverse=True)
    assert ranking[0].relevance == pytest.approx(max(EXPECTED))
    assert ranking.scored_by == f"tei:{server.url}"
    assert ranking.degraded is None


def test_the_command_line_accepts_an_address(tmp_path, capsys):
    file = tmp_path / "memories.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    with serving() as server:
        assert not main(["rerank", QUERY, str(file), "--model", f"tei:{server.url}", "--json", "--top-k", "1"])
    assert "aurora" in capsys.readouterr().out


def test_a_manifest_configures_a_remote_model(tmp_path):
    """A folder with only a manifest sets the format, calibration and score kind of a remote model."""
    with serving(always="logits") as server:
        (tmp_path / "mnemorank.json").write_text(
            json.dumps(
                {
                    "schema": 1,
                    "name": "ours",
                    "family": "remote",
                    "base": f"vllm:{server.url}#m",
                    "format": "hindsight-2",
                    "score_kind": "logit",
                    "calibration": {"scale": 0.5, "bias": 0.0},
                }
            )
        )
        with Reranker(tmp_path) as reranker:
            (result,) = reranker.rerank(QUERY, [{"text": "ruby", "type": "world"}])
        assert server.script.requests[0]["body"]["text_2"] == ["[World] ruby"]
    assert result.raw_score == 7.5
    assert result.relevance == pytest.approx(1 / (1 + np.exp(-3.75)))


@pytest.mark.parametrize("trouble", ["429", "429:0", "500", "502", "503", "cut", "cut-mid", "malformed", "html"])
@pytest.mark.parametrize("dialect", ["tei", "cohere"])
def test_a_temporary_failure_is_retried(trouble, dialect):
    with serving(plan=[trouble, trouble]) as server:
        np.testing.assert_allclose(scores_of(opened(server, dialect)), EXPECTED)
        assert len(server.script.requests) == 3


@pytest.mark.parametrize("trouble", ["stall", "trickle", "trickle-head"])
def test_a_stalled_request_times_out_and_is_retried(trouble):
    with serving(plan=[trouble]) as server:
        started = time.monotonic()
        np.testing.assert_allclose(scores_of(opened(server, timeout=0.3)), EXPECTED)
        assert time.monotonic() - started < 3


@pytest.mark.parametrize(
    ("trouble", "message"),
    [
        ("429", "HTTP 429: try again later (3 attempts)"),
        ("500", "HTTP 500: try again later (3 attempts)"),
        ("cut", "connection closed before a response (3 attempts)"),
        ("cut-mid", "connection closed in the middle of the response (3 attempts)"),
        ("stall", "timed out (3 attempts)"),
        ("trickle", "timed out (3 attempts)"),
        ("malformed", "the response is not JSON"),
    ],
)
def test_a_lasting_failure_is_a_scorer_error(trouble, message):
    with serving(always=trouble) as server:
        with pytest.raises(ScorerError) as error:
            scores_of(opened(server, retries=2, timeout=0.3))
        assert len(server.script.requests) == 3
    assert message in str(error.value)
    assert str(error.value).startswith(f"tei:{server.url}: ")


@pytest.mark.parametrize(
    ("trouble", "message"),
    [
        ("partial", "incomplete response: 4 of 5 documents scored (4 entries)"),
        ("twice", "incomplete response: 4 of 5 documents scored (5 entries)"),
        ("beyond", "incomplete response: 4 of 5 documents scored (5 entries)"),
        ("nan", "a score that is not a number"),
        ("text", "score: expected a number, got 'high'"),
        ("nameless", "is missing"),
        ("logits", "expected scores from 0 to 1"),
        ("400", "HTTP 400"),
        ("404", "HTTP 404"),
        ("422", "HTTP 422"),
    ],
)
@pytest.mark.parametrize("dialect", ["tei", "jina", "voyage", "vllm"])
def test_an_invalid_response_is_an_error_and_not_retried(trouble, message, dialect):
    with serving(always=trouble) as server:
        with pytest.raises(ScorerError) as error:
            scores_of(opened(server, dialect))
        assert message in str(error.value)
        assert len(server.script.requests) == 1


def test_a_response_of_another_dialect_names_the_missing_field():
    with serving() as server, pytest.raises(ScorerError, match=r"vllm.*'data'"):
        scores_of(Model.load(f"vllm:{server.url}/v2/rerank"))


def test_a_refused_connection_degrades_to_the_first_stage_order():
    with serving() as server:
        address = f"tei:{server.url}"
    with Reranker(address, retries=1, backoff=0.01) as reranker:
        ranking = reranker.rerank(QUERY, TEXTS)
    assert [result.index for result in ranking] == list(range(5))
    assert ranking.scored_by is None
    assert ranking.degraded == Degradation("model_failed", f"{address}: connection refused (2 attempts)")
    assert all(result.score is None for result in ranking)


def test_retry_after_is_respected():
    with serving(plan=["429:1"]) as server:
        started = time.monotonic()
        scores_of(opened(server))
        assert 1 <= time.monotonic() - started < 4


def test_a_deadline_leaves_late_memories_unscored():
    with serving(plan=["ok", "stall"]) as server:
        model = opened(server, max_documents=2, concurrency=1)
        started = time.monotonic()
        scores = scores_of(model, deadline=Deadline(0.5))
        assert time.monotonic() - started < 2
    np.testing.assert_allclose(scores[:2], EXPECTED[:2])
    assert np.isnan(scores[2:]).all()


def test_a_deadline_holds_behind_other_calls():
    with serving(plan=["stall"], stall_seconds=1.5) as server:
        model = opened(server, concurrency=1)
        ahead = threading.Thread(target=scores_of, args=(model,))
        ahead.start()
        while not server.script.requests:
            time.sleep(0.01)
        started = time.monotonic()
        assert np.isnan(scores_of(model, deadline=Deadline(0.2))).all()
        assert time.monotonic() - started < 1.2
        server.script.released.set()
        ahead.join()


def test_a_retry_after_the_deadline_is_not_waited_for():
    with serving(always="429:20") as server:
        started = time.monotonic()
        with pytest.raises(ScorerError, match="HTTP 429"):
            scores_of(opened(server), deadline=Deadline(2))
        assert time.monotonic() - started < 1.5


def test_scores_are_kept_when_time_runs_out():
    with serving(plan=["ok", "ok"], always="429:20") as server:
        scores = scores_of(opened(server, max_documents=2, concurrency=1), deadline=Deadline(5))
    np.testing.assert_allclose(scores[:4], EXPECTED[:4])
    assert np.isnan(scores[4])


def test_a_large_pool_is_split_into_a_few_requests_at_once():
    memories = [Memory(f"ruby number {number} does {'work' if number % 3 else 'play'}") for number in range(230)]
    with serving(delay=0.02) as server:
        raw = opened(server, concurrency=3).score(QUERY, memories).raw
        sizes = sorted(len(request["body"]["texts"]) for request in server.script.requests)
        assert server.script.most_at_once == 3
    np.testing.assert_allclose(raw, [overlap(QUERY, memory.text) for memory in memories])
    assert sizes == [6, *[32] * 7]


def test_connections_are_kept_and_a_stale_one_is_replaced():
    with serving(plan=["ok", "ok"]) as server:
        model = opened(server, retries=0)
        scores_of(model)
        (kept,) = model.scorer._client._idle
        scores_of(model)
        assert model.scorer._client._idle == [kept]
        kept.sock.shutdown(2)  # as a server does to idle connections
        np.testing.assert_allclose(scores_of(model), EXPECTED)


def test_long_memories_are_sent_in_windows():
    text = "the cat sat on the mat. " * 300 + "ruby does work at aurora."
    with serving() as server:
        scored = opened(server).score(QUERY, [Memory(text)])
        assert all(len(sent) < len(text) / 2 for sent in server.script.requests[0]["body"]["texts"])
    assert scored.raw[0] == pytest.approx(overlap(QUERY, "ruby does work"))
    assert "aurora" in (scored.matched[0] or "")


def test_unusual_characters_are_transmitted():
    odd = ["lone \ud800 surrogate ruby", "emoji 🙂 ruby", "nul \x00 ruby", '"quotes" \\ ruby', "你好 ruby"]
    with serving() as server:
        raw = opened(server).score(QUERY, [Memory(text) for text in odd]).raw
    assert (raw > 0).all()


def test_a_closed_model_is_a_scorer_error():
    with serving() as server:
        model = opened(server)
        model.close()
        with pytest.raises(ScorerError, match="closed"):
            scores_of(model)


KEY = "sk-very-secret-0123456789"


@pytest.mark.parametrize("dialect", list(PATHS))
def test_the_key_comes_from_the_environment(dialect, monkeypatch):
    monkeypatch.setenv(dialects[dialect].key_variables[0], KEY)
    with serving(key=KEY) as server:
        np.testing.assert_allclose(scores_of(opened(server, dialect)), EXPECTED)


def test_the_key_is_never_shown(monkeypatch, caplog):
    """Not in errors, even if the server repeats it, nor in logs, reprs or manifests."""
    monkeypatch.setenv("COHERE_API_KEY", KEY)
    caplog.set_level(logging.DEBUG)
    shown = []
    with serving(key="another", plan=["500", "cut"]) as server:
        reranker = Reranker(f"cohere:{server.url}", backoff=0.01)
        ranking = reranker.rerank(QUERY, TEXTS)
        with pytest.raises(ScorerError) as error:
            scores_of(reranker.model)
        assert server.script.requests[0]["headers"]["Authorization"] == f"Bearer {KEY}"
    scorer = reranker.model.scorer
    shown += [
        str(error.value),
        repr(error.value),
        str(ranking.degraded),
        repr(ranking),
        repr(reranker.model),
        repr(scorer),
    ]
    shown += [repr(scorer._address), repr(vars(scorer)), repr(vars(scorer._client)), reranker.model.manifest.to_json()]
    shown += [record.getMessage() for record in caplog.records] + [caplog.text]
    assert not [text for text in shown if KEY in text]
    assert "HTTP 401: invalid api token: Bearer ***" in str(error.value)
    assert "COHERE_API_KEY or CO_API_KEY" in str(error.value)


def test_an_invalid_key_is_not_repeated(monkeypatch):
    monkeypatch.setenv("TEI_API_KEY", f"{KEY}\nX-Injected: yes")
    with serving() as server:
        with pytest.raises(ScorerError) as error:
            scores_of(opened(server))
        assert not server.script.requests
    assert KEY not in str(error.value)
    assert "TEI_API_KEY" in str(error.value)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        (f"tei:http://user:{KEY}@host", "TEI_API_KEY"),
        (f"jina:https://host/v1/rerank?api_key={KEY}", "JINA_API_KEY"),
        ("tei:", "tei: expected a URL, such as tei:http://127.0.0.1:8080"),
        ("vllm:some-model", "vllm: expected a URL"),
        ("tei:ftp://host", "expected an http or https URL with a host"),
        ("tei:http://host:99999", "expected an http or https URL with a host"),
    ],
)
def test_an_invalid_address_is_an_error_that_does_not_repeat_it(address, message):
    with pytest.raises(ArtifactError) as error:
        load_artifact(address)
    assert message in str(error.value)
    assert KEY not in str(error.value)


@pytest.mark.parametrize(
    ("text", "url", "model"),
    [
        ("cohere:rerank-v4", "https://api.cohere.com/v2/rerank", "rerank-v4"),
        ("voyage:", "https://api.voyageai.com/v1/rerank", "rerank-2.5"),
        ("tei:http://127.0.0.1:8080/", "http://127.0.0.1:8080/rerank", None),
        ("vllm:https://host/pool/score?region=eu#m", "https://host/pool/score?region=eu", "m"),
    ],
)
def test_an_address_is_parsed(text, url, model):
    address = Address.parse(text)
    assert address.url.geturl() == url
    assert address.model == model


@pytest.mark.parametrize(
    "options", [{"timeout": 0}, {"retries": -1}, {"backoff": -1}, {"concurrency": 0}, {"max_documents": -1}]
)
def test_an_invalid_option_is_named(options):
    with pytest.raises(InputError) as error:
        Model.load("tei:http://127.0.0.1:9", **options)
    assert error.value.field == next(iter(options))


def test_a_forked_process_uses_its_own_connections():
    with serving() as server:
        model = opened(server)
        expected = scores_of(model).tolist()  # opens a connection and starts a thread
        assert forked(lambda: scores_of(model).tolist()) == expected
        assert scores_of(model).tolist() == expected
