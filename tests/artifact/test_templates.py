from mnemorank.artifact.hop_features import features_of
from mnemorank.artifact.templates import templates


def test_pair_has_two_segments():
    rendered = templates["pair"].render("q", "d", "")
    assert (rendered.first, rendered.second) == ("q", "d")


def test_instruct_is_the_input_of_lycheemem():
    template = templates["instruct"]
    assert template.render("q", "d", template.instruction).text == (
        "<Instruct>: Given a user query, retrieve memory snippets that answer the query\n<Query>: q\n<Document>: d"
    )


def test_yes_no_is_the_prompt_of_qwen3_reranker():
    template = templates["yes-no"]
    assert template.render("q", "d", template.instruction).text == (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
        'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
        "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n<Query>: q\n"
        "<Document>: d<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )


def test_features_is_the_input_of_multi_hop_rag_reranker():
    text = "The dam in Porto failed because Acme used weak concrete."
    rendered = templates["features"].render("Why did the dam in Porto fail?", text, "")
    assert rendered.text == (
        f"[HOP:0] [ROLE:Main_Claim] [ENT:Porto,Acme] [CAUSAL] [REASONING] Why did the dam in Porto fail? [SEP] {text}"
    )


def test_only_features_that_apply_are_written():
    features = features_of("Who won?", "it rained all day")
    assert str(features) == "[HOP:2] [ROLE:Background_Information]"


def test_at_most_three_entities_are_kept():
    assert len(features_of("x", "Ana met Bo, Cy and Di in Rome").entities) == 3
