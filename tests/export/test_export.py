from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from tokenizers import Tokenizer

from mnemorank.artifact.manifest import write_manifest
from mnemorank.artifact.resolve import load_artifact
from mnemorank.cli import main
from mnemorank.data.sources import read_examples
from mnemorank.errors import ArtifactError, ConflictError, InputError
from mnemorank.export.exporter import Parity, ParityError, export
from mnemorank.memory.memory import Memory
from mnemorank.model.model import Model
from tests.export.conftest import count_weights, save_tokenizer, spread, write_model
from tests.training.conftest import write_causal

QUERY = "where does ruby work now"
TEXTS = [
    "ruby works at aurora labs",
    "the cat",
    "ruby worked at zenith before berlin",
    "who moved to lisbon in march 2024",
]


@pytest.fixture(scope="module", params=["none", "int8", "int8-static", "int4"])
def exported(request, trained, dev_file, tmp_path_factory):
    output = tmp_path_factory.mktemp("exported") / request.param
    return export(trained, output, request.param, dev=list(read_examples(dev_file)), tolerance=1.0)


def scores_alone_and_together(folder: Path) -> tuple[list[float], list[float]]:
    model = Model.load(folder)
    memories = [Memory(text) for text in TEXTS]
    together = list(model.score(QUERY, memories).raw)
    alone = [float(model.score(QUERY, [memory]).raw[0]) for memory in memories]
    model.close()
    return alone, together


def test_scores_do_not_depend_on_the_batch(exported):
    alone, together = scores_alone_and_together(exported.path)
    np.testing.assert_allclose(alone, together, atol=1e-5)


def test_the_snippet_of_the_hindsight_reranker_runs_on_the_folder(exported):
    tokenizer = Tokenizer.from_file(str(exported.path / "tokenizer.json"))
    assert tokenizer.truncation is None
    assert tokenizer.padding is None
    session = ort.InferenceSession(str(exported.path / "model.onnx"))
    encoded = tokenizer.encode(QUERY, TEXTS[0])
    logits = session.run(
        None,
        {
            "input_ids": np.array([encoded.ids], dtype=np.int64),
            "attention_mask": np.array([encoded.attention_mask], dtype=np.int64),
            "token_type_ids": np.array([encoded.type_ids], dtype=np.int64),
        },
    )[0]
    assert logits.shape == (1, 1)
    model = Model.load(exported.path)
    np.testing.assert_allclose(logits[0, 0], model.score(QUERY, [Memory(TEXTS[0])]).raw[0], atol=1e-5)


def test_the_manifest_is_kept_and_describes_the_export(exported, trained):
    before, after = load_artifact(trained).manifest, load_artifact(exported.path).manifest
    load_artifact(exported.path).verify()
    for name in ("name", "version", "format", "template", "max_length", "calibration", "recipe"):
        assert getattr(after, name) == getattr(before, name)
    assert after.family == "onnx"
    assert after.quantization in {"none": "none", "int8": "int8-dynamic", "int4": "int4-weights"}.get(
        exported.path.name, "int8-static"
    )
    assert after.evaluation["dev"] == {"map": 0.5}
    assert sorted(after.files) == ["config.json", "model.onnx", "tokenizer.json"]
    parity = after.evaluation["parity"]
    assert parity["graph_difference"] < 1e-4
    assert parity["megabytes"] == pytest.approx((exported.path / "model.onnx").stat().st_size / 1e6, abs=1e-3)
    assert {"latency_ratio", "max_difference", "mean_difference", "rank_correlation", "metric_before"} <= set(parity)


def test_scores_are_close_to_those_of_the_trained_model(exported, trained):
    expected = Model.load(trained, probe=False)
    got = Model.load(exported.path)
    memories = [Memory(text) for text in TEXTS]
    difference = np.abs(expected.score(QUERY, memories).raw - got.score(QUERY, memories).raw).max()
    assert difference <= 3 * (exported.parity.max_difference + 1e-4)
    assert exported.parity.rank_correlation > {"none": 0.9999, "int4": 0.6}.get(exported.path.name, 0.97)


@pytest.mark.parametrize("names", [["input_ids", "attention_mask"], ["input_ids", "token_type_ids", "attention_mask"]])
def test_segment_ids_are_used_as_in_the_trained_model(trained, tmp_path, names):
    folder = shutil.copytree(trained, tmp_path / "model")
    save_tokenizer(folder, names)
    write_manifest(folder, load_artifact(folder).manifest)
    written = export(folder, tmp_path / "out", "none")
    expected, got = (
        Model.load(path, probe=False).score(QUERY, [Memory(text) for text in TEXTS]).raw
        for path in (folder, written.path)
    )
    np.testing.assert_allclose(got, expected, atol=1e-4)


