"""Yes/no language models, compared with RerankerService and with the code of model cards."""

import dataclasses
import shutil

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from peft import LoraConfig, TaskType, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from mnemorank.artifact.resolve import load_artifact
from mnemorank.errors import ArtifactError
from mnemorank.memory.memory import Memory
from mnemorank.model.model import Model
from mnemorank.scorers import open_scorer
from mnemorank.scorers.torch.causal_lm import CausalLMScorer
from tests.helpers import tiny_models
from tests.helpers.tiny_models import QUERY, TEXTS

PREFIX = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"


def reference_scores(folder, texts, instruction=INSTRUCTION, max_length=8192, padded=True):
    """Score as RerankerService does: truncate the content, pad on the left, take exp(log_softmax)[yes]."""
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    no, yes = tokenizer.convert_tokens_to_ids("no"), tokenizer.convert_tokens_to_ids("yes")
    prefix = tokenizer.encode(PREFIX, add_special_tokens=False)
    suffix = tokenizer.encode(SUFFIX, add_special_tokens=False)
    pairs = [f"<Instruct>: {instruction}\n<Query>: {QUERY}\n<Document>: {text}" for text in texts]
    room = max_length - len(prefix) - len(suffix)
    contents = tokenizer(pairs, padding=False, truncation=True, max_length=room, return_attention_mask=False)
    inputs = {"input_ids": [prefix + ids + suffix for ids in contents["input_ids"]]}
    if padded:
        batches = [tokenizer.pad(inputs, padding=True, return_tensors="pt")]
    else:
        batches = [{"input_ids": torch.tensor([ids])} for ids in inputs["input_ids"]]
    scores = []
    for batch in batches:
        with torch.no_grad():
            last = model(**batch).logits[:, -1, :]
        scores += F.log_softmax(torch.stack([last[:, no], last[:, yes]], dim=1), dim=1)[:, 1].exp().tolist()
    return np.array(scores)


def opened(folder, **changes):
    artifact = load_artifact(folder)
    manifest = dataclasses.replace(artifact.manifest, **changes)
    scorer = open_scorer(dataclasses.replace(artifact, manifest=manifest), device="cpu")
    assert isinstance(scorer, CausalLMScorer)
    return scorer


def scores_of(scorer, texts=TEXTS, **options):
    return scorer.score(QUERY, scorer.prepare(texts), **options)


@pytest.mark.parametrize("padded", [True, False])
def test_scores_equal_those_of_reranker_service(qwen_causal, padded):
    expected = reference_scores(qwen_causal, TEXTS, padded=padded)
    assert np.ptp(expected) > 0.05
    manifest = load_artifact(qwen_causal).manifest
    assert (manifest.family, manifest.template, manifest.score_kind) == ("yes-no", "yes-no", "probability")
    np.testing.assert_allclose(scores_of(opened(qwen_causal)), expected, atol=1e-4)


def test_an_instruction_can_be_given_per_call(qwen_causal):
    expected = reference_scores(qwen_causal, TEXTS, instruction="find pets")
    assert np.abs(expected - reference_scores(qwen_causal, TEXTS)).max() > 1e-3
    np.testing.assert_allclose(scores_of(opened(qwen_causal), instruction="find pets"), expected, atol=1e-4)


def test_scores_do_not_depend_on_the_batch(qwen_causal):
    scorer = opened(qwen_causal)
    alone = np.concatenate([scores_of(scorer, [text]) for text in TEXTS])
    np.testing.assert_allclose(scores_of(scorer), alone, atol=1e-5)


def test_long_content_is_truncated_and_the_prompt_is_kept(qwen_causal):
    long = "the cat is on the mat. " * 300
    expected = reference_scores(qwen_causal, [long], max_length=400)
    np.testing.assert_allclose(scores_of(opened(qwen_causal, max_length=400), [long]), expected, atol=1e-4)


def test_a_batch_is_padded_to_its_longest_input(qwen_causal):
    scorer = opened(qwen_causal)
    batches = []
    scorer.on_batch = batches.append
    scores_of(scorer, ["yes", "no"])
    (batch,) = batches
    assert batch.padded <= batch.tokens + 2 < 512


def test_only_the_last_position_and_the_two_answers_are_computed(qwen_causal):
    scorer = opened(qwen_causal)
    shapes = []
    scorer._network.get_output_embeddings().register_forward_hook(
        lambda module, inputs, output: shapes.append((tuple(inputs[0].shape), tuple(output.shape)))
    )
    scores_of(scorer)
    assert shapes
    assert all(inputs[1] == 1 and output[2] == 2 for inputs, output in shapes)


