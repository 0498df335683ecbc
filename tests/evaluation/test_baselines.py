"""Baselines and how a name becomes a contestant."""

from __future__ import annotations

import json
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import torch

from mnemorank import ArtifactError, Memory, Moment, Options, ScorerError
from mnemorank.evaluation.baselines import Question, baselines
from mnemorank.evaluation.files import digest_of_code
from mnemorank.evaluation.systems import contestant
from mnemorank.text.bm25 import bm25
from tests.conftest import build_tokenizer

MEMORIES = [
    Memory("The cat sleeps all day", mentioned_at=Moment(2021)),
    Memory("Ruby works at Aurora Labs", mentioned_at=Moment(2024, 5)),
    Memory("Ruby worked in a bakery", mentioned_at=Moment(2024, 1)),
    Memory("Undated words about ruby stones"),
]
QUESTION = Question("q", "Where does Ruby work?", MEMORIES, Moment(2024, 6))


def best(name: str, question: Question = QUESTION) -> int:
    return contestant(name).answer(question).ranking()[0]


def test_bm25_finds_the_words_and_gives_nothing_to_the_rest():
    scores = contestant("bm25").answer(QUESTION).scores
    assert int(np.argmax(scores)) in (1, 2)
    assert scores[0] == 0


@pytest.mark.parametrize("texts", [["", ""], ["the of and", "a"], ["…"]])
def test_bm25_bears_pools_without_words(texts):
    question = Question("q", "the", [Memory(text) for text in texts])
    assert contestant("bm25").answer(question).scores.tolist() == [0.0] * len(texts)


def test_recency_puts_the_newest_first_and_the_undated_last():
    assert contestant("recency").answer(QUESTION).ranking() == [1, 2, 0, 3]


def test_first_stage_takes_given_scores_else_bm25():
    scored = Question(
        "q", "ruby", [memory.with_score(score) for memory, score in zip(MEMORIES, (1, 0, 9, None), strict=True)]
    )
    assert contestant("first-stage").answer(scored).ranking() == [2, 0, 1, 3]
    found = contestant("first-stage").answer(QUESTION).scores
    assert found.tolist() == bm25(QUESTION.query, [memory.text for memory in MEMORIES]).tolist()


def test_fusion_prefers_the_recent_among_equals():
    twins = [Memory("ruby works", mentioned_at=Moment(year)) for year in (2019, 2024, 2022)]
    assert best("fusion", Question("q", "ruby", twins, Moment(2024, 12))) == 1


def test_random_is_the_same_on_every_run_and_another_for_another_question():
    one, again = (contestant("random").answer(QUESTION).ranking() for _ in range(2))
    assert one == again
    many = {tuple(contestant("random").answer(Question(str(i), "q", MEMORIES)).ranking()) for i in range(50)}
    assert len(many) > 10


def test_random_bears_half_a_character_in_a_question_s_name():
    assert sorted(contestant("random").answer(Question("\ud800", "q", MEMORIES)).ranking()) == [0, 1, 2, 3]


def test_a_model_folder_runs_as_pipeline_or_bare(tiny_onnx):
    pipeline, bare = contestant(str(tiny_onnx)), contestant(str(tiny_onnx), model_only=True)
    assert pipeline.fingerprint != bare.fingerprint
    question = Question(
        "q", "where does ruby work", [Memory("the cat"), Memory("ruby works at aurora labs"), Memory("ruby work")]
    )
    answer = bare.answer(question)
    assert answer.ranking()[0] == 2
    assert answer.scores.tolist() == [-1, 0, 1]
    assert answer.relevance is not None
    assert answer.relevance.tolist() == pytest.approx([1 / (1 + np.exp(1)), 0.5, 1 / (1 + np.exp(-1))])
    assert pipeline.answer(question).ranking()[0] == 2


def test_a_question_too_long_for_the_model_is_read_by_its_end_alone_as_in_the_pipeline(tiny_onnx):
    memories = [Memory("ruby works at aurora labs"), Memory("the cat")]
    long = Question("q", "where does ruby work " * 60 + "the cat", memories)
    for model_only in (False, True):
        assert contestant(str(tiny_onnx), model_only=model_only).answer(long).ranking() == [1, 0]


