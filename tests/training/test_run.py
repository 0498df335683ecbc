"""Whole trainings on tiny models: what goes in, what comes out."""

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
from mnemorank.errors import InputError, MnemorankError
from mnemorank.model.model import Scored
from mnemorank.scorers.encoding import Input
from mnemorank.training.base_model import load_base, positions_of
from mnemorank.training.evaluation import measure_model
from mnemorank.training.network import build_network
from mnemorank.training.recipe import ModelTable
from mnemorank.training.recipe_files import parse_recipe
from mnemorank.training.run import train
from tests.training.conftest import write_jsonl


def scores_of(model, path):
    return np.concatenate([model.score(e.query, e.memories).raw for e in read_lists(path)])


@pytest.fixture(scope="module")
def trained(tmp_path_factory, tiny_bert, train_lists, dev_lists):
    """One training that several tests look at."""
    tables = {
        "name": "tiny",
        "description": "A tiny model.",
        "model": {"base": str(tiny_bert), "format": "plain", "max_length": 64},
        "train": {"epochs": 4, "batch_size": 8, "learning_rate": 2e-3},
        "data": [{"path": str(train_lists), "format": "lists"}],
        "loss": [{"name": "softmax"}, {"name": "bce", "weight": 0.3}],
        "dev": {"data": [{"path": str(dev_lists), "format": "lists"}]},
    }
    seen = []
    output = tmp_path_factory.mktemp("run") / "tiny"
    return train(parse_recipe(tables), output, report=seen.append), seen


def test_it_learns_and_says_by_how_much(trained):
    outcome, _ = trained
    gained = outcome.results.to_dict()["map"]

    assert gained["trained"][0] > 0.95
    assert gained["trained"][0] > gained["base"][0]
    assert gained["base"][1] <= gained["base"][0] <= gained["base"][2]


def test_progress_tells_step_loss_dev_and_time(trained):
    _, seen = trained
    steps = [p for p in seen if not p.is_measurement]

    assert [p.step for p in steps] == list(range(1, 25))
    assert all(p.steps == 24 and math.isfinite(p.loss) and p.seconds_left >= 0 for p in seen)
    assert seen[-1].seconds_left == 0
    assert [p.step for p in steps if p.measures_next] == [6, 12, 18, 24]
    assert steps[-1].seconds_left > 0  # the last measurement is still to come
    assert sum(p.is_measurement for p in seen) == 4
    assert seen[-1].dev is not None


def test_the_folder_is_a_whole_artifact_with_a_record(trained):
    outcome, _ = trained
    artifact = load_artifact(outcome.output)
    artifact.verify()
    record = artifact.manifest.recipe

    assert {"model.safetensors", "config.json", "tokenizer.json", "README.md"} <= set(artifact.manifest.files)
    assert artifact.manifest.family == "torch"
    assert len({path.stat().st_mode for path in outcome.output.iterdir() if path.is_file()}) == 1
    assert record["seed"] == 1
    assert record["versions"]["torch"] == torch.__version__
    assert [entry["use"] for entry in record["data"]] == ["train", "dev"]
    assert all(len(entry["sha256"]) == 64 for entry in record["data"])
    assert record["stages"][0]["lists"] == 48
    assert artifact.manifest.evaluation["dev"]["queries"] == 12
    assert not (outcome.output / "checkpoints").exists()


def test_the_card_holds_the_measured_numbers(trained):
    outcome, _ = trained
    card = (outcome.output / "README.md").read_text(encoding="utf-8")
    mean = outcome.manifest.evaluation["dev"]["map"]["base"][0]

    assert f"{mean:.3f}".lstrip("0") in card
    assert "A tiny model." in card
    assert outcome.manifest.recipe["data"][0]["sha256"][:16] in card


def test_scores_are_calibrated_on_dev(trained, dev_lists):
    outcome, _ = trained
    labels = np.array([label for e in read_lists(dev_lists) for label in e.labels])
    from mnemorank._internal.arrays import sigmoid
    from mnemorank.artifact.calibration import log_odds

    raw = scores_of(Model.load(outcome.output, probe=False), dev_lists)
    relevance = sigmoid(log_odds(raw, "logit", outcome.manifest.calibration))
    assert relevance.mean() == pytest.approx(labels.mean(), abs=0.05)


def test_the_measured_numbers_are_those_of_the_saved_model(trained, dev_lists):
    outcome, _ = trained
    model = Model.load(outcome.output, probe=False)
    tops = [np.array(e.labels)[np.argmax(model.score(e.query, e.memories).raw)] for e in read_lists(dev_lists)]
    assert np.mean(tops) == outcome.results.to_dict()["hit@1"]["trained"][0]


