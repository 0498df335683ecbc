"""Sequence classifiers on torch, compared with transformers."""

import dataclasses

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from mnemorank._internal.deadline import Deadline
from mnemorank.artifact.hop_features import feature_prefix
from mnemorank.artifact.resolve import load_artifact
from mnemorank.errors import ArtifactError, InputError, ScorerError
from mnemorank.memory.memory import Memory
from mnemorank.model.model import Model
from mnemorank.reranker import Reranker
from mnemorank.scorers import open_scorer
from mnemorank.scorers.protocol import Pair, PairScorer
from mnemorank.scorers.torch.classifier import ClassifierScorer
from tests.helpers import tiny_models
from tests.helpers.tiny_models import QUERY, TEXTS


def pair_logits(folder, query, texts):
    """Score one pair at a time, as model cards do."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        return np.array([model(**tokenizer(query, text, return_tensors="pt")).logits[0].tolist() for text in texts])


def text_logits(folder, texts):
    """Score one text at a time, for models that read a single segment."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        return np.array([model(**tokenizer(text, return_tensors="pt")).logits[0, 0].item() for text in texts])


def scorer_of(folder, template=None, **options):
    artifact = load_artifact(folder)
    if template:
        manifest = dataclasses.replace(artifact.manifest, template=template)
        artifact = dataclasses.replace(artifact, manifest=manifest)
    return open_scorer(artifact, device="cpu", **options)


def scores_of(scorer, query=QUERY, texts=TEXTS, **options):
    return scorer.score(query, scorer.prepare(texts), **options)


@pytest.mark.parametrize("build", [tiny_models.bert, tiny_models.deberta, tiny_models.xlm_r, tiny_models.modern_bert])
def test_a_cross_encoder_scores_as_transformers_does(build, tmp_path):
    folder = build(tmp_path / "model")
    expected = pair_logits(folder, QUERY, TEXTS)[:, 0]
    assert np.ptp(expected) > 0.05, "the tiny model must score the texts differently"
    scorer = scorer_of(folder, "pair")
    assert isinstance(scorer, ClassifierScorer)
    np.testing.assert_allclose(scores_of(scorer), expected, atol=1e-4)


def test_two_classes_give_the_log_odds_of_the_second(tmp_path):
    folder = tiny_models.bert(tmp_path / "model", labels=2)
    logits = pair_logits(folder, QUERY, TEXTS)
    np.testing.assert_allclose(scores_of(scorer_of(folder)), logits[:, 1] - logits[:, 0], atol=1e-4)


def test_more_than_two_classes_are_an_artifact_error(tmp_path):
    with pytest.raises(ArtifactError, match="got 3"):
        scorer_of(tiny_models.bert(tmp_path / "model", labels=3))


def test_a_multi_hop_model_reads_its_features(deberta):
    strings = [f"{feature_prefix(QUERY, text)} {QUERY} [SEP] {text}" for text in TEXTS]
    tokens = AutoTokenizer.from_pretrained(deberta).tokenize(strings[0])
    assert "[HOP:0]" in tokens
    assert "[ROLE:Main_Claim]" in tokens
    expected = text_logits(deberta, strings)
    assert load_artifact(deberta).manifest.template == "features", "inferred from its added tokens"
    np.testing.assert_allclose(scores_of(scorer_of(deberta)), expected, atol=1e-4)


def test_a_text_full_of_names_still_fits_the_feature_template(deberta):
    text = "Anneliese Oberhauser-Wittgenstein met Bartholomew Featherstonehaugh in Llanfairpwllgwyngyll. " * 20
    manifest = dataclasses.replace(load_artifact(deberta).manifest, template="features")
    model = Model(manifest, scorer_of(deberta, "features"))
    assert np.isfinite(model.score(QUERY, [Memory(text)]).raw).all()


def test_a_qwen3_classifier_reads_the_instruct_template_and_pads_with_eos(qwen_classifier):
    instruction = "Given a user query, retrieve memory snippets that answer the query"
    assert AutoTokenizer.from_pretrained(qwen_classifier).pad_token is None
    strings = [f"<Instruct>: {instruction}\n<Query>: {QUERY}\n<Document>: {text}" for text in TEXTS]
    expected = text_logits(qwen_classifier, strings)
    assert np.ptp(expected) > 0.05
    scorer = scorer_of(qwen_classifier)
    assert load_artifact(qwen_classifier).manifest.template == "instruct"
    np.testing.assert_allclose(scores_of(scorer), expected, atol=1e-4)


def test_an_instruction_can_be_given_per_call(qwen_classifier):
    strings = [f"<Instruct>: find pets\n<Query>: {QUERY}\n<Document>: {text}" for text in TEXTS]
    expected = text_logits(qwen_classifier, strings)
    np.testing.assert_allclose(scores_of(scorer_of(qwen_classifier), instruction="find pets"), expected, atol=1e-4)


@pytest.mark.parametrize("build", [tiny_models.bert, tiny_models.deberta, tiny_models.xlm_r, tiny_models.modern_bert])
def test_scores_do_not_depend_on_the_batch(build, tmp_path):
    scorer = scorer_of(build(tmp_path / "model"))
    texts = TEXTS * 3
    alone = np.concatenate([scores_of(scorer, texts=[text]) for text in texts])
    np.testing.assert_allclose(scores_of(scorer, texts=texts), alone, atol=1e-5)
    np.testing.assert_allclose(scores_of(scorer, texts=texts, deadline=Deadline(60)), alone, atol=1e-5)


