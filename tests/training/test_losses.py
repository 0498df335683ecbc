"""Formulas against numbers worked out by hand, and against sentence-transformers' own losses on a real model."""

from __future__ import annotations

import math

import pytest
import torch
from sentence_transformers import CrossEncoder
from sentence_transformers.cross_encoder import losses as reference

from mnemorank.errors import InputError
from mnemorank.training.losses import ScoredLists, losses

NAN = float("nan")


def batch(scores, labels, sizes, teacher=None, weights=None):
    return ScoredLists(
        torch.tensor(scores, requires_grad=True),
        torch.tensor(labels),
        tuple(sizes),
        torch.tensor(teacher if teacher is not None else [NAN] * len(scores)),
        torch.tensor(weights if weights is not None else [1.0] * len(scores)),
    )


def value(name, given, **options):
    loss = losses[name]
    return loss.compute(given, loss.options(**options))


def test_margin_by_hand():
    given = batch([2.0, 1.5, -1.0, 0.0, 3.0], [1.0, 0.0, 0.0, 1.0, 0.0], [3, 2])
    # 2.0 against 1.5 and −1.0, and 0.0 against 3.0: max(0, 1 − .5), max(0, 1 − 3), max(0, 1 + 3)
    assert value("margin", given).item() == pytest.approx((0.5 + 0.0 + 4.0) / 3)
    assert value("margin", given, margin=0.2).item() == pytest.approx((0.0 + 0.0 + 3.2) / 3)


def test_margin_compares_grades():
    given = batch([0.0, 0.0, 0.0], [1.0, 0.4, 0.0], [3])
    assert value("margin", given).item() == pytest.approx(1.0)  # three pairs, each 1 − 0


def test_bce_by_hand_hard_soft_and_weighted():
    given = batch([0.0, 2.0], [1.0, 0.2], [2])

    def cross_entropy(score, target, weight=1.0):
        p = 1 / (1 + math.exp(-score))
        return -(weight * target * math.log(p) + (1 - target) * math.log(1 - p))

    assert value("bce", given).item() == pytest.approx((cross_entropy(0, 1) + cross_entropy(2, 0.2)) / 2)
    weighted = (cross_entropy(0, 1, 1.2) + cross_entropy(2, 0.2, 1.2)) / 2
    assert value("bce", given, pos_weight=1.2).item() == pytest.approx(weighted)


def test_softmax_by_hand():
    given = batch([1.0, 0.0, 2.0, 0.5, 0.0], [1.0, 0.0, 1.0, 0.0, 0.0], [2, 3])
    first = -math.log(math.e / (math.e + 1))
    second = -math.log(math.exp(2) / (math.exp(2) + math.exp(0.5) + 1))
    assert value("softmax", given).item() == pytest.approx((first + second) / 2)


def test_softmax_lets_positives_alone():
    apart = value("softmax", batch([1.0, 9.0, 0.0], [1.0, 1.0, 0.0], [3]))
    first = math.log(1 + math.exp(-1.0))
    second = math.log(1 + math.exp(-9.0))
    assert apart.item() == pytest.approx((first + second) / 2)


@pytest.mark.parametrize("name", ["bce", "softmax", "margin"])
def test_a_weight_makes_an_example_count_so_many_times(name):
    scores, labels, sizes = [0.2, 0.5, -0.3, 0.1], [1.0, 0.0, 1.0, 0.0], [2, 2]
    first, second = (value(name, batch(scores[i : i + 2], labels[i : i + 2], [2])).item() for i in (0, 2))
    positives = value(name, batch(scores, labels, sizes, weights=[3.0, 1.0, 1.0, 1.0]))
    if name == "bce":
        single = [value(name, batch([s], [y], [1])).item() for s, y in zip(scores, labels, strict=True)]
        assert positives.item() == pytest.approx((3 * single[0] + sum(single[1:])) / 4)
    else:
        assert positives.item() == pytest.approx((3 * first + second) / 2)


def test_a_negative_of_weight_three_stands_in_the_softmax_like_three():
    weighted = batch([0.2, 0.5, 0.1], [1.0, 0.0, 0.0], [3], weights=[1.0, 3.0, 1.0])
    repeated = batch([0.2, 0.5, 0.5, 0.5, 0.1], [1.0, 0.0, 0.0, 0.0, 0.0], [5])
    assert value("softmax", weighted).item() == pytest.approx(value("softmax", repeated).item())


