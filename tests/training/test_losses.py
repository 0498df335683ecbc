"""Losses against hand-computed values, and against those of sentence-transformers on a real model."""

from __future__ import annotations

import importlib
import math

import pytest
import torch
from sentence_transformers import CrossEncoder
from sentence_transformers.cross_encoder import losses as reference

from mnemorank.errors import InputError
from mnemorank.training.losses import ScoredLists, losses
from mnemorank.training.recipe import parse_recipe
from mnemorank.training.run import check_recipe

NAN = float("nan")


def batch(scores, labels, sizes, teacher_scores=None, weights=None):
    return ScoredLists(
        torch.tensor(scores, requires_grad=True),
        torch.tensor(labels),
        tuple(sizes),
        torch.tensor(teacher_scores if teacher_scores is not None else [NAN] * len(scores)),
        torch.tensor(weights if weights is not None else [1.0] * len(scores)),
    )


def compute(name, lists, **options):
    loss = losses[name]
    return loss.compute(lists, loss.options(**options))


def test_margin():
    lists = batch([2.0, 1.5, -1.0, 0.0, 3.0], [1.0, 0.0, 0.0, 1.0, 0.0], [3, 2])
    # 2.0 against 1.5 and −1.0, and 0.0 against 3.0: max(0, 1 − .5), max(0, 1 − 3), max(0, 1 + 3)
    assert compute("margin", lists).item() == pytest.approx((0.5 + 0.0 + 4.0) / 3)
    assert compute("margin", lists, margin=0.2).item() == pytest.approx((0.0 + 0.0 + 3.2) / 3)


def test_margin_compares_graded_labels():
    lists = batch([0.0, 0.0, 0.0], [1.0, 0.4, 0.0], [3])
    assert compute("margin", lists).item() == pytest.approx(1.0)  # three pairs, each 1 − 0


def test_bce_with_hard_and_soft_labels_and_weighted_positives():
    lists = batch([0.0, 2.0], [1.0, 0.2], [2])

    def cross_entropy(score, target, weight=1.0):
        p = 1 / (1 + math.exp(-score))
        return -(weight * target * math.log(p) + (1 - target) * math.log(1 - p))

    assert compute("bce", lists).item() == pytest.approx((cross_entropy(0, 1) + cross_entropy(2, 0.2)) / 2)
    weighted = (cross_entropy(0, 1, 1.2) + cross_entropy(2, 0.2, 1.2)) / 2
    assert compute("bce", lists, pos_weight=1.2).item() == pytest.approx(weighted)


def test_softmax():
    lists = batch([1.0, 0.0, 2.0, 0.5, 0.0], [1.0, 0.0, 1.0, 0.0, 0.0], [2, 3])
    first = -math.log(math.e / (math.e + 1))
    second = -math.log(math.exp(2) / (math.exp(2) + math.exp(0.5) + 1))
    assert compute("softmax", lists).item() == pytest.approx((first + second) / 2)


def test_softmax_does_not_compare_positives():
    apart = compute("softmax", batch([1.0, 9.0, 0.0], [1.0, 1.0, 0.0], [3]))
    first = math.log(1 + math.exp(-1.0))
    second = math.log(1 + math.exp(-9.0))
    assert apart.item() == pytest.approx((first + second) / 2)


@pytest.mark.parametrize("name", ["bce", "softmax", "margin"])
def test_a_positive_of_weight_three_counts_three_times(name):
    scores, labels, sizes = [0.2, 0.5, -0.3, 0.1], [1.0, 0.0, 1.0, 0.0], [2, 2]
    first, second = (compute(name, batch(scores[i : i + 2], labels[i : i + 2], [2])).item() for i in (0, 2))
    positives = compute(name, batch(scores, labels, sizes, weights=[3.0, 1.0, 1.0, 1.0]))
    if name == "bce":
        single = [compute(name, batch([s], [y], [1])).item() for s, y in zip(scores, labels, strict=True)]
        assert positives.item() == pytest.approx((3 * single[0] + sum(single[1:])) / 4)
    else:
        assert positives.item() == pytest.approx((3 * first + second) / 2)


def test_softmax_treats_a_negative_of_weight_three_like_three_copies():
    weighted = batch([0.2, 0.5, 0.1], [1.0, 0.0, 0.0], [3], weights=[1.0, 3.0, 1.0])
    repeated = batch([0.2, 0.5, 0.5, 0.5, 0.1], [1.0, 0.0, 0.0, 0.0, 0.0], [5])
    assert compute("softmax", weighted).item() == pytest.approx(compute("softmax", repeated).item())


@pytest.mark.parametrize("name", ["bce", "softmax", "margin"])
def test_a_candidate_of_weight_zero_gets_no_gradient(name):
    lists = batch([0.0, 0.4, 0.3], [1.0, 0.0, 0.0], [3], weights=[1.0, 0.0, 1.0])
    compute(name, lists).backward()
    assert lists.scores.grad[1] == 0
    assert lists.scores.grad.isfinite().all()
    assert lists.scores.grad[0] < 0 < lists.scores.grad[2]


@pytest.mark.parametrize("name", ["lambda", "listnet", "kl", "margin-mse"])
def test_losses_without_weights_reject_them(name):
    with pytest.raises(InputError, match=rf"{name} .*bce, margin, softmax") as caught:
        compute(name, batch([1.0, 0.0], [1.0, 0.0], [2], teacher_scores=[1.0, 0.0], weights=[2.0, 1.0]))
    assert caught.value.field == "loss"