def test_weights_have_the_number_of_bits_of_the_quantization(exported):
    bits = count_weights(exported.path / "model.onnx")
    if exported.path.name == "none":
        assert set(bits) == {32}
    elif exported.path.name == "int4":
        # Two fused layers of 8192 weights, and the 6144 of the last layer that are products of their own.
        assert bits[4] >= 2 * 8192 + 6144
    else:
        assert bits[8] > 5 * bits[32]


def test_a_drop_in_quality_beyond_the_tolerance_is_an_error(trained, dev_file, tmp_path):
    dev = list(read_examples(dev_file))
    broken = tmp_path / "broken"
    shutil.copytree(trained, broken)
    good = export(broken, tmp_path / "out", "none", dev=dev)
    with pytest.raises(InputError) as caught:
        export(broken, tmp_path / "out", "none", dev=dev, tolerance=float("nan"))
    assert caught.value.field == "tolerance"
    worse = type(good.parity)(**{**good.parity.to_dict(), "metric_before": 0.9, "metric_after": 0.87})
    worse.check(0.03 + 1e-9)
    with pytest.raises(ParityError, match=r"0\.0300 .*0\.02"):
        worse.check(0.02)
    with pytest.raises(ParityError, match="nan"):
        type(good.parity)(**{**good.parity.to_dict(), "metric_after": math.nan}).check(1.0)
    assert load_artifact(tmp_path / "out").manifest.quantization == "none"


@pytest.mark.parametrize("name", ["graph_difference", "max_difference"])
def test_a_difference_that_is_not_finite_is_an_error(name):
    differences = {"graph_difference": 0.0, "max_difference": 0.1, "mean_difference": 0.1, "rank_correlation": 1.0}
    sizes = {"pairs": 1, "megabytes_before": 1.0, "megabytes": 1.0, "latency_ratio": 1.0}
    Parity(**sizes, **differences).check(0.01)
    with pytest.raises(ParityError):
        Parity(**sizes, **{**differences, name: math.nan}).check(0.01)


def test_an_export_with_scores_that_are_not_finite_is_not_written(trained, tmp_path, monkeypatch):
    import mnemorank.export.exporter as exporter

    def broken(source, target):
        graph = onnx.load(str(source))
        for weight in graph.graph.initializer:
            if weight.name.endswith("classifier.bias"):
                weight.CopyFrom(onnx.numpy_helper.from_array(np.array([np.nan], dtype=np.float32), weight.name))
        onnx.save(graph, str(target))

    monkeypatch.setattr(exporter, "int8_dynamic", broken)
    with pytest.raises(ParityError):
        export(trained, tmp_path / "out", "int8")
    assert not (tmp_path / "out").exists()


def test_the_command_prints_the_parity_table(trained, dev_file, tmp_path, capsys):
    assert main(["export", str(trained), str(tmp_path / "out"), "--dev", str(dev_file), "--tolerance", "1"]) == 0
    printed = capsys.readouterr().out
    assert "rank correlation" in printed
    assert "dev ndcg@10" in printed
    assert main(["export", str(trained), str(tmp_path / "out"), "--json", "--quantize", "none"]) == 0
    assert json.loads(capsys.readouterr().out)["quantization"] == "none"
    assert main(["export", str(tmp_path / "out"), str(tmp_path / "again")]) == 2
    assert "folder written by training" in capsys.readouterr().err
    assert main(["export", str(trained), str(trained)]) == 2
    assert capsys.readouterr().err.startswith("error: output: ")


@pytest.mark.slow
def test_a_graph_that_differs_from_the_model_does_not_replace_an_earlier_export(trained, tmp_path, monkeypatch):
    from mnemorank.export import layers

    export(trained, tmp_path / "out", "none")
    monkeypatch.setattr(layers, "LOWEST", 0.0)
    monkeypatch.setattr(layers.FirstRowLayer, "forward", lambda self, hidden, *args, **kwargs: hidden[:, :1] * 2)
    with pytest.raises(ParityError, match="torch"):
        export(trained, tmp_path / "out")
    assert main(["export", str(trained), str(tmp_path / "out")]) == 1
    assert load_artifact(tmp_path / "out").manifest.quantization == "none"


def test_only_an_earlier_export_is_replaced(trained, tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "notes.txt").write_text("keep")
    with pytest.raises(ConflictError, match="mine"):
        export(trained, mine)
    other = tmp_path / "other"
    shutil.copytree(trained, other)
    with pytest.raises(ConflictError, match="other"):
        export(trained, other)
    assert (other / "model.safetensors").exists()
    export(trained, tmp_path / "out", "none")
    assert export(trained, tmp_path / "out", "int8").manifest.quantization == "int8-dynamic"
    shutil.copy(mine / "notes.txt", tmp_path / "out")
    with pytest.raises(ConflictError, match=r"notes\.txt"):
        export(trained, tmp_path / "out", "none")
    assert (tmp_path / "out" / "notes.txt").read_text() == (mine / "notes.txt").read_text() == "keep"


