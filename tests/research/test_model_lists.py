"""Lists that are made with a model: hard negatives, best excerpts, and distillation."""

from __future__ import annotations

import gzip
import json
import random

import best_excerpts
import distillation
import hard_negatives
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from mnemorank.memory.memory import Memory
from mnemorank.model.model import Model

WORDS = "cat tea boat work city rain song bread moved sleeps Ruby at Zenith Aurora".split()
NEGATIVES = [" ".join(WORDS[n:] + WORDS[:n]) for n in range(len(WORDS))]


@pytest.fixture
def make_hard(tmp_path, tiny_onnx, monkeypatch):
    """Makes lists of one query, with other limits."""
    monkeypatch.setattr(hard_negatives, "SAMPLES", {"questions": 5})

    def make(query="Where does Ruby work?", **limits):
        for name, value in {"DOUBTFUL_MARGIN": 1e9, "SIMILAR": len(NEGATIVES), **limits}.items():
            monkeypatch.setattr(hard_negatives, name, value)
        candidates = [{"text": "Ruby works at Zenith.", "label": 1}, *({"text": t, "label": 0} for t in NEGATIVES)]
        with gzip.open(tmp_path / "questions.jsonl.gz", "wt") as stream:
            stream.write(json.dumps({"query": query, "candidates": candidates}) + "\n")
        return hard_negatives.make(tmp_path, tmp_path, str(tiny_onnx), random.Random(1))

    return make


def test_hard_negatives_are_those_that_the_model_ranks_highest(make_hard, tiny_onnx):
    (made,) = make_hard(NEGATIVES=4)
    scores = Model.load(tiny_onnx).score(made.query, [Memory(text) for text in NEGATIVES]).raw
    best = sorted(range(len(NEGATIVES)), key=lambda i: -scores[i])[:4]
    assert [each["text"] for each in made.negatives] == [NEGATIVES[i] for i in best]
    assert [each["text"] for each in made.positives] == ["Ruby works at Zenith."]


def test_only_some_negatives_are_scored(make_hard):
    (made,) = make_hard(SIMILAR=2, OTHERS=1)
    assert len(made.negatives) == 3


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param({"EASY_MARGIN": -1e9, "EASY_SHARE": 0}, id="easy"),
        pytest.param({"DOUBTFUL_MARGIN": -1e9, "GOOD_SCORE": -1e9}, id="doubtful"),
        pytest.param({"query": "Ruby " * 90}, id="too-long"),
    ],
)
def test_easy_doubtful_and_long_queries_are_dropped(make_hard, limits):
    assert make_hard(**limits) == []


POSITIVE = (
    "The house by the river is very old.",
    "Ruby moved to Porto in the spring.",
    "Her cats like the garden there.",
)
NEGATIVE = ("Max stayed where he was born.", "Ruby wrote to him every single week.", "He never answered any of it.")


@pytest.fixture
def make_excerpts(tmp_path, tiny_onnx, monkeypatch):
    """Makes lists of excerpts of one query, with other limits."""
    monkeypatch.setattr(best_excerpts, "SAMPLES", {"questions": 5})

    def make(*negatives, query="Where did Ruby move, to Porto?", **limits):
        defaults = {"LOWEST_SCORE": -1e9, "DOUBTFUL_MARGIN": 1e9, "EASY_MARGIN": 1e9}
        for name, value in {**defaults, **limits}.items():
            monkeypatch.setattr(best_excerpts, name, value)
        texts = [" ".join(POSITIVE), *negatives]
        candidates = [{"text": t, "occurred_start": "2024-05", "label": int(t is texts[0])} for t in texts]
        with gzip.open(tmp_path / "questions.jsonl.gz", "wt") as stream:
            stream.write(json.dumps({"query": query, "candidates": candidates}) + "\n")
        return best_excerpts.make(tmp_path, tmp_path, str(tiny_onnx), random.Random(1))

    return make


def test_each_text_is_represented_by_the_excerpt_that_the_model_scores_highest(make_excerpts, tiny_onnx):
    (made,) = make_excerpts(" ".join(NEGATIVE), "Porto is a town.")

    def best(*excerpts):
        return excerpts[Model.load(tiny_onnx).score(made.query, [Memory(text) for text in excerpts]).raw.argmax()]

    (positive,) = made.positives
    assert positive["text"] == best(" ".join(POSITIVE[:2]), " ".join(POSITIVE[1:]))
    misleading = best(" ".join(NEGATIVE[:2]), " ".join(NEGATIVE[1:]))
    assert {each["text"] for each in made.negatives} == {misleading, "Porto is a town."}
    assert {each["occurred_start"] for each in (positive, *made.negatives)} == {"2024-05"}


def test_no_excerpt_is_both_positive_and_negative(make_excerpts):
    (made,) = make_excerpts(" ".join([*POSITIVE, "It rains there all the year round."]), " ".join(NEGATIVE))
    assert made.positives[0]["text"] not in {each["text"] for each in made.negatives}


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param({"LOWEST_SCORE": 1e9}, id="no-answer-found"),
        pytest.param({"DOUBTFUL_MARGIN": -1e9}, id="doubtful"),
        pytest.param({"EASY_MARGIN": -1e9, "EASY_SHARE": 0}, id="easy"),
        pytest.param({"query": "Ruby " * 90}, id="too-long"),
    ],
)
def test_unclear_easy_and_long_queries_give_no_excerpts(make_excerpts, limits):
    assert make_excerpts(" ".join(NEGATIVE), **limits) == []


def test_a_query_without_negatives_gives_no_excerpts(make_excerpts):
    assert make_excerpts() == []


def test_the_score_of_a_teacher_is_its_late_interaction(tiny_bert):
    record = {
        "query": "where does ruby work",
        "candidates": [
            {"text": "ruby work at aurora", "label": 1.0, "type": "world"},
            {"text": "the cat", "label": 0.0},
            {"text": "where does ruby work", "label": 0.0},
        ],
    }
    (made,) = distillation.add_scores([record], distillation.Encoder(str(tiny_bert)))
    tokenizer, model = AutoTokenizer.from_pretrained(tiny_bert), AutoModel.from_pretrained(tiny_bert).eval()

    def unit_vectors(text):
        with torch.inference_mode():
            vectors = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0, 1:-1]
        return vectors / vectors.norm(dim=-1, keepdim=True)

    similarity = unit_vectors(record["query"]) @ unit_vectors("ruby work at aurora").T
    (positive,) = made.positives
    assert positive["teacher_score"] == pytest.approx(40 * similarity.max(dim=1).values.mean().item() + 2, abs=0.05)
    assert positive["type"] == "world"
    assert made.negatives[1]["teacher_score"] == pytest.approx(40, abs=0.05)
    assert made.candidates()[0]["label"] == 1