def test_a_small_budget_makes_small_batches(bert):
    scorer = scorer_of(bert, token_budget=100)
    sizes = []
    scorer.on_batch = sizes.append
    np.testing.assert_allclose(scores_of(scorer), scores_of(scorer_of(bert)), atol=1e-5)
    assert len(sizes) > 1
    assert sum(batch.pairs for batch in sizes) == len(TEXTS)
    assert all(batch.padded <= 100 or batch.pairs == 1 for batch in sizes)


def test_pairs_of_different_queries_share_batches(bert):
    scorer = scorer_of(bert)
    assert isinstance(scorer, PairScorer)
    passages = scorer.prepare(TEXTS)
    pairs = [Pair(query, passage) for query in (QUERY, "who has a cat") for passage in passages]
    expected = np.concatenate([scorer.score(query, passages) for query in (QUERY, "who has a cat")])
    np.testing.assert_allclose(scorer.score_pairs(pairs), expected, atol=1e-5)


def test_nothing_is_scored_after_the_deadline(bert):
    scores = scores_of(scorer_of(bert), deadline=Deadline(-1))
    assert np.isnan(scores).all()


def test_long_memories_are_read_in_windows(bert):
    model = Model.load(bert, device="cpu", probe=False)
    scored = model.score("where does ruby work", [Memory("the cat is on the mat. " * 200 + "ruby works at aurora.")])
    assert np.isfinite(scored.raw).all()
    assert scored.matched[0] is not None


def test_a_reranker_accepts_a_torch_folder(bert):
    with Reranker(bert, device="cpu", probe=False) as reranker:
        ranking = reranker.rerank(QUERY, TEXTS)
    expected = pair_logits(bert, QUERY, TEXTS)[:, 0]
    assert [result.raw_score for result in ranking] == pytest.approx(sorted(expected, reverse=True), abs=1e-4)
    assert ranking.scored_by == "bert"


def test_a_closed_model_degrades_to_the_first_stage_order(bert):
    reranker = Reranker(bert, device="cpu", probe=False)
    reranker.close()
    reranker.close()
    ranking = reranker.rerank(QUERY, TEXTS)
    assert [result.index for result in ranking] == list(range(len(TEXTS)))
    assert ranking.degraded.kind == "model_failed"


def test_a_failing_network_is_a_scorer_error(bert):
    scorer = scorer_of(bert)
    with torch.no_grad():
        scorer._network.classifier.weight.fill_(float("nan"))
    with pytest.raises(ScorerError, match="not a number"):
        scores_of(scorer)
    scorer._network.bert.embeddings.word_embeddings = torch.nn.Embedding(3, 32)  # ids are now out of range
    with pytest.raises(ScorerError, match="scoring failed"):
        scores_of(scorer)


def test_bfloat16_scores_are_close(bert):
    np.testing.assert_allclose(scores_of(scorer_of(bert, dtype="bfloat16")), scores_of(scorer_of(bert)), atol=0.15)


@pytest.mark.parametrize(
    "options",
    [{"device": "warp9"}, {"dtype": "int3"}, {"token_budget": 0}, {"threads": 0}],
    ids=lambda o: next(iter(o)),
)
def test_an_invalid_option_is_named(bert, options):
    with pytest.raises(InputError) as error:
        open_scorer(load_artifact(bert), **options)
    assert error.value.field == next(iter(options))


def test_a_damaged_weights_file_is_an_artifact_error(tmp_path):
    folder = tiny_models.bert(tmp_path / "model")
    (folder / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(ArtifactError, match="model: "):
        scorer_of(folder)


def test_pickled_weights_are_not_loaded(tmp_path):
    folder = tiny_models.bert(tmp_path / "model")
    network = AutoModelForSequenceClassification.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    torch.save(network.state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(ArtifactError, match="safetensors"):
        scorer_of(folder)


def test_a_missing_tokenizer_is_an_artifact_error(tmp_path):
    folder = tiny_models.bert(tmp_path / "model")
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(ArtifactError, match=r"tokenizer\.json"):
        scorer_of(folder)


def test_a_folder_saved_by_sentence_transformers_is_loaded(bert, tmp_path):
    encoder = CrossEncoder(str(bert), device="cpu")
    encoder.save_pretrained(str(tmp_path / "saved"))
    expected = encoder.predict([(QUERY, text) for text in TEXTS], activation_fn=torch.nn.Identity())
    np.testing.assert_allclose(scores_of(scorer_of(tmp_path / "saved")), expected, atol=1e-4)


@pytest.mark.parametrize(
    ("option", "expected"), [("thread", "device, dtype, threads, token_budget"), ("merge", "device, dtype")]
)
def test_an_unknown_option_is_named_with_those_of_the_family(bert, option, expected):
    with pytest.raises(InputError, match=expected) as error:
        open_scorer(load_artifact(bert), **{option: 1})
    assert (error.value.field, error.value.code) == (option, "unknown")
