"""Whole training runs on tiny models."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import CrossEncoder

from mnemorank import Model
from mnemorank.artifact.manifest import Calibration, Manifest, PipelineWeights, Windows
from mnemorank.artifact.resolve import load_artifact
from mnemorank.artifact.templates import templates
from mnemorank.data.distill import distill
from mnemorank.data.formats import read_lists, write_lists
from mnemorank.errors import ConflictError, InputError, MnemorankError, NotFoundError
from mnemorank.model.model import Scored
from mnemorank.scorers.encoding import Input
from mnemorank.training.base_model import load_base, max_positions
from mnemorank.training.evaluation import evaluate_model
from mnemorank.training.network import build_network
from mnemorank.training.recipe import ModelSettings, parse_recipe
from mnemorank.training.run import train
from tests.training.conftest import write_jsonl


def scores_of(model, path):
    return np.concatenate([model.score(e.query, e.memories).raw for e in read_lists(path)])


@pytest.fixture(scope="module")
def trained(tmp_path_factory, tiny_bert, train_lists, dev_lists):
    """One run that several tests inspect."""
    tables = {
        "name": "tiny",
        "description": "A tiny model.",
        "model": {"base": str(tiny_bert), "format": "plain", "max_length": 64},
        "train": {"epochs": 4, "batch_size": 8, "learning_rate": 2e-3},
        "data": [{"path": str(train_lists), "format": "lists"}],
        "loss": [{"name": "softmax"}, {"name": "bce", "weight": 0.3}],
        "dev": {"data": [{"path": str(dev_lists), "format": "lists"}]},
    }
    reports = []
    output = tmp_path_factory.mktemp("run") / "tiny"
    return train(parse_recipe(tables), output, on_progress=reports.append), reports


def test_training_improves_the_dev_metrics(trained):
    result, _ = trained
    metrics = result.results.to_dict()["map"]

    assert metrics["trained"][0] > 0.95
    assert metrics["trained"][0] > metrics["base"][0]
    assert metrics["base"][1] <= metrics["base"][0] <= metrics["base"][2]


def test_progress_reports_step_loss_dev_score_and_time(trained):
    _, reports = trained
    steps = [p for p in reports if not p.is_evaluation]

    assert [p.step for p in steps] == list(range(1, 25))
    assert all(p.steps == 24 and math.isfinite(p.loss) and p.seconds_left >= 0 for p in reports)
    assert reports[-1].seconds_left == 0
    assert [p.step for p in steps if p.evaluates_next] == [6, 12, 18, 24]
    assert steps[-1].seconds_left > 0  # the last evaluation is still to come
    assert sum(p.is_evaluation for p in reports) == 4
    assert reports[-1].dev is not None


def test_the_output_is_a_model_folder_with_a_record_of_the_run(trained):
    result, _ = trained
    artifact = load_artifact(result.output)
    artifact.verify()
    record = artifact.manifest.recipe

    assert {"model.safetensors", "config.json", "tokenizer.json", "README.md"} <= set(artifact.manifest.files)
    assert artifact.manifest.family == "torch"
    assert len({path.stat().st_mode for path in result.output.iterdir() if path.is_file()}) == 1
    assert record["seed"] == 1
    assert record["versions"]["torch"] == torch.__version__
    assert [entry["use"] for entry in record["data"]] == ["train", "dev"]
    assert all(len(entry["sha256"]) == 64 for entry in record["data"])
    assert record["stages"][0]["lists"] == 48
    assert artifact.manifest.evaluation["dev"]["queries"] == 12
    assert not (result.output / "checkpoints").exists()


def test_the_model_card_has_the_results(trained):
    result, _ = trained
    card = (result.output / "README.md").read_text(encoding="utf-8")
    mean = result.manifest.evaluation["dev"]["map"]["base"][0]

    assert f"{mean:.3f}".lstrip("0") in card
    assert "A tiny model." in card
    assert result.manifest.recipe["data"][0]["sha256"][:16] in card


def test_scores_are_calibrated_on_the_dev_data(trained, dev_lists):
    result, _ = trained
    labels = np.array([label for e in read_lists(dev_lists) for label in e.labels])
    from mnemorank._internal.arrays import sigmoid
    from mnemorank.artifact.calibration import log_odds

    raw = scores_of(Model.load(result.output, probe=False), dev_lists)
    relevance = sigmoid(log_odds(raw, "logit", result.manifest.calibration))
    assert relevance.mean() == pytest.approx(labels.mean(), abs=0.05)


def test_the_results_are_those_of_the_saved_model(trained, dev_lists):
    result, _ = trained
    model = Model.load(result.output, probe=False)
    tops = [np.array(e.labels)[np.argmax(model.score(e.query, e.memories).raw)] for e in read_lists(dev_lists)]
    assert np.mean(tops) == result.results.to_dict()["hit@1"]["trained"][0]


def test_sentence_transformers_loads_the_folder_and_gives_the_same_scores(trained, dev_lists):
    result, _ = trained
    example = next(read_lists(dev_lists))
    texts = [memory.text for memory in example.memories]
    ours = Model.load(result.output, probe=False).score(example.query, example.memories).raw

    encoder = CrossEncoder(str(result.output), device="cpu")
    predicted = encoder.predict([(example.query, text) for text in texts])
    np.testing.assert_allclose(predicted, 1 / (1 + np.exp(-ours)), atol=1e-5)
    ranked = encoder.rank(example.query, texts)
    assert ranked[0]["corpus_id"] == np.argmax(ours)
    assert [entry["score"] for entry in ranked] == sorted((float(score) for score in predicted), reverse=True)


def test_stages_have_their_own_data_and_learning_rate(tables, tmp_path, dev_lists, train_lists):
    tables["stage"] = [
        {"name": "first", "epochs": 1},
        {"name": "second", "epochs": 2, "learning_rate": 1e-5, "data": [{"path": str(dev_lists)}]},
    ]
    reports = []
    result = train(parse_recipe(tables), tmp_path / "out", on_progress=reports.append)
    stages = result.manifest.recipe["stages"]

    assert [(stage["name"], stage["lists"], stage["steps"]) for stage in stages] == [
        ("first", 48, 6),
        ("second", 12, 4),
    ]
    assert {(p.stage, p.stage_number, p.stage_count) for p in reports} == {("first", 1, 2), ("second", 2, 2)}


def test_the_seed_determines_the_weights(tables, tmp_path):
    def weights(name, seed):
        train(parse_recipe({**tables, "seed": seed}), tmp_path / name)
        return load_file(tmp_path / name / "model.safetensors")

    one, two, three = weights("a", 1), weights("b", 1), weights("c", 2)
    assert all(torch.equal(one[key], two[key]) for key in one)
    assert any(not torch.equal(one[key], three[key]) for key in one)


def test_training_in_bfloat16_gives_a_similar_result(tables, tmp_path):
    results = [
        train(parse_recipe({**tables, "precision": precision}), tmp_path / precision)
        for precision in ("float32", "bfloat16")
    ]
    exact, rounded = (load_file(result.output / "model.safetensors") for result in results)

    assert any(not torch.equal(weight, exact[name]) for name, weight in rounded.items())
    before, after = (result.results.to_dict()["map"]["trained"][0] for result in results)
    assert after == pytest.approx(before, abs=0.05)
    with pytest.raises(InputError) as caught:
        parse_recipe({**tables, "precision": "fp8"})
    assert caught.value.field == "precision"


@pytest.mark.parametrize("base", ["tiny_bert", "tiny_causal"])
def test_bfloat16_is_used_in_training_only(base, request):
    kind, template = ("yes-no", "yes-no") if base == "tiny_causal" else ("classifier", "pair")
    folder = str(request.getfixturevalue(base))
    settings = ModelSettings(base=folder, kind=kind, template=template, max_length=64)
    inputs = [
        Input(np.array([2, 7, 9, 3]), np.zeros(4, dtype=np.int64)),
        Input(np.arange(5, 14), np.zeros(9, dtype=np.int64)),
    ]
    before = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()

    def scores(use_bfloat16, training):
        loaded = load_base(settings, 1)
        network = build_network(loaded.model, loaded.tokenizer, templates[template], use_bfloat16)
        return network.train(training).scores(inputs)

    assert torch.equal(scores(True, False), scores(False, False))
    rounded = scores(True, True)
    assert rounded.dtype == torch.float32
    assert not torch.equal(rounded, scores(False, True))
    assert torch.allclose(rounded, scores(False, True), atol=0.1)
    assert torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed() == before


def test_early_stopping_keeps_the_best_checkpoint(tables, tmp_path):
    tables["train"] |= {"epochs": 30, "learning_rate": 2e-3}
    tables["dev"] |= {"patience": 2}
    result = train(parse_recipe(tables), tmp_path / "out")
    stage = result.manifest.recipe["stages"][0]
    scores = [score for _, score in stage["dev"]]

    assert stage["steps"] < 30 * 6
    assert len(scores) - 1 - scores.index(max(scores)) == 2
    assert result.results.to_dict()["map"]["trained"][0] == pytest.approx(max(scores), abs=1e-4)


def test_the_running_average_is_evaluated_and_saved(tables, tmp_path):
    tables["average"] = {"decay": 0.9}
    tables["train"]["epochs"] = 3
    averaged = train(parse_recipe(tables), tmp_path / "averaged")
    del tables["average"]
    train(parse_recipe(tables), tmp_path / "plain")
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("averaged", "plain"))

    assert any(not torch.equal(one[key], two[key]) for key in one)
    last = averaged.manifest.recipe["stages"][0]["dev"]
    assert averaged.results.to_dict()["map"]["trained"][0] == pytest.approx(max(s for _, s in last), abs=1e-4)


def test_averaging_with_all_of_the_base_restores_it(tables, tmp_path, tiny_bert):
    tables["average"] = {"with_base": 1.0}
    train(parse_recipe(tables), tmp_path / "out")
    base, result = load_file(tiny_bert / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")

    assert all(torch.allclose(base[key], result[f"bert.{key}"]) for key in base if "pooler" not in key)


def test_frozen_layers_do_not_change(tables, tmp_path, tiny_bert):
    tables["model"] |= {"freeze_layers": 1, "freeze_embeddings": True}
    train(parse_recipe(tables), tmp_path / "out")
    base, result = load_file(tiny_bert / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")

    changed = {key for key in base if not torch.equal(base[key], result[f"bert.{key}"])}
    assert not any("layer.0" in key or "word_embeddings" in key for key in changed)
    assert any("layer.1" in key for key in changed)
    tables["model"]["freeze_layers"] = 2
    with pytest.raises(InputError) as caught:
        train(parse_recipe(tables), tmp_path / "other")
    assert caught.value.field == "model.freeze_layers"


@pytest.mark.parametrize("frozen", [{"freeze_layers": 1}, {"freeze_embeddings": True}])
def test_freezing_cannot_be_combined_with_lora(tables, tmp_path, frozen):
    tables["model"] |= frozen
    tables["lora"] = {"r": 4}
    with pytest.raises(InputError) as caught:
        train(parse_recipe(tables), tmp_path / "out")
    assert caught.value.field == f"model.{next(iter(frozen))}"


def test_a_loss_that_is_not_finite_stops_the_run_and_names_the_batch(tables, tmp_path, train_lists):
    records = [json.loads(line) for line in train_lists.read_text().splitlines()]
    for record in records:
        for candidate in record["candidates"]:
            candidate["teacher_score"] = math.inf if record["id"] == "1-5" else 1.0
    tables["data"] = [{"path": str(write_jsonl(tmp_path / "bad.jsonl", records))}]
    tables["loss"] = [{"name": "kl"}]
    with pytest.raises(MnemorankError, match=r"stage train, step \d+: .*kl nan") as caught:
        train(parse_recipe(tables), tmp_path / "out")
    assert "bad.jsonl 1-" in str(caught.value)
    assert "learning_rate (0.001)" in str(caught.value)


class PrefersThePast:
    """A teacher that contradicts the labels."""

    manifest = Manifest("past")

    def score(self, query, memories, **_):
        return Scored(np.array([2.0 if "before" in m.text else -2.0 for m in memories]), [None], self.manifest)


def test_a_student_learns_from_its_teacher_instead_of_the_labels(tables, tmp_path, train_lists, dev_lists):
    write_lists(distill(read_lists(train_lists), PrefersThePast()), tmp_path / "scored.jsonl")
    tables["data"] = [{"path": str(tmp_path / "scored.jsonl")}]
    tables["loss"] = [{"name": "kl"}]
    tables["train"] |= {"epochs": 3, "learning_rate": 2e-3}
    del tables["dev"]
    train(parse_recipe(tables), tmp_path / "student")

    student = Model.load(tmp_path / "student", probe=False)
    best = [e.memories[np.argmax(student.score(e.query, e.memories).raw)].text for e in read_lists(dev_lists)]
    assert np.mean(["before" in text for text in best]) > 0.9


def test_a_finished_model_is_not_overwritten(tables, trained):
    result, _ = trained
    with pytest.raises(ConflictError) as caught:
        train(parse_recipe(tables), result.output)
    assert caught.value.field == "--output"


def test_resuming_needs_an_unfinished_run(tables, tmp_path):
    with pytest.raises(NotFoundError) as caught:
        train(parse_recipe(tables), tmp_path / "new", resume=True)
    assert caught.value.field == "--resume"


def test_other_files_are_not_overwritten(tables, tmp_path, tiny_bert):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text("keep")
    (tmp_path / "file").write_text("keep")
    for name in ("mine", "file"):
        with pytest.raises(ConflictError, match=name) as caught:
            train(parse_recipe(tables), tmp_path / name)
        assert caught.value.field == "--output"
    with pytest.raises(InputError, match="bert") as caught:
        train(parse_recipe(tables), tiny_bert)
    assert caught.value.field == "--output"
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["config.json"]


def test_the_leftovers_of_a_killed_process_are_ignored(tables, tmp_path):
    (tmp_path / "out" / "checkpoints").mkdir(parents=True)
    (tmp_path / "out" / "checkpoints" / "run.json.1234.partial").write_text("{")
    tables["train"]["steps"] = 1
    del tables["dev"]
    assert train(parse_recipe(tables), tmp_path / "out").manifest.name == "tiny"


def test_a_base_needs_a_tokenizer(tables, tmp_path, tiny_bert):
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        (bare / name).write_bytes((tiny_bert / name).read_bytes())
    tables["model"]["base"] = str(bare)
    with pytest.raises(InputError, match="bare") as caught:
        train(parse_recipe(tables), tmp_path / "out")
    assert caught.value.field == "model.base"


@pytest.mark.parametrize(
    ("base", "name"),
    [
        ("/nowhere/at/all", "/nowhere/at/all"),
        ("module:no_such_module", "no-such-module"),
        ("module:json", "get_model_path"),
    ],
)
def test_a_missing_base_is_an_error(tables, tmp_path, base, name):
    tables["model"]["base"] = base
    with pytest.raises(InputError, match=name) as caught:
        train(parse_recipe(tables), tmp_path / "out")
    assert caught.value.field == "model.base"


def test_damaged_weights_are_an_error(tables, tmp_path, tiny_bert):
    broken = tmp_path / "broken"
    broken.mkdir()
    for path in tiny_bert.iterdir():
        (broken / path.name).write_bytes(path.read_bytes()[: 500 if path.suffix == ".safetensors" else None])
    tables["model"]["base"] = str(broken)
    with pytest.raises(InputError, match="broken") as caught:
        train(parse_recipe(tables), tmp_path / "out")
    assert caught.value.field == "model.base"


def test_missing_data_is_an_error(tables, tmp_path):
    tables["data"] = [{"path": str(tmp_path / "nothing.jsonl")}]
    with pytest.raises(NotFoundError, match=r"nothing\.jsonl") as caught:
        train(parse_recipe(tables), tmp_path / "out")
    assert caught.value.field == "data"


def test_the_length_is_limited_by_the_positions_of_the_base(tables, tmp_path):
    tables["model"]["max_length"] = 512
    with pytest.raises(InputError, match="128") as caught:
        train(parse_recipe(tables), tmp_path / "out")
    assert caught.value.field == "model.max_length"


@pytest.mark.parametrize(("kind", "positions"), [("roberta", 512), ("mpnet", 512), ("bert", 514), ("x", None)])
def test_positions_reserved_for_padding_are_not_counted(kind, positions):
    config = {} if positions is None else {"max_position_embeddings": 514}
    assert max_positions(SimpleNamespace(model_type=kind, **config)) == positions


def test_long_memories_are_evaluated_in_the_windows_of_the_recipe(tables, tmp_path, dev_lists):
    rest = " ".join(f"before that the cat visit {word}" for word in ("berlin", "lisbon", "python", "rust") * 5)
    records = [json.loads(line) for line in dev_lists.read_text().splitlines()]
    long = [
        {**record, "candidates": [{**c, "text": f"{rest} {c['text']} {rest}"} for c in record["candidates"]]}
        for record in records
    ]
    path = write_jsonl(tmp_path / "long.jsonl", long)
    tables |= {"pipeline": {"windows": {"max_tokens": 12, "max_count": 8}}, "dev": {"data": [{"path": str(path)}]}}
    result = train(parse_recipe(tables), tmp_path / "out")
    evaluation = evaluate_model(Model.load(tmp_path / "out", probe=False), list(read_lists(path)))
    assert result.results.to_dict()["map"]["trained"][0] == pytest.approx(evaluation.mean("map"), abs=1e-3)


def test_pipeline_settings_are_copied_into_the_manifest(tables, tmp_path):
    tables["pipeline"] = {
        "weights": {
            "first_stage": 0.3,
            "first_stage_windowed": 1.2,
            "entity_links": 2.0,
            "same_day": 0.3,
            "query_dates": 1.5,
            "rescoring": 0.4,
        },
        "windows": {"max_count": 2},
        "abstain_below": 0.2,
        "calibration": {"scale": 0.5, "bias": -1.0},
    }
    train(parse_recipe({**tables, "train": {**tables["train"], "steps": 1}}), tmp_path / "out")
    manifest = load_artifact(tmp_path / "out").manifest
    assert manifest.weights == PipelineWeights(0.3, 1.2, None, 2.0, 0.3, 1.5, 0.4)
    assert manifest.windows == Windows(max_count=2)
    assert manifest.abstain_below == 0.2
    assert manifest.calibration == Calibration(0.5, -1.0)


@pytest.mark.parametrize(("weight", "code"), [({"same_dya": 1.0}, "unknown"), ({"same_day": 5}, "invalid")])
def test_pipeline_weights_are_validated(tables, weight, code):
    with pytest.raises(InputError) as caught:
        parse_recipe({**tables, "pipeline": {"weights": weight}})
    assert (caught.value.field, caught.value.code) == (f"pipeline.weights.{next(iter(weight))}", code)
