"""LoRA adapters on sequence classifiers, as in LycheeMem. Adapters of the same base share it in memory."""

from __future__ import annotations

import threading
import weakref
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import torch
from peft import PeftModel
from transformers import AutoModelForSequenceClassification

from mnemorank._internal.jsonio import read_json
from mnemorank.artifact.resolve import Artifact
from mnemorank.errors import ArtifactError
from mnemorank.scorers.protocol import Scores
from mnemorank.scorers.torch.base import Feed
from mnemorank.scorers.torch.classifier import ClassifierScorer, check_labels
from mnemorank.scorers.torch.loading import (
    LoadedNetwork,
    LoadedTokenizer,
    adapter_base,
    first_line,
    load_auto_tokenizer,
    load_network,
)


class LoraScorer(ClassifierScorer):
    """A LoRA adapter and its base model.

    :param base: a folder or a Hub id; by default the manifest's base, else the one in `adapter_config.json`.
    :param merge: merge the adapter into its own copy of the base, which is faster but shares no memory.
    :param options: see `TorchScorer`.
    """

    def __init__(self, artifact: Artifact, *, base: str | None = None, merge: bool = False, **options: Any) -> None:
        self._base = base or artifact.manifest.base
        self._merge = merge
        self._shared: SharedBase | None = None
        self._adapter = ""
        super().__init__(artifact, **options)
        if self._shared is not None:
            self._lock = self._shared.lock  # the base runs one batch at a time, for all its adapters

    def _load(self, artifact: Artifact) -> LoadedTokenizer:
        base = adapter_base(artifact.path, self._base)
        tokenizer = load_auto_tokenizer(artifact.path, base)
        if self._merge:
            loaded = _load_base(base, self.device, self.dtype)
            network = add_adapter(loaded.network, artifact.path, "default").merge_and_unload()
            self._use(network, tokenizer, artifact)
        else:
            self._shared = SharedBase.of(base, self.device, self.dtype)
            loaded = self._shared.loaded
            check_labels(loaded.network, artifact)
            self._adapter = self._shared.add(artifact.path)
            self._use(self._shared.network, tokenizer, artifact)
        saved = _fully_trained_modules(artifact.path)
        self.missing_weights = tuple(name for name in loaded.missing if name.split(".")[0] not in saved)
        return tokenizer

    def _forward(self, feed: Feed) -> Scores:
        if self._shared is not None:
            self._shared.network.set_adapter(self._adapter)
        return super()._forward(feed)

    def _unload(self) -> None:
        super()._unload()
        if self._shared is not None:
            self._shared.remove(self._adapter)
            self._shared = None


class SharedBase:
    """A base model in memory and the adapters loaded on it. It is freed together with its last scorer."""

    _open: ClassVar[weakref.WeakValueDictionary[tuple[Path, str, torch.dtype], SharedBase]] = (
        weakref.WeakValueDictionary()
    )
    _opening = threading.Lock()

    def __init__(self, folder: Path, device: torch.device, dtype: torch.dtype) -> None:
        self.loaded = _load_base(folder, device, dtype)
        self.lock = threading.Lock()
        self._network: Any = None
        self._names = (f"adapter_{number}" for number in count())
        self._adapters: set[str] = set()

    @classmethod
    def of(cls, folder: Path, device: torch.device, dtype: torch.dtype) -> SharedBase:
        """Return the base in memory, loading it if needed."""
        key = (folder.resolve(), str(device), dtype)
        with cls._opening:
            shared = cls._open.get(key)
            if shared is None:
                shared = cls._open[key] = cls(folder, device, dtype)
            return shared

    @property
    def network(self) -> Any:
        return self._network

    @property
    def adapters(self) -> int:
        """The number of adapters on this base."""
        return len(self._adapters)

    def add(self, folder: Path) -> str:
        """Load an adapter and return its name on this base."""
        with self.lock:
            name = next(self._names)
            if self._network is None:
                self._network = add_adapter(self.loaded.network, folder, name)
            else:
                self._add_another(folder, name)
            self._adapters.add(name)
            return name

    def remove(self, name: str) -> None:
        """Remove an adapter; the caller holds the lock. The last one is freed together with the base."""
        self._adapters.discard(name)
        if self._adapters:
            self._network.set_adapter(next(iter(self._adapters)))  # peft must not delete the active adapter
            self._network.delete_adapter(name)

    def _add_another(self, folder: Path, name: str) -> None:
        try:
            self._network.load_adapter(str(folder), adapter_name=name, is_trainable=False)
            self._network.eval()
        except Exception as error:
            if name in self._network.peft_config:  # loaded in part
                self.remove(name)
            raise _unusable(folder, error) from error


def add_adapter(network: Any, folder: Path, name: str) -> Any:
    """Return the network with an adapter on it."""
    try:
        return PeftModel.from_pretrained(network, str(folder), adapter_name=name, is_trainable=False).eval()
    except Exception as error:  # peft raises ValueError, RuntimeError, KeyError, SafetensorError, …
        raise _unusable(folder, error) from error


def _unusable(folder: Path, error: Exception) -> ArtifactError:
    return ArtifactError(f"{folder}: the adapter does not fit its base: {first_line(error)}")


def _load_base(folder: Path, device: torch.device, dtype: torch.dtype) -> LoadedNetwork:
    return load_network(AutoModelForSequenceClassification, folder, device, dtype, num_labels=1)


def _fully_trained_modules(folder: Path) -> frozenset[str]:
    """Return the modules that the adapter contains in full, such as the head."""
    return frozenset(read_json(folder / "adapter_config.json").get("modules_to_save") or ())