def test_it_loads_in_sentence_transformers_and_here_with_the_same_scores(trained, dev_lists):
    """R2's snippet: predict and rank."""
    outcome, _ = trained
    example = next(read_lists(dev_lists))
    texts = [memory.text for memory in example.memories]
    ours = Model.load(outcome.output, probe=False).score(example.query, example.memories).raw

    encoder = CrossEncoder(str(outcome.output), device="cpu")
    predicted = encoder.predict([(example.query, text) for text in texts])
    np.testing.assert_allclose(predicted, 1 / (1 + np.exp(-ours)), atol=1e-5)
    ranked = encoder.rank(example.query, texts)
    assert ranked[0]["corpus_id"] == np.argmax(ours)
    assert [entry["score"] for entry in ranked] == sorted((float(score) for score in predicted), reverse=True)


def test_two_stages_with_their_own_data_and_rates(tables, tmp_path, dev_lists, train_lists):
    tables["stage"] = [
        {"name": "first", "epochs": 1},
        {"name": "second", "epochs": 2, "learning_rate": 1e-5, "data": [{"path": str(dev_lists)}]},
    ]
    seen = []
    outcome = train(parse_recipe(tables), tmp_path / "out", report=seen.append)
    notes = outcome.manifest.recipe["stages"]

    assert [(note["name"], note["lists"], note["steps"]) for note in notes] == [("first", 48, 6), ("second", 12, 4)]
    assert {(p.stage, p.number, p.stages) for p in seen} == {("first", 1, 2), ("second", 2, 2)}


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(tables, tmp_path):
    def weights(name, seed):
        train(parse_recipe({**tables, "seed": seed}), tmp_path / name)
        return load_file(tmp_path / name / "model.safetensors")

    one, two, three = weights("a", 1), weights("b", 1), weights("c", 2)
    assert all(torch.equal(one[key], two[key]) for key in one)
    assert any(not torch.equal(one[key], three[key]) for key in one)


def test_products_in_bfloat16_learn_as_well(tables, tmp_path):
    exact = train(parse_recipe(tables), tmp_path / "exact")
    rough = train(parse_recipe({**tables, "precision": "bfloat16"}), tmp_path / "rough")
    exact_weights, rough_weights = (load_file(outcome.output / "model.safetensors") for outcome in (exact, rough))

    assert any(not torch.equal(weight, exact_weights[name]) for name, weight in rough_weights.items())
    measured = [outcome.results.to_dict()["map"]["trained"][0] for outcome in (exact, rough)]
    assert measured[1] == pytest.approx(measured[0], abs=0.05)
    with pytest.raises(InputError, match="precision: expected one of float32, bfloat16, got 'fp8'"):
        parse_recipe({**tables, "precision": "fp8"})


@pytest.mark.parametrize("base", ["tiny_bert", "tiny_causal"])
def test_only_training_is_in_bfloat16_and_scores_are_in_full_precision(base, request):
    yes_no = base == "tiny_causal"
    kind, template = ("yes-no", "yes-no") if yes_no else ("classifier", "pair")
    table = ModelTable(str(request.getfixturevalue(base)), kind, template=template, max_length=64)
    inputs = [
        Input(np.array([2, 7, 9, 3]), np.zeros(4, dtype=np.int64)),
        Input(np.arange(5, 14), np.zeros(9, dtype=np.int64)),
    ]
    before = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()

    def scores(in_bfloat16, training):
        loaded = load_base(table, 1)
        return (
            build_network(loaded.model, loaded.tokenizer, templates[template], in_bfloat16)
            .train(training)
            .scores(inputs)
        )

    assert torch.equal(scores(True, False), scores(False, False))
    rough = scores(True, True)
    assert rough.dtype == torch.float32
    assert not torch.equal(rough, scores(False, True))
    assert torch.allclose(rough, scores(False, True), atol=0.1)
    assert torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed() == before


def test_early_stopping_keeps_the_best(tables, tmp_path):
    tables["train"] |= {"epochs": 30, "learning_rate": 2e-3}
    tables["dev"] |= {"patience": 2}
    outcome = train(parse_recipe(tables), tmp_path / "out")
    note = outcome.manifest.recipe["stages"][0]
    scores = [score for _, score in note["dev"]]

    assert note["steps"] < 30 * 6
    assert len(scores) - 1 - scores.index(max(scores)) == 2
    assert outcome.results.to_dict()["map"]["trained"][0] == pytest.approx(max(scores), abs=1e-4)


