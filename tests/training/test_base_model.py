from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from mnemorank import Model
from mnemorank.artifact.resolve import load_artifact
from mnemorank.artifact.templates import templates
from mnemorank.data.formats import read_lists
from mnemorank.errors import InputError
from mnemorank.training.base_model import load_base
from mnemorank.training.network import build_network
from mnemorank.training.recipe import ModelSettings, parse_recipe
from mnemorank.training.run import train
from tests.training.conftest import write_jsonl

INSTRUCTION = templates["instruct"].instruction


def graded(path, lists_path):
    """The same queries as graded pairs, as LycheeMem trains on."""
    records = []
    for line in lists_path.read_text().splitlines():
        record = json.loads(line)
        for i, candidate in enumerate(record["candidates"]):
            label = 0.8 if candidate["label"] else 0.2 * (i % 2)
            records.append({"query": record["query"] + record["id"], "text": candidate["text"], "label": label})
    return write_jsonl(path, records)


@pytest.fixture
def lychee(tables, tmp_path, train_lists):
    tables["model"] |= {"template": "instruct", "max_length": 128}
    tables["lora"] = {"r": 16, "alpha": 32}
    tables["data"] = [{"path": str(graded(tmp_path / "graded.jsonl", train_lists)), "format": "graded"}]
    tables["loss"] = [{"name": "bce"}]
    tables["train"] |= {"epochs": 6, "learning_rate": 5e-3}
    return tables


def logits(model, tokenizer, texts):
    model.eval()
    with torch.no_grad():
        return np.array([model(**tokenizer(text, return_tensors="pt")).logits[0, 0].item() for text in texts])


def prompt(query, text):
    return f"<Instruct>: {INSTRUCTION}\n<Query>: {query}\n<Document>: {text}"


def check_with_peft(output, base_folder, dev_lists):
    """Load the adapter with peft, as LycheeMem does, on a base with a random head: the adapter must bring its own."""
    torch.manual_seed(12345)
    base = AutoModelForSequenceClassification.from_pretrained(base_folder, num_labels=1)
    tokenizer = AutoTokenizer.from_pretrained(output)
    base.config.pad_token_id = tokenizer.pad_token_id
    model = PeftModel.from_pretrained(base, output)
    ours = Model.load(output, probe=False)
    for example in list(read_lists(dev_lists))[:4]:
        expected = ours.score(example.query, example.memories).raw
        scores = logits(model, tokenizer, [prompt(example.query, memory.text) for memory in example.memories])
        np.testing.assert_allclose(scores, expected, atol=1e-4)


@pytest.mark.slow
def test_a_saved_adapter_gives_the_same_scores(lychee, tmp_path, tiny_bert, dev_lists):
    result = train(parse_recipe(lychee), tmp_path / "out")
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())

    assert result.manifest.family == "lora"
    assert {"classifier"} <= set(config["modules_to_save"])
    assert not (tmp_path / "out" / "model.safetensors").exists()
    assert result.results.to_dict()["map"]["trained"][0] > 0.9  # impossible with a frozen head
    average_precision = result.results.trained["map"]
    scores = [Model.load(tmp_path / "out", probe=False).score(e.query, e.memories).raw for e in read_lists(dev_lists)]
    top = [float(np.array(e.labels)[np.argmax(raw)]) for e, raw in zip(read_lists(dev_lists), scores, strict=True)]
    assert np.mean(top) >= np.mean(average_precision == 1)
    check_with_peft(tmp_path / "out", tiny_bert, dev_lists)


def test_a_decoder_without_a_padding_token_can_be_a_base(lychee, tmp_path, tiny_causal, dev_lists):
    """LycheeMem's base is a language model with a `score` head, whose padding token may be missing."""
    lychee["model"] |= {"base": str(tiny_causal), "max_length": 256}
    lychee["train"]["epochs"] = 1
    train(parse_recipe(lychee), tmp_path / "out")

    assert json.loads((tmp_path / "out" / "adapter_config.json").read_text())["modules_to_save"].count("score")
    assert AutoTokenizer.from_pretrained(tmp_path / "out").pad_token == "<|endoftext|>"
    check_with_peft(tmp_path / "out", tiny_causal, dev_lists)


