"""Load networks and tokenizers from Hugging Face folders, without network access or progress bars."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import AutoTokenizer
from transformers.utils import logging as _logging

from mnemorank._internal.jsonio import read_json
from mnemorank.artifact.resolve import HUB_PREFIX, resolve
from mnemorank.errors import ArtifactError
from mnemorank.scorers.torch import split as _split  # noqa: F401 registers the architecture

transformers_logging: Any = _logging  # its functions carry no types
_quiet_lock = threading.RLock()


@dataclass(frozen=True, slots=True)
class LoadedTokenizer:
    """A tokenizer and its settings.

    :param inputs: the model inputs it produces; `token_type_ids` only if the model was trained with them.
    """

    tokenizer: Tokenizer
    pad_id: int
    inputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LoadedNetwork:
    """A network in evaluation mode.

    :param missing: weights that the folder lacks, which are therefore random.
    """

    network: Any
    missing: tuple[str, ...]


def load_network(
    auto_class: Any, folder: Path, device: torch.device, dtype: torch.dtype, **settings: Any
) -> LoadedNetwork:
    """Load a network.

    :param auto_class: `AutoModelForSequenceClassification` or `AutoModelForCausalLM`.
    :param settings: for its `from_pretrained`.
    """
    try:
        with _quiet():
            network, info = auto_class.from_pretrained(
                folder,
                dtype=dtype,
                local_files_only=True,
                use_safetensors=True,  # pickled weights can run code
                output_loading_info=True,
                **settings,
            )
            network = network.to(device).eval()
    except Exception as error:  # transformers raises OSError, ValueError, RuntimeError, SafetensorError, …
        raise ArtifactError(f"{folder}: the torch model could not be loaded: {first_line(error)}") from error
    network.requires_grad_(False)
    return LoadedNetwork(network, tuple(sorted(info["missing_keys"])))


def load_auto_tokenizer(*folders: Path) -> LoadedTokenizer:
    """Load the tokenizer from the first folder that has one, with truncation and padding turned off."""
    folder = next((folder for folder in folders if _has_tokenizer(folder)), None)
    if folder is None:
        raise ArtifactError(f"{folders[0]}: tokenizer.json is missing; copy it from the original model")
    try:
        with _quiet():
            loaded = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        tokenizer = Tokenizer.from_str(loaded.backend_tokenizer.to_str())
    except Exception as error:  # slow tokenizers have no backend; the errors of others share no base class
        raise ArtifactError(f"{folder}: the tokenizer could not be loaded: {first_line(error)}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    pad = loaded.pad_token_id if loaded.pad_token_id is not None else loaded.eos_token_id
    return LoadedTokenizer(tokenizer, pad if pad is not None else 0, tuple(loaded.model_input_names))


def adapter_base(folder: Path, base: str | None) -> Path:
    """Return the folder of the base model of a LoRA adapter.

    :param base: what the manifest or the caller names; by default the one in `adapter_config.json`.
    """
    if not (folder / "adapter_model.safetensors").is_file():  # peft would load pickled weights, which can run code
        raise ArtifactError(f"{folder}: adapter_model.safetensors is missing; pickled weights are not loaded")
    config = read_json(folder / "adapter_config.json")
    name = base or (config.get("base_model_name_or_path") if isinstance(config, dict) else None)
    if not isinstance(name, str) or not name:
        raise ArtifactError(f"{folder / 'adapter_config.json'}: base_model_name_or_path: required")
    if (folder / name).is_dir():
        return folder / name
    if name.startswith(HUB_PREFIX) or Path(name).expanduser().is_dir():
        return resolve(name)
    if Path(name).is_absolute() or name.startswith("."):
        raise ArtifactError(f"{folder}: the base model {name} does not exist; set base=… to its folder")
    return resolve(HUB_PREFIX + name)


@contextmanager
def _quiet() -> Iterator[None]:
    """Turn off the progress bars and load reports of transformers."""
    with _quiet_lock:
        level, bar = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
        transformers_logging.set_verbosity_error()
        transformers_logging.disable_progress_bar()
        try:
            yield
        finally:
            transformers_logging.set_verbosity(level)
            if bar:
                transformers_logging.enable_progress_bar()


def _has_tokenizer(folder: Path) -> bool:
    names = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "spm.model", "sentencepiece.bpe.model")
    return any((folder / name).is_file() for name in names)


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its type if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
