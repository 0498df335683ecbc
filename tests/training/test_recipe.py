from __future__ import annotations

from pathlib import Path

import pytest

from mnemorank.data.hard_negatives import NegativeMining
from mnemorank.errors import InputError
from mnemorank.training.objective import check_losses
from mnemorank.training.recipe_files import find_recipe, load_recipe, parse_recipe, shipped_recipes
from mnemorank.training.run import check

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


def test_a_recipe_is_read_with_its_environment_variables(recipe_file):
    recipe = load_recipe(recipe_file)

    assert recipe.name == "mine"
    assert recipe.stage[0].epochs == 3
    assert recipe.stage[0].data[0].path == Path("/somewhere/train.jsonl")
    assert recipe.stage[0].loss[0].options == {"margin": 0.5}
    assert recipe.tables["data"][0]["path"] == "${RECIPE_TEST_DATA}/train.jsonl"  # the record names no machine


def test_variables_in_the_options_of_mining_are_put_in_too(recipe_file):
    changes = ["data.0.hard_negatives.retriever=${RECIPE_TEST_DATA}/bi", "data.0.hard_negatives.count=2"]
    recipe = load_recipe(recipe_file, changes)
    assert recipe.stage[0].data[0].hard_negatives == NegativeMining(retriever="/somewhere/bi", count=2)
    assert recipe.tables["data"][0]["hard_negatives"]["retriever"] == "${RECIPE_TEST_DATA}/bi"


def test_sources_of_one_file_name_may_differ_once_they_have_names(recipe_file):
    change = "data=[{path='a/t', mask_rate=0.5, name='a'}, {path='b/t', name='b'}, {path='c/t', name='b'}]"
    assert [source.mask_rate for source in load_recipe(recipe_file, [change]).stage[0].data] == [0.5, 0.0, 0.0]


def test_a_loss_is_named_once(recipe_file):
    change = "loss=[{name='bce'}, {name='margin'}, {name='bce', options={pos_weight=2}}]"
    with pytest.raises(InputError, match=r"loss\[2\]\.name: bce is named twice"):
        check(load_recipe(recipe_file, [change]))


def test_an_unset_variable_is_named(recipe_file, monkeypatch):
    monkeypatch.delenv("RECIPE_TEST_DATA")
    with pytest.raises(InputError, match=r"mine\.toml: data\[0\]\.path: the environment variable RECIPE_TEST_DATA"):
        load_recipe(recipe_file)


def test_set_changes_tables_lists_and_new_keys(recipe_file):
    recipe = load_recipe(recipe_file, ["train.epochs=7", "data.0.max_examples=5", "lora.r=4", "model.base=hf:org/name"])

    assert recipe.stage[0].epochs == 7
    assert recipe.stage[0].data[0].max_examples == 5
    assert recipe.lora is not None
    assert recipe.lora.r == 4
    assert recipe.model.base == "hf:org/name"


def test_set_without_a_value_takes_the_key_out(recipe_file):
    recipe = load_recipe(recipe_file, ["train.epochs=", "loss.0.options="])
    assert recipe.stage[0].epochs == 1
    assert recipe.stage[0].loss[0].options == {}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("epochs", "--set: expected key=value, got 'epochs'"),
        ("data.7.max_examples=5", "--set: data.7.max_examples: expected a position from 0 to 0"),
        ("train.epochs=many", "mine.toml: train.epochs: expected a whole number, got 'many'"),
        ("train.epochs=true", "mine.toml: train.epochs: expected a whole number, got True"),
        ("train.epocs=3", "mine.toml: train.epocs: unknown key (did you mean 'epochs'?)"),
        ("train.epochs=0", "mine.toml: train.epochs: expected a number from 1, got 0"),
        ("model.template=yes-no", "mine.toml: model.template: 'yes-no' does not go with kind 'classifier'"),
        ("model.format=prose", "mine.toml: model.format: expected one of"),
        ("colour=red", "mine.toml: colour: unknown key"),
        ("data.0.weight=-1", "mine.toml: data[0].weight: expected a number above 0, got -1"),
        ("train.schedule=steep", "mine.toml: train.schedule: expected one of linear"),
        ("loss=[]", "mine.toml: loss: is required"),
        ("loss=7", "mine.toml: loss: expected a list of tables"),
        ("train.epocs=", "--set: train.epocs: there is no such key to take out; there are: epochs"),
        ("model.base=", "mine.toml: model.base: is required"),
        ("data.0.format=prose", "mine.toml: data[0].format: expected one of auto, 2wiki"),
        ("data.0.hard_negatives.cuont=3", "data[0].hard_negatives.cuont: unknown key (did you mean 'count'?)"),
        ("data.0.hard_negatives.count=many", "data[0].hard_negatives.count: expected a whole number, got 'many'"),
        ("data.0.weight=inf", "mine.toml: data[0].weight: expected a finite number, got inf"),
        ("train.learning_rate=inf", "mine.toml: train.learning_rate: expected a finite number, got inf"),
        ("save_minutes=nan", "mine.toml: save_minutes: expected a finite number, got nan"),
        ("loss.0.options.margin=nan", "mine.toml: loss[0].options.margin: expected a finite number, got nan"),
        ("name=''", "mine.toml: name: expected a name that a file can have"),
        ("name=org/mine", "mine.toml: name: expected a name that a file can have"),
        ("train=5", "mine.toml: train: expected a table, [train], got 5"),
        ("pipeline.first_stage.method=scores", "pipeline.first_stage.method: expected score or rank, got 'scores'"),
        ("pipeline.first_stage.weight=-1", "mine.toml: pipeline.first_stage.weight: expected a number from 0, got -1"),
        ("pipeline.windows.max_count=0", "mine.toml: pipeline.windows.max_count: expected a whole number from 1, got 0"),
        ("pipeline.windows.overlap=5", "mine.toml: pipeline.windows.overlap: expected a number from 0 to 0.9, got 5"),
        ("pipeline.calibration.scale=-1", "mine.toml: pipeline.calibration.scale: expected a number above 0, got -1"),
        ("pipeline.abstain_below=2", "mine.toml: pipeline.abstain_below: expected a number from 0 to 1, got 2"),
        ("seed=-1", "mine.toml: seed: expected a number from 0 to 4294967295, got -1"),
        ("seed=8589934592", "mine.toml: seed: expected a number from 0 to 4294967295, got 8589934592"),
        ("dev.data=[{path='d', weight=4}]", "mine.toml: dev.data[0].weight: is for training"),
        ("dev.data=[{path='d', hard_negatives={count=1}}]", "mine.toml: dev.data[0].hard_negatives: is for training"),
        ("dev.data=[{path='d', mask_rate=0.1}]", "mine.toml: dev.data[0].mask_rate: is for training"),
        (
            "data=[{path='a/t', mask_rate=0.5}, {path='b/t'}]",
            "mine.toml: data[1].mask_rate: differs from that of another",
        ),
        ("data=[{path='a/t'}, {path='b/t', label_conflicts='drop'}]", "mine.toml: data[1].label_conflicts: differs"),
        ("train.name=a/b", "mine.toml: train.name: expected a name that a file can have"),
    ],
)
def test_what_is_wrong_is_named_by_its_key(recipe_file, change, message):
    with pytest.raises(InputError) as caught:
        load_recipe(recipe_file, [change])
    assert message in str(caught.value)