@pytest.mark.slow
def test_a_merged_adapter_gives_the_same_scores(lychee, tmp_path, dev_lists):
    lychee["train"]["epochs"] = 1
    train(parse_recipe(lychee), tmp_path / "adapter")
    lychee["lora"]["merge"] = True
    train(parse_recipe(lychee), tmp_path / "merged")

    assert load_artifact(tmp_path / "merged").manifest.family == "torch"
    one, two = (Model.load(tmp_path / name, probe=False) for name in ("adapter", "merged"))
    for example in list(read_lists(dev_lists))[:4]:
        first, second = (model.score(example.query, example.memories).raw for model in (one, two))
        np.testing.assert_allclose(first, second, atol=1e-4)


def test_an_unknown_target_is_an_error(lychee, tmp_path):
    lychee["lora"]["targets"] = ["q_proj"]
    with pytest.raises(InputError, match="dense, key") as caught:
        train(parse_recipe(lychee), tmp_path / "out")
    assert caught.value.field == "lora.targets"


def test_the_score_is_the_difference_of_the_logits_of_yes_and_no(tiny_causal):
    settings = ModelSettings(base=str(tiny_causal), kind="yes-no", template="yes-no", max_length=256)
    base = load_base(settings, seed=1)
    network = build_network(base.model, base.tokenizer, templates["yes-no"]).eval()
    from mnemorank.artifact.manifest import Manifest
    from mnemorank.scorers.encoding import InputWriter
    from mnemorank.scorers.protocol import Pair

    writer = InputWriter(base.inference_tokenizer(), Manifest("x", template="yes-no", max_length=256))
    passages = writer.prepare(["ruby works at aurora labs", "a cat", "the dentist visit in march 2024 was on a trip"])
    inputs = writer.write([Pair("where does ruby work", passage) for passage in passages])
    model = AutoModelForCausalLM.from_pretrained(tiny_causal).eval()
    yes, no = (base.tokenizer.convert_tokens_to_ids(word) for word in ("yes", "no"))
    with torch.no_grad():
        full = [model(torch.tensor(entry.ids)[None]).logits[0, -1] for entry in inputs]
        np.testing.assert_allclose(
            network.scores(inputs).numpy(), [float(row[yes] - row[no]) for row in full], atol=1e-5
        )


@pytest.mark.slow
@pytest.mark.parametrize("merge", [True, False])
def test_a_language_model_learns_to_answer(tables, tmp_path, tiny_causal, dev_lists, merge):
    tables["model"] |= {"base": str(tiny_causal), "kind": "yes-no", "template": "yes-no", "max_length": 384}
    tables["lora"] = {"r": 8, "alpha": 16, "targets": ["q_proj", "v_proj", "down_proj"], "merge": merge}
    tables["loss"] = [{"name": "bce"}]
    tables["train"] |= {"epochs": 2, "learning_rate": 5e-3}
    result = train(parse_recipe(tables), tmp_path / "out")

    assert result.manifest.family == "yes-no"
    assert (tmp_path / "out" / "adapter_config.json").exists() == (not merge)
    model = Model.load(tmp_path / "out", probe=False)
    metrics = result.results.to_dict()["map"]
    tops = [float(np.array(e.labels)[np.argmax(model.score(e.query, e.memories).raw)]) for e in read_lists(dev_lists)]
    assert np.mean(tops) == pytest.approx(result.results.to_dict()["hit@1"]["trained"][0], abs=0.051)
    assert metrics["trained"][0] >= metrics["base"][0]


def test_pickled_weights_are_not_a_base(bert, tmp_path):
    folder = tmp_path / "base"
    shutil.copytree(bert, folder)
    network = AutoModelForSequenceClassification.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    torch.save(network.state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(InputError, match="safetensors") as error:
        load_base(ModelSettings(base=str(folder)), seed=1)
    assert error.value.field == "model.base"
