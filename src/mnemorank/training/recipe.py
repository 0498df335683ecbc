"""Recipes: everything that decides how a model is trained, read from TOML and validated before any work starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, PrivateAttr, model_validator

from mnemorank._internal.config import (
    ConfigModel,
    apply_override,
    check_choice,
    check_file_name,
    expand_variables,
    read_toml,
    validate_config,
)
from mnemorank.artifact.formats import formats
from mnemorank.artifact.manifest import CHECKS, Calibration, PipelineWeights, Windows
from mnemorank.artifact.templates import templates
from mnemorank.data.sources import Source
from mnemorank.errors import InputError, NotFoundError

FileName = Annotated[str, AfterValidator(check_file_name)]
RecipeSource = Annotated[Source, AfterValidator(lambda source: replace(source, path=source.path.expanduser()))]


class ModelSettings(ConfigModel):
    """The base model, and how it reads a query and a memory.

    :param base: a folder, `hf:org/name`, or `module:NAME` for an installed package with a `get_model_path()`.
    :param kind: `classifier` (one logit per pair) or `yes-no` (a causal language model that answers yes or no).
    :param split: how many of the lowest layers read query and memory apart, so that memories can be prepared; None for
        a plain cross-encoder. The base must be a BERT model.
    :param dropout: the rate of all dropout layers in the base; 0 nearly halves the training time on CPU.
    :param freeze_layers: the number of lowest layers that are not trained.
    :param special_tokens: tokens to add to the tokenizer; their embeddings are trained.
    """

    base: str
    kind: Literal["classifier", "yes-no"] = "classifier"
    format: Annotated[str, AfterValidator(lambda name: check_choice(name, tuple(formats)))] = "hindsight-2"
    template: Annotated[str, AfterValidator(lambda name: check_choice(name, tuple(templates)))] = "pair"
    instruction: str | None = None
    split: int | None = Field(default=None, ge=1)
    max_length: int = Field(default=256, ge=16)
    dropout: float = Field(default=0.0, ge=0, le=0.9)
    freeze_layers: int = Field(default=0, ge=0)
    freeze_embeddings: bool = False
    special_tokens: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _template_fits_kind(self) -> Self:
        if (templates[self.template].answers is not None) != (self.kind == "yes-no"):
            raise InputError(f"{self.template!r} does not fit kind {self.kind!r}", field="template")
        return self


class LoraSettings(ConfigModel):
    """LoRA adapters.

    :param targets: names of the linear layers to adapt; empty for all but the head.
    :param merge: merge the adapter into the base, so that the result is a plain model.
    """

    r: int = Field(default=16, ge=1)
    alpha: int = Field(default=32, ge=1)
    dropout: float = Field(default=0.0, ge=0, le=0.9)
    targets: tuple[str, ...] = ()
    merge: bool = False


class QatSettings(ConfigModel):
    """Quantization-aware training.

    :param weights: `int4` or `int8` weights in groups with INT8 activations per token; or `int8-dynamic`, which rounds
        as the dynamic INT8 export does and ignores `group_size`.
    """

    weights: Literal["int4", "int8", "int8-dynamic"] = "int4"
    group_size: Literal[16, 32, 64, 128, 256] = 32


class AverageSettings(ConfigModel):
    """Weight averaging.

    :param decay: of the exponential moving average of the weights, which is evaluated and saved; 0 for none.
    :param with_base: the share of the base's own weights mixed into the result, against forgetting.
    """

    decay: float = Field(default=0.0, ge=0, le=0.99999)
    with_base: float = Field(default=0.0, ge=0, le=1)


class ListSampling(ConfigModel):
    """How many candidates of an example are sampled each time it comes up; None for all."""

    positives: int | None = Field(default=None, ge=1)
    negatives: int | None = Field(default=None, ge=0)


class FeatureNoise(ConfigModel):
    """Noise for the `features` template, so that the model cannot rely on the feature tokens alone.

    :param drop: the probability of leaving out a feature.
    :param swap: the probability of giving a text the features of another text in its list.
    """

    drop: float = Field(default=0.0, ge=0, le=1)
    swap: float = Field(default=0.0, ge=0, le=1)


class LossSettings(ConfigModel):
    """A loss by name, its weight in the sum, and its own options, such as `margin`."""

    name: str
    weight: float = Field(default=1.0, gt=0)
    options: dict[str, Any] = Field(default_factory=dict)


class StageSettings(ConfigModel):
    """One stage of a curriculum. Keys that a `[[stage]]` does not set come from the tables of the recipe.

    :param batch_size: lists per batch.
    :param accumulate: batches per optimizer step.
    :param warmup: the share of steps during which the learning rate rises.
    :param schedule: `linear`, `cosine`, `constant`, or `hold` (constant for 60 % of the steps, then linear).
    :param layer_decay: the learning rate of each layer is that of the layer above times this.
    :param head_factor: multiplies the learning rate of weights that the base lacks, such as a new head.
    :param steps: stop after this many optimizer steps, whatever `epochs` says.
    :param sort_by_length: batch lists of similar length together, which saves padding.
    """

    name: FileName = "train"
    data: tuple[RecipeSource, ...] = ()
    loss: tuple[LossSettings, ...] = ()
    lists: ListSampling = ListSampling()
    features: FeatureNoise = FeatureNoise()
    epochs: int = Field(default=1, ge=1)
    steps: int | None = Field(default=None, ge=1)
    batch_size: int = Field(default=8, ge=1)
    accumulate: int = Field(default=1, ge=1)
    learning_rate: float = Field(default=2e-5, gt=0)
    warmup: float = Field(default=0.06, ge=0, le=1)
    schedule: Literal["linear", "cosine", "constant", "hold"] = "linear"
    weight_decay: float = Field(default=0.01, ge=0, le=1)
    layer_decay: float = Field(default=1.0, gt=0)
    head_factor: float = Field(default=1.0, gt=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    sort_by_length: bool = True

    @property
    def mask_rates(self) -> dict[str, float]:
        """The share of tokens to mask, by source."""
        return {source.display_name: source.mask_rate for source in self.data}


class DevSettings(ConfigModel):
    """The data that the model is evaluated on during training, and how its best checkpoint is chosen.

    :param every: optimizer steps between evaluations; None for once per epoch.
    :param patience: evaluations without improvement after which a stage stops; None for never.
    :param limit: the number of queries to sample when there are more.
    """

    data: tuple[RecipeSource, ...] = ()
    metric: Literal["map", "mrr@10", "ndcg@10", "hit@1"] = "map"
    every: int | None = Field(default=None, ge=1)
    patience: int | None = Field(default=None, ge=1)
    limit: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _has_no_training_options(self) -> Self:
        for i, source in enumerate(self.data):
            for name, default in (("weight", 1.0), ("hard_negatives", None), ("mask_rate", 0.0)):
                if getattr(source, name) != default:
                    raise InputError("applies to training data only", field=f"data.{i}.{name}")
        return self


class PipelineSettings(ConfigModel):
    """How the ranking pipeline runs the model; copied into the manifest.

    :param calibration: replaces the calibration that is fitted on the dev data.
    """

    weights: PipelineWeights = PipelineWeights()
    first_stage_method: str = "score"
    long_query_terms: int | None = None
    windows: Windows = Windows()
    abstain_below: float = 0.0
    calibration: Calibration | None = None

    @model_validator(mode="after")
    def _fits_the_manifest(self) -> Self:
        """Reject what the manifest would reject, before hours of training."""
        for key in type(self).model_fields:
            value = getattr(self, key)
            parts = asdict(value) if is_dataclass(value) and not isinstance(value, type) else {"": value}
            for part, number in parts.items():
                name = f"{key}.{part}".rstrip(".")
                if name in CHECKS and not CHECKS[name][1](number):
                    raise InputError(f"expected {CHECKS[name][0]}, got {number!r:.60}", field=name)
        return self


class Recipe(ConfigModel):
    """A training run.

    :param save_every: optimizer steps between checkpoints; one is also written when the last is `save_minutes` old.
    :param threads: torch threads; None for all cores.
    :param precision: of the matrix products in training. `bfloat16` is faster on processors with instructions for it;
        weights, losses and evaluation are in float32 either way.
    """

    name: FileName
    description: str = ""
    seed: int = Field(default=1, ge=0, le=2**32 - 1)
    threads: int | None = Field(default=None, ge=1)
    precision: Literal["float32", "bfloat16"] = "float32"
    save_every: int = Field(default=200, ge=1)
    save_minutes: float = Field(default=5.0, ge=0)
    model: ModelSettings
    lora: LoraSettings | None = None
    qat: QatSettings | None = None
    average: AverageSettings = AverageSettings()
    pipeline: PipelineSettings = PipelineSettings()
    dev: DevSettings = DevSettings()
    stage: tuple[StageSettings, ...]
    _file: str = PrivateAttr("recipe")
    _tables: dict[str, Any] = PrivateAttr(default_factory=dict)

    @model_validator(mode="after")
    def _trains_whole_weights_for_qat(self) -> Self:
        if self.qat and self.lora:
            raise InputError("cannot be combined with lora; quantize the merged model in a second run", field="qat")
        return self

    @property
    def file(self) -> str:
        """The file name, for error messages."""
        return self._file

    @property
    def tables(self) -> dict[str, Any]:
        """The tables as written, with environment variables unexpanded, for the record."""
        return self._tables

    def to_dict(self) -> dict[str, Any]:
        """Return the whole recipe, defaults included, as JSON values."""
        return self.model_dump(mode="json")


class _SharedTables(ConfigModel):
    """Tables of a recipe that its stages inherit."""

    train: StageSettings = StageSettings()
    data: tuple[RecipeSource, ...] = ()
    loss: tuple[LossSettings, ...] = ()
    lists: ListSampling = ListSampling()
    features: FeatureNoise = FeatureNoise()


def load_recipe(name: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read and validate a recipe.

    :param name: a TOML file, or the name of a bundled recipe.
    :param overrides: `key=value` each, such as `model.base=/models/minilm`; see `apply_override`.
    """
    path = find_recipe(name)
    table = read_toml(path)
    for override in overrides:
        table = apply_override(table, override)
    return parse_recipe({"name": path.stem, **table}, path.name)


