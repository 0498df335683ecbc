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
from mnemorank.training.optimizer import freeze, is_fresh, layer_of, parameter_groups, rate_schedule
from mnemorank.training.recipe import ModelTable, Stage


@pytest.fixture(scope="module")
def bert():
    config = BertConfig(vocab_size=30, hidden_size=8, num_hidden_layers=3, num_attention_heads=2, intermediate_size=8)
    return BertForSequenceClassification(config)


def rates(model, stage, fresh=()):
    found = {}
    for group in parameter_groups(model, stage, fresh):
        for name, parameter in model.named_parameters():
            if any(parameter is own for own in group["params"]):
                found[name] = (group["lr"], group["weight_decay"])
    return found


def test_lower_layers_learn_more_slowly_and_new_weights_faster(bert):
    stage = Stage(learning_rate=1.0, layer_decay=0.5, head_factor=3.0, weight_decay=0.1)
    found = rates(bert, stage, ("classifier.weight", "classifier.bias"))

    assert found["classifier.weight"] == (3.0, 0.1)
    assert found["classifier.bias"] == (3.0, 0.0)
    assert found["bert.encoder.layer.2.output.dense.weight"] == (0.5, 0.1)
    assert found["bert.encoder.layer.0.output.dense.weight"] == (0.125, 0.1)
    assert found["bert.embeddings.word_embeddings.weight"] == (0.125, 0.1)
    assert len(found) == len(list(bert.named_parameters()))


def test_a_head_that_came_with_the_base_learns_like_the_rest(bert):
    assert rates(bert, Stage(learning_rate=1.0, head_factor=3.0))["classifier.weight"][0] == 1.0


def test_pefts_copy_of_a_new_head_is_new():
    assert is_fresh("0.model.base_model.model.classifier.modules_to_save.default.weight", ("classifier.weight",))
    assert not is_fresh("0.model.bert.pooler.dense.weight", ("classifier.weight",))
    assert not is_fresh("classifier.weight", ())


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
def test_layers_are_found_in_names(name, layer):
    assert layer_of(name) == layer


@pytest.mark.parametrize("name", ["linear", "cosine", "constant", "hold"])
def test_the_rate_rises_to_one_and_never_above(name):
    factor = rate_schedule(name, 100, 0.1)
    values = [factor(step) for step in range(100)]
    assert values[0] == pytest.approx(1 / 11)
    assert max(values) == 1.0
    assert values[:10] == sorted(values[:10])
    assert values[10:] == sorted(values[10:], reverse=True)


def test_schedules_by_hand():
    assert rate_schedule("linear", 10, 0)(5) == pytest.approx(0.5)
    assert rate_schedule("cosine", 10, 0)(5) == pytest.approx(0.5)
    assert rate_schedule("hold", 10, 0)(5) == 1.0
    assert rate_schedule("hold", 10, 0)(8) == pytest.approx(0.5)


def frozen(model, **table):
    freeze(model, ModelTable("x", **table))
    return {name for name, parameter in model.named_parameters() if not parameter.requires_grad}


def test_embeddings_are_frozen_whatever_the_base_calls_them():
    shape = {"vocab_size": 30, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    modern = ModernBertConfig(**shape, intermediate_size=8, pad_token_id=0, local_attention=8)
    found = frozen(ModernBertForSequenceClassification(modern), freeze_embeddings=True)
    assert found == {"model.embeddings.tok_embeddings.weight"}
    plain = BertForSequenceClassification(BertConfig(**shape, intermediate_size=8))
    found = frozen(plain, freeze_embeddings=True)
    assert found == {f"bert.embeddings.{name}_embeddings.weight" for name in ("word", "position")}


def test_what_cannot_be_frozen_is_named():
    flat = torch.nn.Linear(2, 2)
    with pytest.raises(InputError, match=r"model\.freeze_embeddings: the base does not say"):
        freeze(flat, ModelTable("x", freeze_embeddings=True))
    with pytest.raises(InputError, match=r"model\.freeze_layers: 1 leaves none of the base's 0 layers"):
        freeze(flat, ModelTable("x", freeze_layers=1))