def test_the_running_average_is_what_is_measured_and_saved(tables, tmp_path):
    tables["average"] = {"decay": 0.9}
    tables["train"]["epochs"] = 3
    averaged = train(parse_recipe(tables), tmp_path / "averaged")
    del tables["average"]
    train(parse_recipe(tables), tmp_path / "plain")
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("averaged", "plain"))

    assert any(not torch.equal(one[key], two[key]) for key in one)
    last = averaged.manifest.recipe["stages"][0]["dev"]
    assert averaged.results.to_dict()["map"]["trained"][0] == pytest.approx(max(s for _, s in last), abs=1e-4)


def test_averaging_with_the_base_at_one_gives_the_base_back(tables, tmp_path, tiny_bert):
    tables["average"] = {"with_base": 1.0}
    train(parse_recipe(tables), tmp_path / "out")
    base, result = load_file(tiny_bert / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")

    assert all(torch.allclose(base[key], result[f"bert.{key}"]) for key in base if "pooler" not in key)


def test_frozen_parts_stay(tables, tmp_path, tiny_bert):
    tables["model"] |= {"freeze_layers": 1, "freeze_embeddings": True}
    train(parse_recipe(tables), tmp_path / "out")
    base, result = load_file(tiny_bert / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")

    changed = {key for key in base if not torch.equal(base[key], result[f"bert.{key}"])}
    assert not any("layer.0" in key or "word_embeddings" in key for key in changed)
    assert any("layer.1" in key for key in changed)
    tables["model"]["freeze_layers"] = 2
    with pytest.raises(InputError, match=r"model\.freeze_layers: 2 leaves none of the base's 2 layers"):
        train(parse_recipe(tables), tmp_path / "other")


@pytest.mark.parametrize("frozen", [{"freeze_layers": 1}, {"freeze_embeddings": True}])
def test_frozen_parts_do_not_go_with_lora(tables, tmp_path, frozen):
    tables["model"] |= frozen
    tables["lora"] = {"r": 4}
    with pytest.raises(InputError, match=rf"model\.{next(iter(frozen))}: does not go with lora"):
        train(parse_recipe(tables), tmp_path / "out")


def test_a_loss_that_is_not_a_number_stops_and_says_where(tables, tmp_path, train_lists):
    records = [json.loads(line) for line in train_lists.read_text().splitlines()]
    for record in records:
        for candidate in record["candidates"]:
            candidate["teacher_score"] = math.inf if record["id"] == "1-5" else 1.0
    tables["data"] = [{"path": str(write_jsonl(tmp_path / "bad.jsonl", records))}]
    tables["loss"] = [{"name": "kl"}]
    with pytest.raises(MnemorankError, match=r"stage train, step \d+: the loss is not a number \(kl nan\)") as caught:
        train(parse_recipe(tables), tmp_path / "out")
    assert "bad.jsonl 1-" in str(caught.value)
    assert "learning_rate (0.001)" in str(caught.value)


class LikesThePast:
    """A teacher that says the opposite of the labels."""

    manifest = Manifest("past")

    def score(self, query, memories, **_):
        return Scored(np.array([2.0 if "before" in m.text else -2.0 for m in memories]), [None], self.manifest)


def test_a_student_learns_from_its_teacher_and_not_from_the_labels(tables, tmp_path, train_lists, dev_lists):
    write_lists(distill(read_lists(train_lists), LikesThePast()), tmp_path / "taught.jsonl")
    tables["data"] = [{"path": str(tmp_path / "taught.jsonl")}]
    tables["loss"] = [{"name": "kl"}]
    tables["train"] |= {"epochs": 3, "learning_rate": 2e-3}
    del tables["dev"]
    train(parse_recipe(tables), tmp_path / "student")

    student = Model.load(tmp_path / "student", probe=False)
    best = [e.memories[np.argmax(student.score(e.query, e.memories).raw)].text for e in read_lists(dev_lists)]
    assert np.mean(["before" in text for text in best]) > 0.9


def test_a_folder_in_use_is_not_overwritten(tables, tmp_path, trained):
    outcome, _ = trained
    with pytest.raises(InputError, match="holds a finished model already"):
        train(parse_recipe(tables), outcome.output)
    with pytest.raises(InputError, match="holds no unfinished run"):
        train(parse_recipe(tables), tmp_path / "new", resume=True)


def test_a_folder_of_something_else_is_not_overwritten(tables, tmp_path, tiny_bert):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text("keep")
    (tmp_path / "file").write_text("keep")
    for name in ("mine", "file"):
        with pytest.raises(InputError, match=f"{name}: holds something else than a run"):
            train(parse_recipe(tables), tmp_path / name)
    with pytest.raises(InputError, match="bert: is the base of the recipe"):
        train(parse_recipe(tables), tiny_bert)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["config.json"]


def test_what_a_kill_cut_off_is_no_obstacle(tables, tmp_path):
    (tmp_path / "out" / "checkpoints").mkdir(parents=True)
    (tmp_path / "out" / "checkpoints" / "partial-run.json").write_text("{")
    tables["train"]["steps"] = 1
    del tables["dev"]
    assert train(parse_recipe(tables), tmp_path / "out").manifest.name == "tiny"


def test_a_base_without_a_tokenizer_is_named(tables, tmp_path, tiny_bert):
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        (bare / name).write_bytes((tiny_bert / name).read_bytes())
    tables["model"]["base"] = str(bare)
    with pytest.raises(InputError, match=r"model\.base: .*bare has no tokenizer"):
        train(parse_recipe(tables), tmp_path / "out")


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ("/nowhere/at/all", "model.base: no model '/nowhere/at/all'"),
        ("module:no_such_module", "model.base: module:no_such_module: the package is not installed"),
        ("module:json", "model.base: module:json: the package has no get_model_path()"),
    ],
)
def test_a_base_that_is_not_there_is_named(tables, tmp_path, base, message):
    tables["model"]["base"] = base
    with pytest.raises(InputError) as caught:
        train(parse_recipe(tables), tmp_path / "out")
    assert message in str(caught.value)