def parse_recipe(table: Mapping[str, Any], file: str = "recipe") -> Recipe:
    """Validate the tables of a recipe. Stages inherit from `train`, `data`, `loss`, `lists` and `features`."""
    rest = expand_variables(table, file)
    shared = {key: rest.pop(key) for key in _SharedTables.model_fields if key in rest}
    validate_config(_SharedTables, shared, file)
    inherited = {**shared.pop("train", {}), **shared}
    stages = rest.pop("stage", [{}])
    if not isinstance(stages, list) or not all(isinstance(stage, Mapping) for stage in stages) or not stages:
        raise InputError("expected a list of tables, [[stage]]", field="stage", location=file)
    rest["stage"] = [
        {"name": f"stage-{i}" if len(stages) > 1 else "train", **inherited, **stage}
        for i, stage in enumerate(stages, 1)
    ]
    recipe = validate_config(Recipe, rest, file)
    for i, stage in enumerate(recipe.stage):
        for key in ("data", "loss"):
            if not getattr(stage, key):
                message = f"stage {i + 1} needs at least one [[{key}]]"
                raise InputError(message, field=key, code="missing", location=file)
        _check_source_names(stage.data, f"stage.{i}.data" if "data" in stages[i] else "data", file)
    recipe._file, recipe._tables = file, dict(table)
    return recipe


def find_recipe(name: str | Path) -> Path:
    """Return the file of a recipe, given by its path or as the name of a bundled recipe."""
    path = Path(name).expanduser()
    if path.is_file():
        return path
    bundled = bundled_recipes()
    if str(name) in bundled:
        return bundled[str(name)]
    expected = ", ".join(bundled)
    raise NotFoundError(f"no file {str(name)!r}, nor a bundled recipe of that name ({expected})", field="recipe")


def bundled_recipes() -> dict[str, Path]:
    """Return the recipes in `assets/recipes`, by name."""
    folder = Path(str(files("mnemorank"))) / "assets" / "recipes"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def _check_source_names(sources: Sequence[Source], field: str, file: str) -> None:
    """Raise if sources of the same name differ: examples refer to their source by name only."""
    first: dict[str, Source] = {}
    for i, source in enumerate(sources):
        other = first.setdefault(source.display_name, source)
        for key in ("mask_rate", "label_conflicts"):
            if getattr(source, key) != getattr(other, key):
                raise InputError(
                    f"differs from that of another source named {source.display_name!r}; give each its own name",
                    field=f"{field}.{i}.{key}",
                    location=file,
                )
