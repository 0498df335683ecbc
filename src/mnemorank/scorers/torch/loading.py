"""Read networks and tokenizers from Hugging Face folders, quietly and from the disk alone."""

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
from mnemorank.artifact.resolve import resolve
from mnemorank.errors import ArtifactError

transformers_logging: Any = _logging  # its functions carry no types
_quiet_lock = threading.RLock()


@dataclass(frozen=True, slots=True)
class Tokenizing:
    """:param inputs: what the tokenizer makes: `token_type_ids` only where the model was trained with them."""

    tokenizer: Tokenizer
    pad_id: int
    inputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A network in evaluation mode. `missing` are weights that the folder lacks and that are random therefore."""

    network: Any
    missing: tuple[str, ...]


def load_network(auto_class: Any, folder: Path, device: torch.device, dtype: torch.dtype, **settings: Any) -> Loaded:
    """:param auto_class: `AutoModelForSequenceClassification` or `AutoModelForCausalLM`."""
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
        raise ArtifactError(f"{folder}: cannot be loaded as a torch model: {_first_line(error)}") from error
    network.requires_grad_(False)
    return Loaded(network, tuple(sorted(info["missing_keys"])))


def load_tokenizing(*folders: Path) -> Tokenizing:
    """The tokenizer of the first of the folders that has one, with truncation and padding off: both are ours to do."""
    folder = next((folder for folder in folders if _has_tokenizer(folder)), None)
    if folder is None:
        raise ArtifactError(f"{folders[0]}: has no tokenizer (tokenizer.json); copy its model's there")
    try:
        with _quiet():
            loaded = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        tokenizer = Tokenizer.from_str(loaded.backend_tokenizer.to_str())
    except Exception as error:  # a slow tokenizer has no backend; the rest raise as they like
        raise ArtifactError(f"{folder}: the tokenizer cannot be loaded: {_first_line(error)}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    pad = loaded.pad_token_id if loaded.pad_token_id is not None else loaded.eos_token_id
    return Tokenizing(tokenizer, pad if pad is not None else 0, tuple(loaded.model_input_names))


def adapter_base(folder: Path, stated: str | None) -> Path:
    """The base model's folder of a LoRA adapter.

    :param stated: the base that the manifest or the caller names; by default the one in `adapter_config.json`.
    """
    config = read_json(folder / "adapter_config.json")
    name = stated or (config.get("base_model_name_or_path") if isinstance(config, dict) else None)
    if not isinstance(name, str) or not name:
        raise ArtifactError(f"{folder / 'adapter_config.json'}: base_model_name_or_path: is missing")
    beside = folder / name
    if beside.is_dir():
        return beside
    if name.startswith("hf:") or Path(name).expanduser().is_dir():
        return resolve(name)
    if Path(name).is_absolute() or name.startswith("."):
        raise ArtifactError(f"{folder}: its base model {name} is not there; say where it is with base=…")
    return resolve(f"hf:{name}")


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers' progress bars and load reports off the terminal; what matters we say ourselves."""
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


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
