"""The base of all torch scorers: batches, padding, device and errors. Subclasses load a network and read its output."""

from __future__ import annotations

import inspect
import threading
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch

from mnemorank._internal.deadline import Deadline
from mnemorank._internal.hardware import detect_hardware
from mnemorank._internal.validation import check_number
from mnemorank.artifact.resolve import Artifact
from mnemorank.errors import InputError, MnemorankError, ScorerError
from mnemorank.scorers.encoding import Input, InputWriter, check_length, pack, pack_in_order, pad
from mnemorank.scorers.protocol import BasePairScorer, Batch, Pair, Scores
from mnemorank.scorers.torch.loading import LoadedTokenizer

Feed = dict[str, torch.Tensor]

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class TorchScorer(BasePairScorer):
    """Scores inputs in batches of bounded size, one at a time: torch uses all cores for each of them.

    :param device: `cpu`, `cuda`, `cuda:1` or `mps`; detected by default.
    :param dtype: `float32`, `float16` or `bfloat16`; by default float16 on CUDA and float32 elsewhere.
    :param token_budget: padded tokens in a batch, which bounds the memory in use.
    :param threads: the number of torch threads, a setting of the whole process; unchanged by default.
    """

    padding: Literal["left", "right"] = "right"

    def __init__(
        self,
        artifact: Artifact,
        *,
        device: str | None = None,
        dtype: str | None = None,
        token_budget: int | None = None,
        threads: int | None = None,
    ) -> None:
        if token_budget is not None:
            check_number("token_budget", token_budget, 1, whole=True)
        if threads is not None:
            check_number("threads", threads, 1, whole=True)
            torch.set_num_threads(threads)
        hardware = detect_hardware()
        self.token_budget = token_budget or hardware.token_budget
        self.on_batch: Callable[[Batch], None] | None = None
        self.device = _checked_device(device or hardware.device)
        self.dtype = _checked_dtype(dtype or ("float16" if self.device.type == "cuda" else "float32"))
        self._lock = threading.Lock()
        self._closed = False
        tokenizer = self._load(artifact)
        self._pad_id = tokenizer.pad_id
        self._writer = InputWriter(tokenizer.tokenizer, artifact.manifest)
        super().__init__(artifact.manifest.name, self._writer)

    @abstractmethod
    def _load(self, artifact: Artifact) -> LoadedTokenizer:
        """Load the network and return its tokenizer."""

    @abstractmethod
    def _forward(self, feed: Feed) -> Scores:
        """Return one raw score per row."""

    @abstractmethod
    def _unload(self) -> None:
        """Drop the network."""

    def score_pairs(self, pairs: Sequence[Pair], *, deadline: Deadline | None = None) -> Scores:
        scores = np.full(len(pairs), np.nan)
        inputs = self._writer.write(pairs)
        lengths = [len(each.ids) for each in inputs]
        if deadline is None:
            batches = pack(lengths, self.token_budget)
        else:
            batches = pack_in_order(lengths, max(self.token_budget // 4, 1))
        try:
            for batch in batches:
                # Waiting for the batch of another request counts toward the deadline.
                timeout = None if deadline is None else deadline.timeout()
                if timeout == 0 or not self._lock.acquire(timeout=-1 if timeout is None else timeout):
                    break
                try:
                    scores[batch] = self._run([inputs[position] for position in batch])
                finally:
                    self._lock.release()
        except MnemorankError:
            raise
        except Exception as error:  # the errors of torch share no base class
            raise ScorerError(f"{self.name}: scoring failed: {error}") from error
        return scores

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                self._unload()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _run(self, inputs: Sequence[Input]) -> Scores:
        if self._closed:
            raise ScorerError(f"{self.name}: the model was closed")
        check_length(inputs, self._writer.max_length, self.name)
        batch = pad(inputs, self._pad_id, self.padding)
        # Positions count from the first token of a row, so that padding on the left does not shift them.
        positions = np.maximum(np.cumsum(batch.mask, axis=1) - 1, 0)
        arrays = {
            "input_ids": batch.ids,
            "attention_mask": batch.mask,
            "token_type_ids": batch.types,
            "position_ids": positions,
        }
        with torch.inference_mode():
            scores = self._forward({name: torch.from_numpy(array).to(self.device) for name, array in arrays.items()})
        if not np.isfinite(scores).all():
            raise ScorerError(f"{self.name}: the model returned a score that is not a number; try dtype=float32")
        if self.on_batch is not None:
            self.on_batch(Batch(len(inputs), int(batch.mask.sum()), batch.mask.size))
        return scores


def accepted(network: Any, *names: str) -> tuple[str, ...]:
    """Return the names that are parameters of the network's forward method."""
    parameters = inspect.signature(network.forward).parameters
    return tuple(name for name in names if name in parameters)


def _checked_device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(f"{name!r} is not available: {str(error).splitlines()[0]}", field="device") from None
    return device


def _checked_dtype(name: str) -> torch.dtype:
    if name not in _DTYPES:
        raise InputError(f"expected one of {', '.join(_DTYPES)}, got {name!r}", field="dtype")
    return _DTYPES[name]
