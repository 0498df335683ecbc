import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from mnemorank import ArtifactError, InputError, ScorerError
from mnemorank._internal.deadline import Deadline
from mnemorank.artifact.resolve import load_artifact
from mnemorank.scorers.onnx import OnnxScorer

QUERY = "where does ruby work now"
POOL = ["ruby works at aurora labs", "the cat", "ruby does work", "a", "now now now ruby in berlin " * 3, "zenith"]


@pytest.fixture(scope="module")
def scorer(tiny_onnx):
    two_threads = OnnxScorer(load_artifact(tiny_onnx), threads=2, token_budget=40)
    yield two_threads
    two_threads.close()


def test_scores_equal_onnxruntime_one_pair_at_a_time(scorer, tiny_onnx):
    """As the Hindsight reranker does it: three int64 inputs, one pair at a time."""
    tokenizer = Tokenizer.from_file(str(tiny_onnx / "tokenizer.json"))
    session = ort.InferenceSession(str(tiny_onnx / "model.onnx"))
    expected = []
    for text in POOL:
        pair = tokenizer.encode(QUERY, text)
        feed = {"input_ids": pair.ids, "attention_mask": pair.attention_mask, "token_type_ids": pair.type_ids}
        (logits,) = session.run(["logits"], {name: np.array([ids], dtype=np.int64) for name, ids in feed.items()})
        expected.append(logits[0, 0])
    np.testing.assert_allclose(scorer.score(QUERY, scorer.prepare(POOL)), expected, atol=1e-6)


@given(st.permutations(POOL), st.integers(20, 500))
@settings(max_examples=20, deadline=None)
def test_scores_do_not_depend_on_the_batch(scorer, pool, budget):
    alone = {text: scorer.score(QUERY, scorer.prepare([text]))[0] for text in POOL}
    scorer.token_budget = budget
    together = scorer.score(QUERY, scorer.prepare(pool))
    np.testing.assert_allclose(together, [alone[text] for text in pool], atol=1e-6)


def test_scores_of_the_bundled_model_do_not_depend_on_the_batch():
    scorer = OnnxScorer(load_artifact("mini"))
    alone = [scorer.score(QUERY, scorer.prepare([text]))[0] for text in POOL]
    np.testing.assert_allclose(scorer.score(QUERY, scorer.prepare(POOL)), alone, atol=1e-4)
    np.testing.assert_allclose(scorer.score(QUERY, scorer.prepare(POOL[::-1])), alone[::-1], atol=1e-4)


def test_concurrent_calls_agree(scorer):
    passages = scorer.prepare(POOL)
    expected = scorer.score(QUERY, passages)
    with ThreadPoolExecutor(8) as threads:
        for scores in threads.map(lambda _: scorer.score(QUERY, passages), range(64)):
            np.testing.assert_array_equal(scores, expected)


def test_an_expired_deadline_scores_nothing_and_a_distant_one_everything(scorer):
    passages = scorer.prepare(POOL)
    assert np.isnan(scorer.score(QUERY, passages, deadline=Deadline(-1))).all()
    scores = scorer.score(QUERY, passages, deadline=Deadline(60))
    np.testing.assert_allclose(scores, scorer.score(QUERY, passages), atol=1e-6)


def test_room_is_the_input_length_without_query_and_special_tokens(scorer):
    assert scorer.room("cat") == 64 - 3 - 1
    with pytest.raises(InputError, match=r"query.*64"):
        scorer.room("cat " * 70)


def test_an_input_that_is_too_long_is_an_error(scorer):
    with pytest.raises(ScorerError, match="64"):
        scorer.score(QUERY, scorer.prepare(["cat " * 100]))


@pytest.mark.parametrize("option", ["threads", "token_budget"])
def test_an_invalid_option_is_named(tiny_onnx, option):
    with pytest.raises(InputError) as error:
        OnnxScorer(load_artifact(tiny_onnx), **{option: 0})
    assert error.value.field == option


def test_the_instruct_template_is_one_segment(tiny_onnx):
    artifact = load_artifact(tiny_onnx)
    scorer = OnnxScorer(replace(artifact, manifest=replace(artifact.manifest, template="instruct", max_length=400)))
    # The overlap model counts words of the second segment, and there is none.
    assert scorer.score("ruby", scorer.prepare(["ruby"]))[0] == -1


def test_an_unknown_model_input_is_an_artifact_error(tiny_onnx, tmp_path):
    folder = tmp_path / "odd"
    shutil.copytree(tiny_onnx, folder)
    model = onnx.load(str(folder / "model.onnx"))
    extra = onnx.helper.make_tensor_value_info("pixels", onnx.TensorProto.FLOAT, [1])
    model.graph.input.append(extra)
    onnx.save(model, str(folder / "model.onnx"))
    with pytest.raises(ArtifactError, match="pixels"):
        OnnxScorer(load_artifact(folder))
