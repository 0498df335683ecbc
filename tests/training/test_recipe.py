from __future__ import annotations

from pathlib import Path

import pytest

from mnemorank.data.hard_negatives import NegativeMining
from mnemorank.errors import InputError, NotFoundError
from mnemorank.training.recipe import bundled_recipes, find_recipe, load_recipe, parse_recipe
from mnemorank.training.run import check_recipe

TOML = """
[model]
base = "{base}"
format = "plain"

[train]
epochs = 3

[[data]]
path = "${{RECIPE_TEST_DATA}}/train.jsonl"

[[loss]]
name = "margin"
options = {{ margin = 0.5 }}
"""


@pytest.fixture
def recipe_file(tmp_path: Path, tiny_bert: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RECIPE_TEST_DATA", "/somewhere")
    path = tmp_path / "mine.toml"
    path.write_text(TOML.format(base=tiny_bert), encoding="utf-8")
    return path


def test_environment_variables_are_expanded(recipe_file):
    recipe = load_recipe(recipe_file)

    assert recipe.name == "mine"
    assert recipe.stage[0].epochs == 3
    assert recipe.stage[0].data[0].path == Path("/somewhere/train.jsonl")
    assert recipe.stage[0].loss[0].options == {"margin": 0.5}
    assert recipe.tables["data"][0]["path"] == "${RECIPE_TEST_DATA}/train.jsonl"  # no path of this machine on record


def test_environment_variables_are_expanded_in_nested_tables(recipe_file):
    overrides = ["data.0.hard_negatives.retriever=${RECIPE_TEST_DATA}/bi", "data.0.hard_negatives.count=2"]
    recipe = load_recipe(recipe_file, overrides)
    assert recipe.stage[0].data[0].hard_negatives == NegativeMining(retriever="/somewhere/bi", count=2)
    assert recipe.tables["data"][0]["hard_negatives"]["retriever"] == "${RECIPE_TEST_DATA}/bi"


def test_sources_with_the_same_file_name_may_differ_if_named(recipe_file):
    override = "data=[{path='a/t', mask_rate=0.5, name='a'}, {path='b/t', name='b'}, {path='c/t', name='b'}]"
    assert [source.mask_rate for source in load_recipe(recipe_file, [override]).stage[0].data] == [0.5, 0.0, 0.0]


def test_a_home_folder_in_a_path_is_expanded(recipe_file):
    recipe = load_recipe(recipe_file, ["data.0.path=~/train.jsonl"])
    assert recipe.stage[0].data[0].path == Path.home() / "train.jsonl"


def test_a_loss_may_be_named_only_once(recipe_file):
    override = "loss=[{name='bce'}, {name='margin'}, {name='bce', options={pos_weight=2}}]"
    with pytest.raises(InputError) as caught:
        check_recipe(load_recipe(recipe_file, [override]))
    assert (caught.value.location, caught.value.field) == ("mine.toml", "loss.2.name")


def test_an_unset_environment_variable_is_an_error(recipe_file, monkeypatch):
    monkeypatch.delenv("RECIPE_TEST_DATA")
    with pytest.raises(InputError, match="RECIPE_TEST_DATA") as caught:
        load_recipe(recipe_file)
    assert (caught.value.location, caught.value.field) == ("mine.toml", "data.0.path")
    assert caught.value.code == "missing"


def test_overrides_set_tables_list_items_and_new_keys(recipe_file):
    recipe = load_recipe(recipe_file, ["train.epochs=7", "data.0.max_examples=5", "lora.r=4", "model.base=hf:org/name"])

    assert recipe.stage[0].epochs == 7
    assert recipe.stage[0].data[0].max_examples == 5
    assert recipe.lora is not None
    assert recipe.lora.r == 4
    assert recipe.model.base == "hf:org/name"


def test_an_override_without_a_value_removes_the_key(recipe_file):
    recipe = load_recipe(recipe_file, ["train.epochs=", "loss.0.options="])
    assert recipe.stage[0].epochs == 1
    assert recipe.stage[0].loss[0].options == {}


@pytest.mark.parametrize(
    ("override", "field", "code"),
    [
        ("train.epochs=many", "train.epochs", "invalid"),
        ("train.epochs=true", "train.epochs", "invalid"),
        ("train.epochs=0", "train.epochs", "invalid"),
        ("train.epocs=3", "train.epocs", "unknown"),
        ("model.template=yes-no", "model.template", "invalid"),
        ("model.format=prose", "model.format", "invalid"),
        ("model.base=", "model.base", "missing"),
        ("color=red", "color", "unknown"),
        ("data.0.weight=-1", "data.0.weight", "invalid"),
        ("data.0.weight=inf", "data.0.weight", "invalid"),
        ("data.0.format=prose", "data.0.format", "invalid"),
        ("data.0.hard_negatives.cuont=3", "data.0.hard_negatives.cuont", "unknown"),
        ("data.0.hard_negatives.count=many", "data.0.hard_negatives.count", "invalid"),
        ("train.schedule=steep", "train.schedule", "invalid"),
        ("train.learning_rate=inf", "train.learning_rate", "invalid"),
        ("train=5", "train", "invalid"),
        ("train.name=a/b", "train.name", "invalid"),
        ("loss=[]", "loss", "missing"),
        ("loss=7", "loss", "invalid"),
        ("save_minutes=nan", "save_minutes", "invalid"),
        ("name=''", "name", "invalid"),
        ("name=org/mine", "name", "invalid"),
        ("pipeline.first_stage_method=scores", "pipeline.first_stage_method", "invalid"),
        ("pipeline.weights.first_stage=-1", "pipeline.weights.first_stage", "invalid"),
        ("pipeline.windows.max_count=0", "pipeline.windows.max_count", "invalid"),
        ("pipeline.windows.overlap=5", "pipeline.windows.overlap", "invalid"),
        ("pipeline.calibration.scale=-1", "pipeline.calibration.scale", "invalid"),
        ("pipeline.abstain_below=2", "pipeline.abstain_below", "invalid"),
        ("seed=-1", "seed", "invalid"),
        ("seed=8589934592", "seed", "invalid"),
        ("dev.data=[{path='d', weight=4}]", "dev.data.0.weight", "invalid"),
        ("dev.data=[{path='d', hard_negatives={count=1}}]", "dev.data.0.hard_negatives", "invalid"),
        ("dev.data=[{path='d', mask_rate=0.1}]", "dev.data.0.mask_rate", "invalid"),
        ("data=[{path='a/t', mask_rate=0.5}, {path='b/t'}]", "data.1.mask_rate", "invalid"),
        ("data=[{path='a/t'}, {path='b/t', label_conflicts='drop'}]", "data.1.label_conflicts", "invalid"),
        ("stage=[]", "stage", "invalid"),
    ],
)
def test_errors_name_the_key(recipe_file, override, field, code):
    with pytest.raises(InputError) as caught:
        load_recipe(recipe_file, [override])
    assert (caught.value.location, caught.value.field) == ("mine.toml", field)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("override", "location", "field", "code"),
    [
        ("epochs", None, "--set", "invalid"),
        ("data.7.max_examples=5", "--set", "data.7.max_examples", "invalid"),
        ("train.epocs=", "--set", "train.epocs", "unknown"),
    ],
)
def test_errors_in_overrides_name_the_override(recipe_file, override, location, field, code):
    with pytest.raises(InputError) as caught:
        load_recipe(recipe_file, [override])
    assert (caught.value.location, caught.value.field, caught.value.code) == (location, field, code)


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("train.epocs=3", "'epochs'"),
        ("data.0.hard_negatives.cuont=3", "'count'"),
        ("train.epocs=", "epochs"),
        ("train.schedule=steep", "linear"),
        ("data.0.format=prose", "2wiki"),
        ("seed=-1", "4294967295"),
        ("loss=[{name='bce', weight=0}]", "above 0"),
    ],
)
def test_errors_say_what_is_expected(recipe_file, override, hint):
    with pytest.raises(InputError) as caught:
        load_recipe(recipe_file, [override])
    assert hint in caught.value.message