def test_a_missing_base_is_named(recipe_file):
    table = {"loss": [{"name": "bce"}], "data": [{"path": "x"}], "model": {"format": "plain"}}
    with pytest.raises(InputError, match=r"recipe: model\.base: is required"):
        parse_recipe(table, name="x")


def test_unknown_losses_and_options_are_named(recipe_file):
    with pytest.raises(InputError, match="unknown loss 'focal'; there are: bce, kl, lambda, listnet, margin"):
        check(load_recipe(recipe_file, ["loss.0.name=focal"]))
    recipe = load_recipe(recipe_file, ["loss.0.options.margins=2"])
    with pytest.raises(InputError, match=r"loss\[0\]\.options\.margins: unknown key \(did you mean 'margin'\?\)"):
        check_losses(recipe.stage[0].loss)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ({"name": "bce", "options": {"pos_weight": -1}}, r"loss\[0\]\.options\.pos_weight: expected a number from 0"),
        ({"name": "kl", "options": {"temperature": 0}}, r"loss\[0\]\.options\.temperature: expected a number above 0"),
        ({"name": "lambda", "options": {"k": 0}}, r"loss\[0\]\.options\.k: expected a number from 1"),
    ],
)
def test_options_that_make_no_sense_are_named(recipe_file, loss, message):
    recipe = parse_recipe({"model": {"base": "x"}, "data": [{"path": "x"}], "loss": [loss]}, name="x")
    with pytest.raises(InputError, match=message):
        check(recipe)


def test_shared_tables_keep_their_names_where_there_are_stages(recipe_file):
    recipe_file.write_text(recipe_file.read_text() + '\n[[stage]]\nname = "a"\n')
    with pytest.raises(InputError, match=r"mine\.toml: train\.epocs: unknown key"):
        load_recipe(recipe_file, ["train.epocs=3"])
    with pytest.raises(InputError, match=r"mine\.toml: stage\[0\]\.epocs: unknown key"):
        load_recipe(recipe_file, ["stage.0.epocs=3"])


def test_stages_take_what_they_do_not_say_from_the_recipe(recipe_file):
    text = (
        recipe_file.read_text() + '\n[[stage]]\nname = "a"\n[[stage]]\nname = "b"\nepochs = 1\nlearning_rate = 2e-6\n'
    )
    recipe_file.write_text(text)
    first, second = load_recipe(recipe_file).stage

    assert (first.name, first.epochs, second.epochs) == ("a", 3, 1)
    assert first.data == second.data
    assert second.learning_rate == 2e-6


def test_recipes_are_found_by_name():
    assert {"hindsight", "lychee", "feedback", "yes-no", "multihop", "mini"} <= set(shipped_recipes())
    assert find_recipe("hindsight").name == "hindsight.toml"
    with pytest.raises(InputError, match="no recipe 'nowhere': neither a file nor one of"):
        find_recipe("nowhere")


@pytest.mark.parametrize("name", ["hindsight", "lychee", "feedback", "yes-no", "multihop", "mini"])
def test_the_shipped_recipes_are_valid(name, monkeypatch):
    monkeypatch.setenv("MNEMORANK_DATA", "/data")
    monkeypatch.setenv("MNEMORANK_LISTS", "/lists")
    recipe = load_recipe(name)
    check(recipe)
    assert recipe.name == name
    assert recipe.description


def test_a_file_that_is_not_toml_is_an_error(tmp_path):
    path = tmp_path / "bad.toml"
    path.write_text("model = [", encoding="utf-8")
    with pytest.raises(InputError, match=r"bad\.toml: cannot be read as TOML"):
        load_recipe(path)
