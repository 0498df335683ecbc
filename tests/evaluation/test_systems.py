"""The systems that names stand for: models, HTTP rerankers and bi-encoders."""

from __future__ import annotations

import json
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import torch

from mnemorank import ArtifactError, Memory, Moment, Options, ScorerError
from mnemorank.evaluation.cache import code_digest
from mnemorank.evaluation.protocol import Question
from mnemorank.evaluation.systems import load_system
from tests.conftest import build_tokenizer

MEMORIES = [
    Memory("The cat sleeps all day", mentioned_at=Moment(2021)),
    Memory("Ruby works at Aurora Labs", mentioned_at=Moment(2024, 5)),
    Memory("Ruby worked in a bakery", mentioned_at=Moment(2024, 1)),
    Memory("Undated words about ruby stones"),
]
QUESTION = Question("q", "Where does Ruby work?", MEMORIES, Moment(2024, 6))


def test_a_model_folder_runs_with_the_pipeline_or_alone(tiny_onnx):
    pipeline, bare = load_system(str(tiny_onnx)), load_system(str(tiny_onnx), model_only=True)
    assert pipeline.fingerprint != bare.fingerprint
    question = Question(
        "q", "where does ruby work", [Memory("the cat"), Memory("ruby works at aurora labs"), Memory("ruby work")]
    )
    prediction = bare.rank(question)
    assert prediction.ranking == (2, 1, 0)
    expected = pytest.approx([1 / (1 + np.exp(1)), 0.5, 1 / (1 + np.exp(-1))])  # the raw scores are -1, 0 and 1
    assert prediction.relevance is not None
    assert prediction.relevance.tolist() == expected
    assert prediction.scores.tolist() == expected
    assert pipeline.rank(question).ranking[0] == 2


def test_the_end_of_a_query_that_is_too_long_is_used_with_and_without_the_pipeline(tiny_onnx):
    memories = [Memory("ruby works at aurora labs"), Memory("the cat")]
    long = Question("q", "where does ruby work " * 60 + "the cat", memories)
    for model_only in (False, True):
        assert load_system(str(tiny_onnx), model_only=model_only).rank(long).ranking == (1, 0)


def test_a_question_without_a_time_is_asked_on_the_newest_date_of_its_pool(tiny_onnx, monkeypatch):
    memories = [
        Memory("the trip", mentioned_at=Moment.parse(day)) for day in ("2024-03-01", "2024-03-07", "2024-03-14")
    ]
    question = Question("q", "What did I do last week?", memories)
    system = load_system(str(tiny_onnx), options=Options(recency="linear", weights={"query_dates": 2.0}))
    predictions = []
    for day in ("2024-03-08", "2026-07-21"):
        monkeypatch.setattr("mnemorank.ranking.stage.current_moment", partial(Moment.parse, day))
        predictions.append(system.rank(question))
    assert predictions[0].scores.tolist() == predictions[1].scores.tolist()
    assert predictions[0].ranking[0] == 1


def test_changing_a_folder_without_a_manifest_changes_the_fingerprint(tiny_onnx):
    before = load_system(str(tiny_onnx)).fingerprint
    (tiny_onnx / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 64, "note": 1}))
    assert load_system(str(tiny_onnx)).fingerprint != before


def test_an_unknown_name_is_an_error():
    with pytest.raises(ArtifactError, match="nope"):
        load_system("nope")


@pytest.fixture
def server():
    """A server that speaks the dialects of Cohere and TEI and scores by length."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if body["query"] == "fail":
                self.send_response(400)
                self.end_headers()
                self.wfile.write(b'{"message": "no such model"}')
                return
            texts = body.get("documents") or body["texts"]
            scored = [(i, len(text) / 100) for i, text in enumerate(texts)]
            if self.path == "/v2/rerank":
                answer = {"results": [{"index": i, "relevance_score": s} for i, s in reversed(scored)]}
            else:
                answer = [{"index": i, "score": s} for i, s in scored]
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_port}"
        httpd.shutdown()
        thread.join()


@pytest.mark.parametrize("path", ["", "/v2/rerank", "/rerank"])
def test_http_rerankers(server, path):
    scores = load_system(server + path).rank(QUESTION).scores
    assert scores.tolist() == pytest.approx([len(memory.text) / 100 for memory in MEMORIES])


def test_http_errors_are_raised(server):
    with pytest.raises(ScorerError, match="400"):
        load_system(server).rank(Question("q", "fail", MEMORIES))
    with pytest.raises(ScorerError, match=r"127\.0\.0\.1:9"):
        load_system("http://127.0.0.1:9/rerank").rank(QUESTION)


@pytest.fixture(scope="module")
def bi_encoder(tmp_path_factory):
    """A sentence-transformers folder of a tiny BERT with mean pooling and a maximum of 32 tokens."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("bi")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=build_tokenizer(), pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]", unk_token="[UNK]"
    )
    tokenizer.save_pretrained(folder / "base")
    torch.manual_seed(3)
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    BertModel(config).save_pretrained(folder / "base")
    words = Transformer(str(folder / "base"), max_seq_length=32)
    SentenceTransformer(modules=[words, Pooling(32)], device="cpu").save(str(folder / "model"))
    return folder / "model"


@pytest.mark.slow
def test_a_folder_with_a_pooling_module_is_a_bi_encoder(bi_encoder):
    for name in (str(bi_encoder), f"bi:{bi_encoder}"):
        prediction = load_system(name).rank(
            Question("q", "the cat lives in berlin", [Memory("a plan"), Memory("the cat lives in berlin")])
        )
        assert prediction.scores[1] == pytest.approx(1, abs=1e-5)
        assert prediction.scores[0] < 0.999
    assert load_system(str(bi_encoder)).fingerprint.startswith("bi-")


@pytest.mark.slow
def test_the_fingerprint_of_every_kind_of_system_includes_the_code(bi_encoder, tiny_onnx):
    """Loaders are code, too: another version may split the same file into other candidates."""
    for name in (f"bi:{bi_encoder}", str(tiny_onnx), "bm25"):
        assert code_digest() in load_system(name).fingerprint


@pytest.mark.slow
def test_a_bi_encoder_reads_long_memories_in_windows(bi_encoder):
    long = "python rust go database migration plan " * 20 + "the cat lives in berlin"
    question = Question("q", "the cat lives in berlin", [Memory(long), Memory("")])
    scores = load_system(str(bi_encoder)).rank(question).scores
    first_window = load_system(str(bi_encoder)).rank(Question("q", question.query, [Memory(long[:200])])).scores
    assert scores[0] > first_window[0]
    assert scores[1] == -1


def test_a_missing_bi_encoder_folder_is_an_error(tmp_path):
    with pytest.raises(ArtifactError, match="nothing"):
        load_system(f"bi:{tmp_path / 'nothing'}")
