from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

from mnemorank import Model
from mnemorank.artifact.templates import templates
from mnemorank.data.formats import read_lists
from mnemorank.errors import InputError
from mnemorank.scorers.encoding import InputWriter
from mnemorank.training.adapters import HEADS
from mnemorank.training.base_model import load_base
from mnemorank.training.evaluation import measure_model, model_in_training
from mnemorank.training.network import build_network
from mnemorank.training.qat import SCALES, convert, prepare
from mnemorank.training.recipe import Qat
from mnemorank.training.recipe_files import parse_recipe
from mnemorank.training.run import train
from mnemorank.training.saving import draft_manifest


@pytest.fixture
def layers():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 4))


@pytest.mark.parametrize(("weights", "codes"), [("int4", 16), ("int8", 256)])
def test_weights_come_out_on_the_grid(layers, weights, codes):
    qat = Qat(weights, group_size=16)
    before = layers[0].weight.detach().clone()
    assert prepare(layers, qat) == ["0", "2"]
    grid = convert(layers, qat)

    assert type(layers[0]) is nn.Linear
    assert grid.bits == (4 if weights == "int4" else 8)
    for name, scale in grid.scales.items():
        weight = layers.get_submodule(name).weight.detach()
        steps = weight / scale.repeat_interleave(16, dim=1)
        assert torch.equal(steps.round() * scale.repeat_interleave(16, dim=1), weight)
        assert steps.round().min() >= -codes // 2
        assert steps.round().max() <= codes // 2 - 1
    assert (layers[0].weight - before).abs().max() <= grid.scales["0"].max() * 0.51


def test_the_prepared_forward_pass_rounds_and_lets_gradients_through(layers):
    given = torch.randn(5, 64)
    plain = layers(given)
    prepare(layers, Qat(group_size=16))
    rounded = layers(given)

    assert 0 < (rounded - plain).abs().max() < 0.5
    rounded.sum().backward()
    assert layers[0].weight.grad.abs().sum() > 0


def test_skipped_layers_and_groups_that_do_not_fit(layers):
    assert prepare(layers, Qat(group_size=16), skip=("2",)) == ["0"]
    with pytest.raises(InputError, match=r"qat\.group_size: 32 does not divide the 16 inputs of 2"):
        prepare(nn.Sequential(nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 4)), Qat(group_size=32))


def test_a_quantization_aware_training_ends_on_int4(tables, tmp_path, dev_lists):
    tables["qat"] = {"weights": "int4", "group_size": 32}
    tables["loss"] = [{"name": "margin"}]
    tables["train"] |= {"epochs": 4, "learning_rate": 2e-3}
    outcome = train(parse_recipe(tables), tmp_path / "out")
    saved, scales = load_file(tmp_path / "out" / "model.safetensors"), load_file(tmp_path / "out" / SCALES)

    assert outcome.manifest.quantization == "qat-int4"
    assert SCALES in outcome.manifest.files
    with safe_open(tmp_path / "out" / SCALES, "pt") as file:
        assert file.metadata() == {"bits": "4", "group_size": "32"}
    assert "bert.encoder.layer.0.attention.self.query" in scales
    assert not any("classifier" in name for name in scales)
    for name, scale in scales.items():
        codes = saved[f"{name}.weight"] / scale.repeat_interleave(32, dim=1)
        assert torch.allclose(codes, codes.round(), atol=1e-4)
        assert len(codes.round().unique()) <= 16  # four bits, not eight
    assert outcome.results.to_dict()["map"]["trained"][0] > 0.95
    model = Model.load(tmp_path / "out", probe=False)
    tops = [float(np.array(e.labels)[np.argmax(model.score(e.query, e.memories).raw)]) for e in read_lists(dev_lists)]
    assert np.mean(tops) == outcome.results.to_dict()["hit@1"]["trained"][0]


def test_the_base_is_measured_before_it_rounds(tables, tmp_path):
    tables["train"]["steps"] = 1
    plain = train(parse_recipe(tables), tmp_path / "plain").results.base["map"]
    tables["qat"] = {"weights": "int4", "group_size": 32}
    recipe = parse_recipe(tables)
    assert np.array_equal(train(recipe, tmp_path / "rounding").results.base["map"], plain)

    base = load_base(recipe.model, recipe.seed)
    prepare(base.model, Qat("int4", group_size=32), skip=HEADS)
    manifest = draft_manifest(recipe, base)
    network = build_network(base.model, base.tokenizer, templates["pair"])
    rounding = model_in_training(network, InputWriter(base.plain_tokenizer(), manifest), manifest)
    dev = list(read_lists(recipe.dev.data[0].path))
    assert not np.array_equal(measure_model(rounding, dev).values["map"], plain)