def test_damaged_weights_are_named(tables, tmp_path, tiny_bert):
    broken = tmp_path / "broken"
    broken.mkdir()
    for path in tiny_bert.iterdir():
        (broken / path.name).write_bytes(path.read_bytes()[: 500 if path.suffix == ".safetensors" else None])
    tables["model"]["base"] = str(broken)
    with pytest.raises(InputError, match=r"model\.base: .*broken: the weights cannot be loaded"):
        train(parse_recipe(tables), tmp_path / "out")


def test_missing_data_is_named(tables, tmp_path):
    tables["data"] = [{"path": str(tmp_path / "nothing.jsonl")}]
    with pytest.raises(InputError, match=r"nothing\.jsonl: is not there"):
        train(parse_recipe(tables), tmp_path / "out")


def test_more_positions_than_the_base_has(tables, tmp_path):
    tables["model"]["max_length"] = 512
    with pytest.raises(InputError, match=r"model\.max_length: 512 is more than the base's 128 positions"):
        train(parse_recipe(tables), tmp_path / "out")


@pytest.mark.parametrize(("kind", "positions"), [("roberta", 512), ("mpnet", 512), ("bert", 514), ("x", None)])
def test_positions_behind_the_padding_tokens_are_not_counted(kind, positions):
    stated = {} if positions is None else {"max_position_embeddings": 514}
    assert positions_of(SimpleNamespace(model_type=kind, **stated)) == positions


def test_long_memories_are_measured_in_the_windows_that_the_recipe_names(tables, tmp_path, dev_lists):
    rest = " ".join(f"before that the cat visit {word}" for word in ("berlin", "lisbon", "python", "rust") * 5)
    records = [json.loads(line) for line in dev_lists.read_text().splitlines()]
    long = [
        {**one, "candidates": [{**c, "text": f"{rest} {c['text']} {rest}"} for c in one["candidates"]]}
        for one in records
    ]
    path = write_jsonl(tmp_path / "long.jsonl", long)
    tables |= {"pipeline": {"windows": {"max_tokens": 12, "max_count": 8}}, "dev": {"data": [{"path": str(path)}]}}
    outcome = train(parse_recipe(tables), tmp_path / "out")
    measured = measure_model(Model.load(tmp_path / "out", probe=False), list(read_lists(path)))
    assert outcome.results.to_dict()["map"]["trained"][0] == pytest.approx(measured.mean("map"), abs=1e-3)


def test_the_recipe_says_how_the_pipeline_runs_the_model(tables, tmp_path):
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
    assert manifest.weights == PipelineWeights(0.3, 1.2, 2.0, 0.3, 1.5, 0.4)
    assert manifest.windows == Windows(max_count=2)
    assert manifest.abstain_below == 0.2
    assert manifest.calibration == Calibration(0.5, -1.0)
    with pytest.raises(InputError, match=r"pipeline\.weights\.same_dya: unknown key"):
        parse_recipe({**tables, "pipeline": {"weights": {"same_dya": 1.0}}})
    with pytest.raises(InputError, match="same_day: expected a number from 0 to 1, got 5"):
        parse_recipe({**tables, "pipeline": {"weights": {"same_day": 5}}})