def test_prefix_and_suffix_are_tokenized_once(qwen_causal):
    scorer = opened(qwen_causal)
    for _ in range(3):
        scores_of(scorer)
    assert scorer._writer._piece.cache_info().misses == 2


def test_scores_are_logits_if_the_manifest_says_so(qwen_causal):
    probabilities = scores_of(opened(qwen_causal))
    logits = scores_of(opened(qwen_causal, score_kind="logit"))
    np.testing.assert_allclose(np.log(probabilities / (1 - probabilities)), logits, atol=1e-4)


def test_long_memories_are_read_in_windows(qwen_causal):
    model = Model(dataclasses.replace(load_artifact(qwen_causal).manifest, max_length=300), opened(qwen_causal))
    scored = model.score(QUERY, [Memory("the cat is on the mat. " * 200 + "Ruby works at Aurora Labs now.")])
    assert np.isfinite(scored.raw).all()


def test_the_mxbai_template_equals_its_model_card(qwen_causal):
    """Pieces are tokenized separately; the score is the logit of 1 minus the logit of 0."""
    tokenizer = AutoTokenizer.from_pretrained(qwen_causal)
    model = AutoModelForCausalLM.from_pretrained(qwen_causal).eval()

    def ids(text):
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    system = "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
    task = (
        "You are a search relevance expert who evaluates how well documents match search queries. For each "
        "query-document pair, carefully analyze the semantic relationship between them, then provide your binary "
        "relevance judgment (0 for not relevant, 1 for relevant).\nRelevance:"
    )
    expected = []
    for text in TEXTS:
        tokens = ids(system + "<|im_start|>user\n") + ids(f"query: {QUERY}") + ids("\n") + ids(f"document: {text}")
        tokens += ids("\n") + ids(task) + ids("<|im_end|>\n<|im_start|>assistant\n")
        with torch.no_grad():
            last = model(torch.tensor([tokens])).logits[0, -1]
        expected.append((last[ids("1")[0]] - last[ids("0")[0]]).item())
    scorer = opened(qwen_causal, template="mxbai", score_kind="logit")
    np.testing.assert_allclose(scores_of(scorer), expected, atol=1e-4)


def test_the_gemma_template_equals_its_model_card(tmp_path):
    """The input is bos, A, B and the question; the score is the logit of Yes."""
    folder = tiny_models.gemma_causal(tmp_path / "gemma")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder).eval()

    def ids(text):
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    question = (
        "Given a query A and a passage B, determine whether the passage contains an answer to the query by providing "
        "a prediction of either 'Yes' or 'No'."
    )
    expected = []
    for text in TEXTS:
        tokens = ids(f"<bos>A: {QUERY}") + ids("\n") + ids(f"B: {text}") + ids("\n") + ids(question)
        assert tokens[0] == tokenizer.bos_token_id
        with torch.no_grad():
            expected.append(model(torch.tensor([tokens])).logits[0, -1, ids("Yes")[0]].item())
    assert np.ptp(expected) > 0.05
    assert load_artifact(folder).manifest.template == "gemma"
    np.testing.assert_allclose(scores_of(opened(folder, score_kind="logit")), expected, atol=1e-4)


def test_a_lora_adapter_on_a_language_model_is_merged(qwen_causal, tmp_path):
    settings = LoraConfig(task_type=TaskType.CAUSAL_LM, r=4, target_modules=["q_proj", "v_proj"])
    adapted = get_peft_model(AutoModelForCausalLM.from_pretrained(qwen_causal), settings)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(generator=torch.Generator().manual_seed(5))
    adapted.save_pretrained(tmp_path / "adapter")
    merged = tmp_path / "merged"
    shutil.copytree(qwen_causal, merged)
    adapted.merge_and_unload().save_pretrained(merged)
    expected = reference_scores(merged, TEXTS)
    assert np.abs(expected - reference_scores(qwen_causal, TEXTS)).max() > 1e-3
    np.testing.assert_allclose(scores_of(opened(tmp_path / "adapter")), expected, atol=1e-4)


def test_a_template_without_answers_is_an_artifact_error(qwen_causal):
    with pytest.raises(ArtifactError, match="template"):
        opened(qwen_causal, template="instruct")


def test_an_answer_of_several_tokens_is_an_artifact_error(tmp_path):
    folder = tiny_models.qwen_causal(tmp_path / "qwen", answers=False)
    with pytest.raises(ArtifactError, match=r"template.*'no'"):
        opened(folder)
