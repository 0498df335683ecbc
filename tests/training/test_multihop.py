"""The `multihop` recipe: feature tokens are trained, but the model does not rely on them alone."""

from __future__ import annotations

import random
import tomllib

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from mnemorank import Memory, Model
from mnemorank.artifact.hop_features import HOPS, ROLES, HopFeatures
from mnemorank.artifact.templates import templates
from mnemorank.data.formats import read_lists
from mnemorank.training.recipe import find_recipe, parse_recipe
from mnemorank.training.run import train
from tests.training.conftest import TOPICS, write_jsonl

TOKENS = tomllib.loads(find_recipe("multihop").read_text())["model"]["special_tokens"]


def lists(count, seed):
    """Both the features (only the relevant text is causal) and a word (`now`) give the answer away."""
    rng = random.Random(seed)
    records = []
    for number in range(count):
        labels = [1, 0, 0, 0]
        rng.shuffle(labels)
        candidates = [
            {"text": f"{rng.choice(TOPICS)} trip {'because now' if label else 'before that'}", "label": label}
            for label in labels
        ]
        records.append(
            {"id": f"{seed}-{number}", "query": f"what about the {rng.choice(TOPICS)}", "candidates": candidates}
        )
    return records


def test_every_feature_is_one_token_of_the_recipe(tiny_bert):
    tokenizer = AutoTokenizer.from_pretrained(tiny_bert)
    tokenizer.add_tokens(TOKENS, special_tokens=True)
    for hop in HOPS:
        for role in ROLES:
            pieces = tokenizer.tokenize(str(HopFeatures(hop, role, (), causal=True, reasoning=True)))
            assert pieces == [f"[HOP:{hop}]", f"[ROLE:{role}]", "[CAUSAL]", "[REASONING]"]
    assert tokenizer.tokenize("[ENT:cat]")[0] == "[ENT:"


@pytest.fixture(scope="module")
def multihop(tmp_path_factory, tiny_bert):
    folder = tmp_path_factory.mktemp("multihop")
    tables = {
        "name": "hops",
        "model": {
            "base": str(tiny_bert),
            "format": "plain",
            "template": "features",
            "max_length": 128,
            "special_tokens": TOKENS,
        },
        "features": {"drop": 0.5, "swap": 0.5},
        "train": {"epochs": 4, "learning_rate": 2e-3},
        "loss": [{"name": "bce", "options": {"pos_weight": 1.2}}],
        "data": [{"path": str(write_jsonl(folder / "one.jsonl", lists(48, 1)))}],
        "dev": {"data": [{"path": str(write_jsonl(folder / "dev.jsonl", lists(16, 3)))}]},
        "stage": [
            {"name": "multi-hop"},
            {
                "name": "factual",
                "epochs": 1,
                "learning_rate": 2e-4,
                "data": [{"path": str(folder / "one.jsonl"), "max_examples": 8}],
            },
        ],
    }
    result = train(parse_recipe(tables), folder / "out")
    return result, folder / "dev.jsonl"


@pytest.mark.slow
def test_the_model_reads_the_text_and_not_only_the_features(multihop, monkeypatch):
    """The ranking holds when all texts get the same features."""
    result, dev = multihop
    assert result.results.to_dict()["hit@1"]["trained"][0] > 0.9

    import mnemorank.artifact.templates

    model = Model.load(result.output, probe=False)
    monkeypatch.setattr(mnemorank.artifact.templates, "feature_prefix", lambda query, text: "[HOP:1] [ROLE:Main_Claim]")
    assert "[CAUSAL]" not in templates["features"].render("q", "because", "").text
    tops = [float(np.array(e.labels)[np.argmax(model.score(e.query, e.memories).raw)]) for e in read_lists(dev)]
    assert np.mean(tops) > 0.9


@pytest.mark.slow
def test_the_new_tokens_are_trained(multihop, tiny_bert):
    result, _ = multihop
    tokenizer = AutoTokenizer.from_pretrained(result.output)
    old = AutoTokenizer.from_pretrained(tiny_bert)
    before = load_file(tiny_bert / "model.safetensors")["embeddings.word_embeddings.weight"]
    after = load_file(result.output / "model.safetensors")["bert.embeddings.word_embeddings.weight"]

    assert len(after) == len(before) + len(TOKENS)
    start = before[old("[CAUSAL]", add_special_tokens=False)["input_ids"]].mean(dim=0)
    assert not torch.allclose(after[tokenizer.convert_tokens_to_ids("[CAUSAL]")], start, atol=1e-4)


@pytest.mark.slow
def test_the_snippet_of_multi_hop_rag_reranker_gives_the_same_scores(multihop):
    result, _ = multihop
    model = AutoModelForSequenceClassification.from_pretrained(result.output).eval()
    tokenizer = AutoTokenizer.from_pretrained(result.output)
    texts = ["cat trip because now", "Zenith trip before that"]
    query = "what about the cat"
    ours = Model.load(result.output, probe=False).score(query, [Memory(text) for text in texts]).raw
    for text, expected in zip(texts, ours, strict=True):
        string = templates["features"].render(query, text, "").text
        with torch.no_grad():
            score = torch.sigmoid(model(**tokenizer(string, return_tensors="pt")).logits[0, 0]).item()
        assert score == pytest.approx(1 / (1 + np.exp(-expected)), abs=1e-5)