def test_a_recipe_needs_a_base():
    table = {"name": "x", "loss": [{"name": "bce"}], "data": [{"path": "x"}], "model": {"format": "plain"}}
    with pytest.raises(InputError) as caught:
        parse_recipe(table)
    assert (caught.value.location, caught.value.field) == ("recipe", "model.base")
    assert caught.value.code == "missing"


@pytest.mark.parametrize(
    ("loss", "field", "code"),
    [
        ({"name": "focal"}, "loss.0.name", "unknown"),
        ({"name": "margin", "options": {"margins": 2}}, "loss.0.options.margins", "unknown"),
        ({"name": "margin", "options": {"margin": float("nan")}}, "loss.0.options.margin", "invalid"),
        ({"name": "bce", "options": {"pos_weight": -1}}, "loss.0.options.pos_weight", "invalid"),
        ({"name": "kl", "options": {"temperature": 0}}, "loss.0.options.temperature", "invalid"),
        ({"name": "lambda", "options": {"k": 0}}, "loss.0.options.k", "invalid"),
    ],
)
def test_errors_in_losses_name_the_key(loss, field, code):
    with pytest.raises(InputError) as caught:
        check_recipe(parse_recipe({"name": "x", "model": {"base": "x"}, "data": [{"path": "x"}], "loss": [loss]}))
    assert (caught.value.location, caught.value.field) == ("recipe", field)
    assert caught.value.code == code


@pytest.mark.parametrize("key", ["train.epocs", "stage.0.epocs"])
def test_errors_distinguish_shared_tables_from_stages(recipe_file, key):
    recipe_file.write_text(recipe_file.read_text() + '\n[[stage]]\nname = "a"\n')
    with pytest.raises(InputError) as caught:
        load_recipe(recipe_file, [f"{key}=3"])
    assert (caught.value.location, caught.value.field) == ("mine.toml", key)


def test_stages_inherit_from_the_shared_tables(recipe_file):
    text = (
        recipe_file.read_text() + '\n[[stage]]\nname = "a"\n[[stage]]\nname = "b"\nepochs = 1\nlearning_rate = 2e-6\n'
    )
    recipe_file.write_text(text)
    first, second = load_recipe(recipe_file).stage

    assert (first.name, first.epochs, second.epochs) == ("a", 3, 1)
    assert first.data == second.data
    assert second.learning_rate == 2e-6


def test_bundled_recipes_are_found_by_name():
    assert {"hindsight", "lychee", "feedback", "yes-no", "multihop", "mini"} <= set(bundled_recipes())
    assert find_recipe("hindsight").name == "hindsight.toml"
    with pytest.raises(NotFoundError, match=r"nowhere.*hindsight") as caught:
        find_recipe("nowhere")
    assert caught.value.field == "recipe"


@pytest.mark.parametrize("name", ["hindsight", "lychee", "feedback", "yes-no", "multihop", "mini"])
def test_bundled_recipes_are_valid(name, monkeypatch):
    monkeypatch.setenv("MNEMORANK_DATA", "/data")
    monkeypatch.setenv("MNEMORANK_LISTS", "/lists")
    recipe = load_recipe(name)
    check_recipe(recipe)
    assert recipe.name == name
    assert recipe.description


def test_a_file_that_is_not_toml_is_an_error(tmp_path):
    path = tmp_path / "bad.toml"
    path.write_text("model = [", encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_recipe(path)
    assert caught.value.location == str(path)
