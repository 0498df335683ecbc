"""The recipe: all that decides how a model is trained, checked before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mnemorank._internal.old_config import at_least, between, file_name, one_of, positive
from mnemorank.artifact.formats import formats
from mnemorank.artifact.manifest import CHECKS, Calibration, PipelineWeights, Windows
from mnemorank.artifact.templates import templates
from mnemorank.data.sources import Source
from mnemorank.errors import InputError

KINDS = ("classifier", "yes-no")
SCHEDULES = ("linear", "cosine", "constant", "hold")
PRECISIONS = ("float32", "bfloat16")
MEASURES = ("map", "mrr@10", "ndcg@10", "hit@1")


@dataclass(frozen=True, slots=True)
class ModelTable:
    """:param base: a folder, `hf:org/name`, or `module:NAME` for an installed package whose `get_model_path()` tells.
    :param kind: `classifier` (one logit a pair) or `yes-no` (a causal language model's two answers).
    :param dropout: of every dropout layer in the base; 0 nearly halves the time on CPU.
    :param freeze_layers: how many of the lowest layers stay as they are.
    :param special_tokens: added to the tokenizer, with embeddings of their own that are trained.
    """

    base: str
    kind: str = "classifier"
    format: str = "hindsight-2"
    template: str = "pair"
    instruction: str | None = None
    max_length: int = 256
    dropout: float = 0.0
    freeze_layers: int = 0
    freeze_embeddings: bool = False
    special_tokens: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        one_of(self, "kind", KINDS)
        one_of(self, "format", tuple(formats))
        one_of(self, "template", tuple(templates))
        at_least(self, "max_length", 16)
        at_least(self, "freeze_layers", 0)
        between(self, "dropout", 0, 0.9)
        if (templates[self.template].answers is not None) != (self.kind == "yes-no"):
            raise InputError(f"{self.template!r} does not go with kind {self.kind!r}", field="template")


@dataclass(frozen=True, slots=True)
class Lora:
    """:param targets: names of the linear layers that get an adapter; empty for all but the head.
    :param merge: fold the adapter into the base, so that the result is a plain model.
    """

    r: int = 16
    alpha: int = 32
    dropout: float = 0.0
    targets: tuple[str, ...] = ()
    merge: bool = False

    def __post_init__(self) -> None:
        at_least(self, "r", 1)
        at_least(self, "alpha", 1)
        between(self, "dropout", 0, 0.9)


DYNAMIC = "int8-dynamic"


@dataclass(frozen=True, slots=True)
class Qat:
    """Quantization-aware training: INT8 activations per token, weights in groups of `group_size`.

    :param weights: `int4` or `int8`; or `int8-dynamic`, which rounds as the export of that kind does (no groups).
    """

    weights: str = "int4"
    group_size: int = 32

    def __post_init__(self) -> None:
        one_of(self, "weights", ("int4", "int8", DYNAMIC))
        one_of(self, "group_size", (16, 32, 64, 128, 256))


@dataclass(frozen=True, slots=True)
class Average:
    """Weight averaging.

    :param decay: of the running average of the weights, which is what is measured and saved; 0 for none.
    :param with_base: the share of the base's own weights mixed into the result, against forgetting.
    """

    decay: float = 0.0
    with_base: float = 0.0

    def __post_init__(self) -> None:
        between(self, "decay", 0, 0.99999)
        between(self, "with_base", 0, 1)


@dataclass(frozen=True, slots=True)
class Lists:
    """What is drawn from each example each time it comes up.

    :param positives: the most relevant candidates, None for all.
    :param negatives: the most irrelevant candidates, None for all.
    """

    positives: int | None = None
    negatives: int | None = None

    def __post_init__(self) -> None:
        at_least(self, "positives", 1)
        at_least(self, "negatives", 0)


@dataclass(frozen=True, slots=True)
class FeatureNoise:
    """For the `features` template, so that the model cannot lean on the feature tokens.

    :param drop: how often each feature is left out.
    :param swap: how often a text bears the features of another of its list.
    """

    drop: float = 0.0
    swap: float = 0.0

    def __post_init__(self) -> None:
        between(self, "drop", 0, 1)
        between(self, "swap", 0, 1)


@dataclass(frozen=True, slots=True)
class LossTable:
    """:param options: what the loss itself takes, such as `margin`."""

    name: str
    weight: float = 1.0
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        positive(self, "weight")


@dataclass(frozen=True, slots=True)
class Stage:
    """One part of a curriculum. What a `[[stage]]` does not say, it takes from the recipe's own tables.

    :param batch_size: lists in a batch.
    :param accumulate: batches in an optimizer step.
    :param warmup: share of the steps over which the learning rate rises.
    :param schedule: `linear`, `cosine`, `constant`, or `hold` (constant for 60 %, then down).
    :param layer_decay: the learning rate of each layer is that of the layer above times this.
    :param head_factor: weights that the base did not bring (a new head) learn this many times as fast.
    :param steps: stop after so many optimizer steps, whatever `epochs` says.
    :param sort_by_length: put lists of like length into a batch, which saves padding.
    """

    name: str = "train"
    data: tuple[Source, ...] = ()
    loss: tuple[LossTable, ...] = ()
    lists: Lists = Lists()
    features: FeatureNoise = FeatureNoise()
    epochs: int = 1
    steps: int | None = None
    batch_size: int = 8
    accumulate: int = 1
    learning_rate: float = 2e-5
    warmup: float = 0.06
    schedule: str = "linear"
    weight_decay: float = 0.01
    layer_decay: float = 1.0
    head_factor: float = 1.0
    max_grad_norm: float = 1.0
    sort_by_length: bool = True

    def __post_init__(self) -> None:
        file_name(self, "name")
        for name in ("epochs", "batch_size", "accumulate", "steps"):
            at_least(self, name, 1)
        for name in ("learning_rate", "layer_decay", "head_factor", "max_grad_norm"):
            positive(self, name)
        one_of(self, "schedule", SCHEDULES)
        between(self, "warmup", 0, 1)
        between(self, "weight_decay", 0, 1)


@dataclass(frozen=True, slots=True)
class Dev:
    """What the model is measured on while it trains, and chosen by.

    :param every: optimizer steps between measurements, None for once an epoch.
    :param patience: measurements without a gain after which a stage stops; None to go on to the end.
    :param limit: the most queries measured.
    """

    data: tuple[Source, ...] = ()
    measure: str = "map"
    every: int | None = None
    patience: int | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        one_of(self, "measure", MEASURES)
        for name in ("every", "patience", "limit"):
            at_least(self, name, 1)
        for i, source in enumerate(self.data):
            for name, plain in (("weight", 1.0), ("hard_negatives", None), ("mask_rate", 0.0)):
                if getattr(source, name) != plain:
                    raise InputError(f"data[{i}].{name}: is for training; dev questions are measured as they are, once")


@dataclass(frozen=True, slots=True)
class PipelineTable:
    """How the pipeline is to run the model, copied into the manifest.

    :param calibration: instead of the one that is fitted on the dev questions, as where it was fitted with the blend.
    """

    weights: PipelineWeights = PipelineWeights()
    first_stage_method: str = "score"
    long_query_terms: int | None = None
    windows: Windows = Windows()
    abstain_below: float = 0.0
    calibration: Calibration | None = None

    def __post_init__(self) -> None:
        # As the manifest is read: what it refuses would be trained, and could never be loaded.
        for key, value in asdict(self).items():
            parts = {f"{key}.{name}": part for name, part in value.items()} if isinstance(value, dict) else {key: value}
            for name, part in parts.items():
                if name in CHECKS and not CHECKS[name][1](part):
                    raise InputError(f"expected {CHECKS[name][0]}, got {part!r:.60}", field=name)


@dataclass(frozen=True, slots=True)
class Recipe:
    """:param tables: the recipe as it was written, with environment variables by name, for the record.
    :param save_every: optimizer steps between checkpoints; one is also written when the last is `save_minutes` old.
    :param threads: of torch; None for all cores.
    :param precision: of the matrix products in training, `float32` or `bfloat16`; the latter is faster where the
        processor has instructions for it. Weights, losses and measurements are in float32 either way.
    """

    name: str
    model: ModelTable
    stage: tuple[Stage, ...]
    description: str = ""
    seed: int = 1
    threads: int | None = None
    precision: str = "float32"
    save_every: int = 200
    save_minutes: float = 5.0
    lora: Lora | None = None
    qat: Qat | None = None
    average: Average = Average()
    pipeline: PipelineTable = PipelineTable()
    dev: Dev = Dev()
    tables: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        file_name(self, "name")
        between(self, "seed", 0, 2**32 - 1)
        at_least(self, "threads", 1)
        one_of(self, "precision", PRECISIONS)
        at_least(self, "save_every", 1)
        at_least(self, "save_minutes", 0)
        if self.qat and self.lora:
            raise InputError("does not go with lora: train the merged model in a second recipe", field="qat")

    def to_dict(self) -> dict[str, Any]:
        """The whole recipe as JSON values, defaults included."""
        return {key: value for key, value in _plain(asdict(self)).items() if key != "tables"}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value
