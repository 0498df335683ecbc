"""The base model that training starts from, and LoRA adapters on top of it."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, TaskType, get_peft_model
from tokenizers import Tokenizer
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from mnemorank._internal.quiet import quiet_libraries
from mnemorank.artifact.resolve import resolve, usable_positions
from mnemorank.errors import InputError, MnemorankError
from mnemorank.scorers.torch.split import SplitClassifier
from mnemorank.training.recipe import LoraSettings, ModelSettings

HEADS = ("score", "classifier", "classification_head", "lm_head")
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "vocab.txt",
    "vocab.json",
)


@dataclass(slots=True)
class LoadedBase:
    """A base model, ready for training.

    :param model: the Hugging Face model.
    :param tokenizer: the Hugging Face tokenizer.
    :param new_parameters: names of parameters that the base lacks and that were initialized, such as the head's.
    """

    model: Any
    tokenizer: Any
    path: Path
    new_parameters: tuple[str, ...]

    def inference_tokenizer(self) -> Tokenizer:
        """Return the tokenizer as inference uses it, without truncation and padding."""
        tokenizer = Tokenizer.from_str(self.tokenizer.backend_tokenizer.to_str())
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer


def load_base(settings: ModelSettings, seed: int) -> LoadedBase:
    """Load the base in float32. New weights are initialized with the seed."""
    path = base_path(settings.base)
    tokenizer = _load_tokenizer(path, settings.max_length)
    torch.manual_seed(seed)
    model, new_parameters = _load_model(path, settings)
    if settings.split is not None:
        model = _split(model, settings.split)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
    if model.config.pad_token_id is None:
        model.config.pad_token_id = tokenizer.pad_token_id
    if settings.special_tokens:
        _add_tokens(model, tokenizer, settings.special_tokens)
    positions = max_positions(model.config)
    if positions is not None and settings.max_length > positions:
        raise InputError(
            f"expected at most the base's {positions} positions, got {settings.max_length}", field="model.max_length"
        )
    return LoadedBase(model, tokenizer, path, new_parameters)


def max_positions(config: Any) -> int | None:
    """Return the longest input of a model in tokens; None if its configuration does not say."""
    positions = getattr(config, "max_position_embeddings", None)
    if not isinstance(positions, int) or positions < 1:
        return None
    return usable_positions(positions, config.model_type)


def base_path(name: str) -> Path:
    """Return the folder of a base: a model name, or `module:NAME` for a package with a `get_model_path()`."""
    if not name.startswith("module:"):
        try:
            return resolve(name)
        except MnemorankError as error:
            raise InputError(f"{error}", field="model.base") from None
    module = name.removeprefix("module:")
    try:
        return Path(str(importlib.import_module(module).get_model_path()))
    except ImportError:
        package = module.replace("_", "-")
        raise InputError(f"{name}: not installed; run `pip install {package}`", field="model.base") from None
    except AttributeError:
        raise InputError(f"{name}: the package has no get_model_path()", field="model.base") from None


def add_lora(base: LoadedBase, lora: LoraSettings, kind: str) -> PeftModel:
    """Put LoRA adapters on the base.

    The head and everything else that the base lacks (such as a BERT pooler) would be initialized at random when the
    adapter is loaded again. As `modules_to_save` they are trained and stored with the adapter.
    """
    modules = _modules_to_save(base, kind)
    config = LoraConfig(
        task_type=TaskType.CAUSAL_LM if kind == "yes-no" else TaskType.SEQ_CLS,
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=_target_modules(base.model, lora.targets, modules),
        modules_to_save=modules or None,
    )
    return get_peft_model(base.model, config)


def _load_tokenizer(path: Path, max_length: int) -> Any:
    if not any((path / name).is_file() for name in _TOKENIZER_FILES):
        raise InputError(f"{path}: no tokenizer found (expected {', '.join(_TOKENIZER_FILES)})", field="model.base")
    try:
        with quiet_libraries():
            return AutoTokenizer.from_pretrained(str(path), model_max_length=max_length)
    except Exception as error:  # the loaders raise many types, down to bare Exception
        raise InputError(f"{path}: the tokenizer could not be loaded: {error}", field="model.base") from None


def _load_model(path: Path, settings: ModelSettings) -> tuple[Any, tuple[str, ...]]:
    auto_class = AutoModelForCausalLM if settings.kind == "yes-no" else AutoModelForSequenceClassification
    try:
        config = AutoConfig.from_pretrained(str(path))
        _set_dropout(config, settings.dropout)
        if settings.kind == "classifier":
            config.num_labels = 1
            config.id2label, config.label2id = {0: "relevant"}, {"relevant": 0}
        with quiet_libraries():
            loaded: Any = auto_class.from_pretrained(
                str(path),
                config=config,
                dtype=torch.float32,
                use_safetensors=True,  # pickled weights can run code
                output_loading_info=True,
                ignore_mismatched_sizes=True,
            )
        model, report = loaded
    except Exception as error:  # the loaders raise many types
        reason = " ".join(str(error).split())
        raise InputError(f"{path}: the weights could not be loaded: {reason}", field="model.base") from None
    mismatched = [entry[0] if isinstance(entry, tuple) else str(entry) for entry in report.get("mismatched_keys", ())]
    new_parameters = tuple(sorted({*report["missing_keys"], *mismatched}))
    if settings.kind == "yes-no" and new_parameters:
        raise InputError(
            f"{path}: not a complete language model; missing {', '.join(new_parameters[:3])}", field="model.base"
        )
    return model, new_parameters


def _split(model: Any, layers: int) -> SplitClassifier:
    """Return a split encoder with the weights of a BERT model, or the model itself if it is split there already."""
    if isinstance(model, SplitClassifier):
        if model.config.apart_layers != layers:
            raise InputError(f"the base is split at {model.config.apart_layers}, got {layers}", field="model.split")
        return model
    if model.config.model_type != "bert" or layers >= model.config.num_hidden_layers:
        depth = model.config.num_hidden_layers
        raise InputError(
            f"needs a BERT base with more than {layers} layers, got {model.config.model_type} with {depth}",
            field="model.split",
        )
    return SplitClassifier.from_bert(model, apart_layers=layers)


def _set_dropout(config: Any, dropout: float) -> None:
    """Set every dropout rate of the architecture, whatever its name."""
    for key, value in list(config.to_dict().items()):
        if "dropout" in key and (isinstance(value, (int, float)) or value is None) and not isinstance(value, bool):
            setattr(config, key, dropout)


def _add_tokens(model: Any, tokenizer: Any, tokens: tuple[str, ...]) -> None:
    """Add tokens; the embedding of each starts as the mean of the pieces it was split into before."""
    pieces = {token: tokenizer(token, add_special_tokens=False)["input_ids"] for token in tokens}
    tokenizer.add_tokens(list(tokens), special_tokens=True)
    model.resize_token_embeddings(
        max(len(tokenizer), model.get_input_embeddings().weight.shape[0]), mean_resizing=False
    )
    weight = model.get_input_embeddings().weight
    with torch.no_grad():
        for token in tokens:
            weight[tokenizer.convert_tokens_to_ids(token)] = weight[pieces[token]].mean(dim=0)


def _modules_to_save(base: LoadedBase, kind: str) -> list[str]:
    if kind == "yes-no":
        return []
    names = {name for name, _ in base.model.named_children() if name in HEADS}
    names |= {_module_name(parameter) for parameter in base.new_parameters}
    if not names:
        raise InputError(f"{base.path}: no classification head found (one of {', '.join(HEADS)})", field="model.base")
    return sorted(names)


def _module_name(parameter: str) -> str:
    """The module that a new parameter belongs to: `pooler` for `bert.pooler.dense.weight`."""
    parts = parameter.split(".")[:-1]
    return next((part for part in parts if part in ("pooler", *HEADS)), parts[-1])


def _target_modules(model: nn.Module, targets: tuple[str, ...], saved: list[str]) -> list[str]:
    linear = {
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and not set(name.split(".")) & {*saved, *HEADS}
    }
    if not targets:
        return sorted(linear)
    layer_names = {name.split(".")[-1] for name in linear}
    for target in targets:
        if target not in layer_names:
            expected = ", ".join(sorted(layer_names))
            raise InputError(f"no linear layer named {target!r}; expected one of {expected}", field="lora.targets")
    return sorted(name for name in linear if name.split(".")[-1] in targets)