def test_a_question_without_a_time_is_asked_on_the_newest_day_of_its_memories(tiny_onnx, monkeypatch):
    memories = [
        Memory("the trip", mentioned_at=Moment.parse(day)) for day in ("2024-03-01", "2024-03-07", "2024-03-14")
    ]
    question = Question("q", "What did I do last week?", memories)
    chosen = contestant(str(tiny_onnx), options=Options(recency="linear", weights={"query_dates": 2.0}))
    answers = []
    for day in ("2024-03-08", "2026-07-21"):
        monkeypatch.setattr("mnemorank.ranking.stage.current_moment", partial(Moment.parse, day))
        answers.append(chosen.answer(question))
    assert answers[0].scores.tolist() == answers[1].scores.tolist()
    assert answers[0].ranking()[0] == 1


def test_a_changed_folder_without_a_manifest_is_another_contestant(tiny_onnx):
    before = contestant(str(tiny_onnx)).fingerprint
    (tiny_onnx / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 64, "note": 1}))
    assert contestant(str(tiny_onnx)).fingerprint != before


def test_an_unknown_name_says_what_there_is():
    with pytest.raises(ArtifactError, match="no model 'nope'"):
        contestant("nope")


def test_every_baseline_ranks_every_memory():
    for name in baselines:
        assert sorted(contestant(name).answer(QUESTION).ranking()) == [0, 1, 2, 3]


@pytest.fixture
def server():
    """A real server that speaks Cohere's and TEI's dialects and scores by length."""

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

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as one:
        thread = threading.Thread(target=one.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{one.server_port}"
        one.shutdown()
        thread.join()


@pytest.mark.parametrize("path", ["", "/v2/rerank", "/rerank"])
def test_http_rerankers(server, path):
    found = contestant(server + path).answer(QUESTION).scores
    assert found.tolist() == pytest.approx([len(memory.text) / 100 for memory in MEMORIES])


def test_http_errors_are_not_scores(server):
    with pytest.raises(ScorerError, match=r"answered 400.*no such model"):
        contestant(server).answer(Question("q", "fail", MEMORIES))
    with pytest.raises(ScorerError, match=r"127\.0\.0\.1:9"):
        contestant("http://127.0.0.1:9/rerank").answer(QUESTION)


@pytest.fixture(scope="module")
def bi_encoder(tmp_path_factory):
    """A sentence-transformers folder of a tiny BERT with mean pooling, 32 tokens long."""
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


def test_a_bi_encoder_folder_is_known_by_its_pooling(bi_encoder):
    for name in (str(bi_encoder), f"bi:{bi_encoder}"):
        answer = contestant(name).answer(
            Question("q", "the cat lives in berlin", [Memory("a plan"), Memory("the cat lives in berlin")])
        )
        assert answer.scores[1] == pytest.approx(1, abs=1e-5)
        assert answer.scores[0] < 0.999
    assert contestant(str(bi_encoder)).fingerprint.startswith("bi-")


def test_other_code_is_another_contestant_for_every_kind(bi_encoder, tiny_onnx):
    """The loaders are code too: another version may cut the same file into other candidates."""
    for name in (f"bi:{bi_encoder}", str(tiny_onnx), "bm25"):
        assert digest_of_code() in contestant(name).fingerprint


def test_a_bi_encoder_reads_long_memories_in_windows(bi_encoder):
    long = "python rust go database migration plan " * 20 + "the cat lives in berlin"
    question = Question("q", "the cat lives in berlin", [Memory(long), Memory("")])
    scores = contestant(str(bi_encoder)).answer(question).scores
    whole = contestant(str(bi_encoder)).answer(Question("q", question.query, [Memory(long[:200])])).scores
    assert scores[0] > whole[0]
    assert scores[1] == -1


def test_a_folder_that_is_no_bi_encoder(tmp_path):
    with pytest.raises(ArtifactError, match="is not a folder"):
        contestant(f"bi:{tmp_path / 'nothing'}")