def test_kl_is_zero_when_student_and_teacher_agree():
    assert compute("kl", batch([1.0, 5.0], [0.0, 1.0], [2], teacher_scores=[0.0, 4.0])).item() == pytest.approx(
        0, abs=1e-6
    )
    p, q = math.exp(1) / (math.exp(1) + 1), 0.5
    expected = p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
    assert compute("kl", batch([0.0, 0.0], [1.0, 0.0], [2], teacher_scores=[1.0, 0.0])).item() == pytest.approx(
        expected
    )


def test_margin_mse():
    lists = batch([3.0, 1.0], [1.0, 0.0], [2], teacher_scores=[5.0, 0.0])
    assert compute("margin-mse", lists).item() == pytest.approx((2.0 - 5.0) ** 2)


@pytest.mark.parametrize("name", ["kl", "margin-mse"])
def test_distillation_needs_teacher_scores(name):
    with pytest.raises(InputError, match="teacher_score") as caught:
        compute(name, batch([1.0, 0.0], [1.0, 0.0], [2]))
    assert caught.value.field == "loss"


@pytest.mark.parametrize("name", ["kl", "margin-mse"])
def test_partial_distillation_skips_lists_without_teacher_scores(name):
    scored = batch([0.0, 0.0], [1.0, 0.0], [2], teacher_scores=[1.0, 0.0])
    both = batch([0.0, 0.0, 5.0, 2.0, 1.0], [1.0, 0.0, 1.0, 0.0, 0.0], [2, 3], teacher_scores=[1.0, 0.0, NAN, 3.0, NAN])
    loss = compute(name, both, partial=True)
    loss.backward()
    assert loss.item() == pytest.approx(compute(name, scored).item() / 2), "one list of two"
    assert both.scores.grad[2:].tolist() == [0.0, 0.0, 0.0]
    none = compute(name, batch([1.0, 0.0], [1.0, 0.0], [2]), partial=True)
    none.backward()
    assert none.item() == 0


@pytest.mark.parametrize("name", ["margin", "softmax", "margin-mse"])
def test_a_list_of_equal_labels_has_a_loss_of_zero(name):
    lists = batch([1.0, 0.0], [0.0, 0.0], [2], teacher_scores=[1.0, 2.0])
    loss = compute(name, lists)
    loss.backward()
    assert loss.item() == 0
    assert lists.scores.grad is not None


@pytest.mark.parametrize("name", sorted(losses))
def test_every_loss_raises_the_score_of_the_relevant_candidate(name):
    lists = batch([0.1, 0.0, -0.1], [1.0, 0.0, 0.0], [3], teacher_scores=[4.0, -1.0, -2.0])
    compute(name, lists).backward()
    gradient = lists.scores.grad
    assert gradient[0] < 0
    assert gradient[1:].sum() > 0
    assert losses[name].description


def test_listwise_losses_equal_those_of_sentence_transformers(tiny_bert):
    model = CrossEncoder(str(tiny_bert), num_labels=1, device="cpu").eval()
    queries = ["where does ruby work", "who is the doctor"]
    texts = [["ruby works at aurora", "the cat"], ["a trip", "the doctor visit", "no"]]
    labels = [torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0, 0.5])]
    pairs = [(query, text) for query, documents in zip(queries, texts, strict=True) for text in documents]
    scores = torch.tensor(model.predict(pairs, activation_fn=torch.nn.Identity()))
    lists = ScoredLists(scores, torch.cat(labels), (2, 3), torch.full((5,), NAN), torch.ones(5))

    for name, loss in (
        ("listnet", reference.ListNetLoss(model)),
        ("lambda", reference.LambdaLoss(model, reference.NDCGLoss2PPScheme())),
    ):
        assert compute(name, lists).item() == pytest.approx(loss([queries, texts], labels).item(), abs=1e-5)
    flat = [[query for query, _ in pairs], [text for _, text in pairs]]
    bce = reference.BinaryCrossEntropyLoss(model)(flat, torch.cat(labels))
    assert compute("bce", lists).item() == pytest.approx(bce.item(), abs=1e-5)


def test_a_new_loss_is_one_file_with_a_decorated_function(tmp_path, monkeypatch):
    """As in `losses/__init__.py`: importing a module that registers a function is all there is to do."""
    for name, value in list(vars(losses).items()):  # other tests go through all losses
        if isinstance(value, dict):
            monkeypatch.setattr(losses, name, dict(value))
    (tmp_path / "hinge_for_test.py").write_text(
        "from mnemorank.training.losses.protocol import register_loss\n\n"
        "@register_loss('hinge-for-test')\n"
        "def hinge(batch, options):\n"
        '    """Hinge loss on single pairs."""\n'
        "    return (1 - (2 * batch.labels - 1) * batch.scores).clamp(min=0).mean()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("hinge_for_test")

    assert compute("hinge-for-test", batch([2.0, 0.5], [1.0, 0.0], [2])).item() == pytest.approx(0.75)
    assert losses["hinge-for-test"].description == "Hinge loss on single pairs."
    recipe = {"name": "x", "model": {"base": "x"}, "data": [{"path": "x"}], "loss": [{"name": "hinge-for-test"}]}
    check_recipe(parse_recipe(recipe))