@pytest.mark.parametrize("name", ["bce", "softmax", "margin"])
def test_what_weighs_nothing_is_not_pushed(name):
    given = batch([0.0, 0.4, 0.3], [1.0, 0.0, 0.0], [3], weights=[1.0, 0.0, 1.0])
    value(name, given).backward()
    assert given.scores.grad[1] == 0
    assert given.scores.grad.isfinite().all()
    assert given.scores.grad[0] < 0 < given.scores.grad[2]


@pytest.mark.parametrize("name", ["lambda", "listnet", "kl", "margin-mse"])
def test_a_loss_without_a_place_for_weights_says_so(name):
    with pytest.raises(InputError, match=rf"loss: {name} takes no weights .* use bce, softmax or margin"):
        value(name, batch([1.0, 0.0], [1.0, 0.0], [2], teacher=[1.0, 0.0], weights=[2.0, 1.0]))


def test_kl_is_zero_for_the_teachers_own_scores_and_grows_from_there():
    assert value("kl", batch([1.0, 5.0], [0.0, 1.0], [2], teacher=[0.0, 4.0])).item() == pytest.approx(0, abs=1e-6)
    p, q = math.exp(1) / (math.exp(1) + 1), 0.5
    expected = p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
    assert value("kl", batch([0.0, 0.0], [1.0, 0.0], [2], teacher=[1.0, 0.0])).item() == pytest.approx(expected)


def test_margin_mse_by_hand():
    given = batch([3.0, 1.0], [1.0, 0.0], [2], teacher=[5.0, 0.0])
    assert value("margin-mse", given).item() == pytest.approx((2.0 - 5.0) ** 2)


@pytest.mark.parametrize("name", ["kl", "margin-mse"])
def test_distillation_without_a_teacher_says_so(name):
    with pytest.raises(InputError, match="teacher_score"):
        value(name, batch([1.0, 0.0], [1.0, 0.0], [2]))


@pytest.mark.parametrize("name", ["kl", "margin-mse"])
def test_partial_distillation_passes_over_lists_without_a_teacher(name):
    taught = batch([0.0, 0.0], [1.0, 0.0], [2], teacher=[1.0, 0.0])
    both = batch([0.0, 0.0, 5.0, 2.0, 1.0], [1.0, 0.0, 1.0, 0.0, 0.0], [2, 3], teacher=[1.0, 0.0, NAN, 3.0, NAN])
    loss = value(name, both, partial=True)
    loss.backward()
    assert loss.item() == pytest.approx(value(name, taught).item() / 2), "one list of two"
    assert both.scores.grad[2:].tolist() == [0.0, 0.0, 0.0]
    none = value(name, batch([1.0, 0.0], [1.0, 0.0], [2]), partial=True)
    none.backward()
    assert none.item() == 0


@pytest.mark.parametrize("name", ["margin", "softmax", "margin-mse"])
def test_a_list_of_equal_labels_teaches_nothing_and_breaks_nothing(name):
    given = batch([1.0, 0.0], [0.0, 0.0], [2], teacher=[1.0, 2.0])
    loss = value(name, given)
    loss.backward()
    assert loss.item() == 0
    assert given.scores.grad is not None


@pytest.mark.parametrize("name", sorted(losses))
def test_every_loss_pushes_the_relevant_up(name):
    given = batch([0.1, 0.0, -0.1], [1.0, 0.0, 0.0], [3], teacher=[4.0, -1.0, -2.0])
    value(name, given).backward()
    gradient = given.scores.grad
    assert gradient[0] < 0
    assert gradient[1:].sum() > 0
    assert losses[name].description


def test_listwise_losses_equal_sentence_transformers_own(tiny_bert):
    model = CrossEncoder(str(tiny_bert), num_labels=1, device="cpu").eval()
    queries = ["where does ruby work", "who is the doctor"]
    texts = [["ruby works at aurora", "the cat"], ["a trip", "the doctor visit", "no"]]
    labels = [torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0, 0.5])]
    pairs = [(query, text) for query, own in zip(queries, texts, strict=True) for text in own]
    scores = torch.tensor(model.predict(pairs, activation_fn=torch.nn.Identity()))
    given = ScoredLists(scores, torch.cat(labels), (2, 3), torch.full((5,), NAN), torch.ones(5))

    for name, own in (
        ("listnet", reference.ListNetLoss(model)),
        ("lambda", reference.LambdaLoss(model, reference.NDCGLoss2PPScheme())),
    ):
        assert value(name, given).item() == pytest.approx(own([queries, texts], labels).item(), abs=1e-5)
    flat = [[query for query, _ in pairs], [text for _, text in pairs]]
    bce = reference.BinaryCrossEntropyLoss(model)(flat, torch.cat(labels))
    assert value("bce", given).item() == pytest.approx(bce.item(), abs=1e-5)