def test_dev_data_needs_a_relevant_candidate(trained, dev_file, tmp_path):
    labels = [json.loads(line.replace('"label": 1', '"label": 0')) for line in dev_file.read_text().splitlines()]
    path = tmp_path / "dev.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in labels))
    with pytest.raises(InputError) as caught:
        export(trained, tmp_path / "out", dev=list(read_examples(path)))
    assert caught.value.field == "dev"
    assert not (tmp_path / "out").exists()


def test_queries_too_long_for_the_model_are_dropped_and_noted(trained, dev_file, tmp_path, capsys):
    lines = [json.loads(line) for line in dev_file.read_text().splitlines()]
    long = {**lines[0], "query": "where does the cat work now " * 40}
    path = tmp_path / "dev.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in (*lines, long)))
    command = ["export", str(trained), str(tmp_path / "out"), "--quantize", "none", "--tolerance", "1"]
    assert main([*command, "--dev", str(path), "--calibration", str(path)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert all(f"{name}: dropped 1 of 7 queries" in printed for name in ("dev", "calibration"))
    expected = export(trained, tmp_path / "expected", "none", dev=list(read_examples(dev_file)))
    parity = load_artifact(tmp_path / "out").manifest.evaluation["parity"]
    assert parity["metric_before"] == expected.parity.metric_before
    path.write_text(json.dumps(long))
    assert main([*command, "--dev", str(path)]) == 2
    assert capsys.readouterr().err.startswith("error: dev: ")


def test_the_remaining_dev_queries_need_a_relevant_candidate(trained, dev_file, tmp_path):
    first, second = list(read_examples(dev_file))[:2]
    nothing = replace(second, candidates=tuple(replace(c, label=0.0) for c in second.candidates))
    with pytest.raises(InputError) as caught:
        export(trained, tmp_path / "out", dev=[replace(first, query="the cat " * 90), nothing])
    assert caught.value.field == "dev"


@pytest.mark.parametrize("option", ["--dev", "--calibration"])
def test_examples_without_any_text_are_rejected(trained, tmp_path, capsys, option):
    path = tmp_path / "blank.jsonl"
    path.write_text('{"query": "cat", "candidates": [{"text": " ", "label": 1}, {"text": "", "label": 0}]}')
    assert main(["export", str(trained), str(tmp_path / "out"), option, str(path)]) == 2
    assert capsys.readouterr().err.startswith(f"error: {option.removeprefix('--')}: ")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["none", "int8", "int4"])
def test_a_decoder_without_a_padding_token_scores_in_batches(tmp_path, kind):
    """As LycheeMem's: a Qwen3 language model with an adapter and a new head."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForSequenceClassification

    base = AutoModelForSequenceClassification.from_pretrained(write_causal(tmp_path / "qwen3"), num_labels=1)
    config = LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["q_proj", "v_proj"], modules_to_save=["score"])
    adapted = spread(get_peft_model(base, config))
    adapted.save_pretrained(tmp_path / "adapter")
    exported = export(tmp_path / "adapter", tmp_path / "out", kind)
    alone, together = scores_alone_and_together(tmp_path / "out")
    np.testing.assert_allclose(alone, together, atol=1e-5)
    assert len({round(score, 3) for score in together}) == len(TEXTS)
    assert exported.parity.rank_correlation > {"none": 0.9999, "int8": 0.95, "int4": 0.5}[kind]


def test_random_heads_are_rejected(tmp_path):
    from transformers import AutoModelForSequenceClassification

    folder = write_model(tmp_path / "model")
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    model.base_model.save_pretrained(folder)
    with pytest.raises(ArtifactError, match=r"classifier\.bias"):
        export(folder, tmp_path / "out")


def test_lora_is_merged(trained, tmp_path):
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForSequenceClassification

    base = AutoModelForSequenceClassification.from_pretrained(trained)
    adapted = get_peft_model(base, LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["query", "value"]))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
    adapted.eval().save_pretrained(tmp_path / "adapter")
    result = export(tmp_path / "adapter", tmp_path / "out", "none")
    assert result.manifest.template == "instruct"
    ids = torch.randint(4, 60, (2, 12), generator=torch.Generator().manual_seed(1))
    feed = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}
    with torch.no_grad():
        expected = adapted(**feed).logits.numpy()
    session = ort.InferenceSession(str(tmp_path / "out" / "model.onnx"))
    got = session.run(None, {name: values.numpy() for name, values in feed.items()})[0]
    np.testing.assert_allclose(got, expected, atol=1e-4)
