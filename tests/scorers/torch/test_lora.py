"""LoRA adapters: merged or not, and several on one base, compared with peft."""

import gc
import json
import shutil
import threading
import weakref

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from mnemorank.artifact.resolve import load_artifact
from mnemorank.errors import ArtifactError
from mnemorank.reranker import Reranker
from mnemorank.scorers import open_scorer
from mnemorank.scorers.torch.lora import LoraScorer, SharedBase
from tests.helpers import tiny_models
from tests.helpers.tiny_models import QUERY, TEXTS

INSTRUCTION = "Given a user query, retrieve memory snippets that answer the query"


def peft_logits(base, adapter, texts=TEXTS):
    """Score as LycheeMem does: a PeftModel on a classifier with one label, no chat template."""
    tokenizer = AutoTokenizer.from_pretrained(base)
    model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=1)
    model = PeftModel.from_pretrained(model, adapter).eval()
    scores = []
    for text in texts:
        prompt = f"<Instruct>: {INSTRUCTION}\n<Query>: {QUERY}\n<Document>: {text}"
        with torch.no_grad():
            logits = model(**tokenizer(prompt, truncation=True, max_length=512, return_tensors="pt")).logits
        scores.append(logits[0, 0].item())
    return np.array(scores)


def opened(adapter, **options):
    scorer = open_scorer(load_artifact(adapter), device="cpu", **options)
    assert isinstance(scorer, LoraScorer)
    return scorer


def scores_of(scorer, texts=TEXTS):
    return scorer.score(QUERY, scorer.prepare(texts))


@pytest.mark.parametrize("merge", [False, True])
def test_scores_equal_those_of_peft(qwen_classifier, adapters, merge):
    expected = peft_logits(qwen_classifier, adapters[0])
    assert np.ptp(expected) > 0.05
    np.testing.assert_allclose(scores_of(opened(adapters[0], merge=merge)), expected, atol=1e-4)


def test_scores_do_not_depend_on_the_batch(adapters):
    scorer = opened(adapters[0])
    alone = np.concatenate([scores_of(scorer, [text]) for text in TEXTS])
    np.testing.assert_allclose(scores_of(scorer), alone, atol=1e-5)


def test_adapters_of_one_base_share_it_and_keep_their_own_scores(qwen_classifier, adapters):
    support, travel = opened(adapters[0]), opened(adapters[1])
    assert support._shared is travel._shared
    assert support._shared.adapters == 2
    expected = {id(s): peft_logits(qwen_classifier, a) for s, a in zip((support, travel), adapters, strict=True)}
    assert np.abs(expected[id(support)] - expected[id(travel)]).max() > 0.05

    failures = []

    def call(scorer):
        for _ in range(10):
            if not np.allclose(scores_of(scorer), expected[id(scorer)], atol=1e-4):
                failures.append(scorer)

    threads = [threading.Thread(target=call, args=(scorer,)) for scorer in (support, travel) * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_closing_one_adapter_keeps_the_other(qwen_classifier, adapters):
    support, travel = opened(adapters[0]), opened(adapters[1])
    support.close()
    np.testing.assert_allclose(scores_of(travel), peft_logits(qwen_classifier, adapters[1]), atol=1e-4)
    again = opened(adapters[0])
    np.testing.assert_allclose(scores_of(again), peft_logits(qwen_classifier, adapters[0]), atol=1e-4)


def test_the_base_is_freed_with_its_last_adapter(adapters, tmp_path, qwen_classifier):
    base = shutil.copytree(qwen_classifier, tmp_path / "base")
    scorers = [opened(adapter, base=str(base)) for adapter in adapters]
    base_reference = weakref.ref(scorers[0]._shared)
    for scorer in scorers:
        scorer.close()
    gc.collect()
    assert base_reference() is None
    assert not any(key[0] == base.resolve() for key in SharedBase._open)


def test_rerankers_of_two_adapters(adapters):
    """One reranker per adapter costs little, since they share the base."""
    rerankers = {path.name: Reranker(path, device="cpu", probe=False) for path in adapters}
    rankings = {name: reranker.rerank(QUERY, TEXTS) for name, reranker in rerankers.items()}
    assert {name: ranking.scored_by for name, ranking in rankings.items()} == {name: name for name in rerankers}
    assert [r.index for r in rankings["adapter-support"]] != [r.index for r in rankings["adapter-travel"]]


def test_the_base_may_be_a_path_relative_to_the_adapter(qwen_classifier, adapters, tmp_path):
    adapter = shutil.copytree(adapters[0], tmp_path / "adapter")
    shutil.copytree(qwen_classifier, adapter / "base")
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": "base"}))
    np.testing.assert_allclose(scores_of(opened(adapter)), peft_logits(qwen_classifier, adapters[0]), atol=1e-4)


def test_a_missing_base_is_named(adapters, tmp_path):
    with pytest.raises(ArtifactError, match="/nowhere/base"):
        opened(adapters[0], base="/nowhere/base")


def test_an_adapter_of_another_architecture_is_an_artifact_error(adapters, tmp_path):
    with pytest.raises(ArtifactError, match=adapters[0].name):
        opened(adapters[0], base=str(tiny_models.bert(tmp_path / "bert")))


def test_a_damaged_adapter_does_not_affect_the_others(qwen_classifier, adapters, tmp_path):
    good = opened(adapters[0])
    damaged = shutil.copytree(adapters[1], tmp_path / "damaged")
    config = json.loads((damaged / "adapter_config.json").read_text())
    (damaged / "adapter_config.json").write_text(json.dumps({**config, "r": 8}))  # the weights have rank 4
    with pytest.raises(ArtifactError, match="damaged: "):
        opened(damaged)
    np.testing.assert_allclose(scores_of(good), peft_logits(qwen_classifier, adapters[0]), atol=1e-4)
    np.testing.assert_allclose(scores_of(opened(adapters[1])), peft_logits(qwen_classifier, adapters[1]), atol=1e-4)
    assert good._shared.adapters == 2


def test_a_missing_head_is_reported_unless_the_adapter_contains_it(qwen_causal, tmp_path):
    """Qwen3-Reranker is a language model: as a classifier, its head is random unless an adapter contains one."""
    with_head = tiny_models.adapter(tmp_path / "with-head", qwen_causal, seed=3)
    assert opened(with_head).missing_weights == ()
    headless = shutil.copytree(with_head, tmp_path / "without-head")
    config = json.loads((headless / "adapter_config.json").read_text())
    (headless / "adapter_config.json").write_text(json.dumps({**config, "modules_to_save": None, "task_type": None}))
    assert opened(headless).missing_weights == ("score.weight",)


def test_pickled_adapters_are_not_loaded(adapters, tmp_path):
    folder = tmp_path / "adapter"
    shutil.copytree(adapters[0], folder)
    weights = load_file(folder / "adapter_model.safetensors")
    (folder / "adapter_model.safetensors").unlink()
    torch.save(weights, folder / "adapter_model.bin")
    with pytest.raises(ArtifactError, match="safetensors"):
        opened(folder)
