from __future__ import annotations

import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    ModernBertConfig,
    ModernBertForSequenceClassification,
)

from mnemorank.errors import InputError
from mnemorank.training.optimizer import freeze, is_new_parameter, layer_of, parameter_groups, rate_schedule
from mnemorank.training.recipe import ModelSettings, StageSettings


@pytest.fixture(scope="module")
def bert():
    config = BertConfig(vocab_size=30, hidden_size=8, num_hidden_layers=3, num_attention_heads=2, intermediate_size=8)
    return BertForSequenceClassification(config)


def rates(model, stage, new_parameters=()):
    """The learning rate and weight decay of each parameter."""
    result = {}
    for group in parameter_groups(model, stage, new_parameters):
        for name, parameter in model.named_parameters():
            if any(parameter is member for member in group["params"]):
                result[name] = (group["lr"], group["weight_decay"])
    return result


def test_lower_layers_learn_more_slowly_and_new_weights_faster(bert):
    stage = StageSettings(learning_rate=1.0, layer_decay=0.5, head_factor=3.0, weight_decay=0.1)
    by_name = rates(bert, stage, ("classifier.weight", "classifier.bias"))

    assert by_name["classifier.weight"] == (3.0, 0.1)
    assert by_name["classifier.bias"] == (3.0, 0.0)
    assert by_name["bert.encoder.layer.2.output.dense.weight"] == (0.5, 0.1)
    assert by_name["bert.encoder.layer.0.output.dense.weight"] == (0.125, 0.1)
    assert by_name["bert.embeddings.word_embeddings.weight"] == (0.125, 0.1)
    assert len(by_name) == len(list(bert.named_parameters()))


def test_a_head_from_the_base_has_the_ordinary_rate(bert):
    assert rates(bert, StageSettings(learning_rate=1.0, head_factor=3.0))["classifier.weight"][0] == 1.0


def test_a_new_head_is_recognized_inside_a_peft_model():
    assert is_new_parameter(
        "0.model.base_model.model.classifier.modules_to_save.default.weight", ("classifier.weight",)
    )
    assert not is_new_parameter("0.model.bert.pooler.dense.weight", ("classifier.weight",))
    assert not is_new_parameter("classifier.weight", ())


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("bert.encoder.layer.11.output.dense.weight", 11),
        ("model.layers.3.self_attn.q_proj.lora_A.default.weight", 3),
        ("transformer.h.2.mlp.weight", 2),
        ("bert.embeddings.LayerNorm.weight", None),
        ("classifier.weight", None),
    ],
)
def test_the_layer_is_read_from_the_parameter_name(name, layer):
    assert layer_of(name) == layer


@pytest.mark.parametrize("name", ["linear", "cosine", "constant", "hold"])
def test_the_rate_factor_rises_to_one_and_falls(name):
    factor = rate_schedule(name, 100, 0.1)
    values = [factor(step) for step in range(100)]
    assert values[0] == pytest.approx(1 / 11)
    assert max(values) == 1.0
    assert values[:10] == sorted(values[:10])
    assert values[10:] == sorted(values[10:], reverse=True)


def test_schedules():
    assert rate_schedule("linear", 10, 0)(5) == pytest.approx(0.5)
    assert rate_schedule("cosine", 10, 0)(5) == pytest.approx(0.5)
    assert rate_schedule("hold", 10, 0)(5) == 1.0
    assert rate_schedule("hold", 10, 0)(8) == pytest.approx(0.5)


def frozen(model, **settings):
    """The names of the parameters that are not trained."""
    freeze(model, ModelSettings(base="x", **settings))
    return {name for name, parameter in model.named_parameters() if not parameter.requires_grad}


def test_embeddings_are_frozen_under_any_name():
    shape = {"vocab_size": 30, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    modern = ModernBertConfig(**shape, intermediate_size=8, pad_token_id=0, local_attention=8)
    names = frozen(ModernBertForSequenceClassification(modern), freeze_embeddings=True)
    assert names == {"model.embeddings.tok_embeddings.weight"}
    plain = BertForSequenceClassification(BertConfig(**shape, intermediate_size=8))
    names = frozen(plain, freeze_embeddings=True)
    assert names == {f"bert.embeddings.{name}_embeddings.weight" for name in ("word", "position")}


@pytest.mark.parametrize("settings", [{"freeze_embeddings": True}, {"freeze_layers": 1}])
def test_errors_name_what_cannot_be_frozen(settings):
    with pytest.raises(InputError) as caught:
        freeze(torch.nn.Linear(2, 2), ModelSettings(base="x", **settings))
    assert caught.value.field == f"model.{next(iter(settings))}"
