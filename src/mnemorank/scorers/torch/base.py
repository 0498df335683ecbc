"""What all models on torch share: batches, padding, device, errors. A family adds loading and the reading of logits."""

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
from mnemorank.artifact.resolve import Artifact
from mnemorank.errors import InputError, MnemorankError, ScorerError
from mnemorank.scorers.encoding import Input, InputWriter, pack, pack_in_order
from mnemorank.scorers.protocol import Batch, Pair, PairwiseBase, Scores
from mnemorank.scorers.torch.loading import Tokenizing

Feed = dict[str, torch.Tensor]


class TorchBase(PairwiseBase):
    """Scores inputs in batches of bounded size, one batch at a time: torch spreads each over the cores itself.

    :param device: `cpu`, `cuda`, `cuda:1`, `mps`; the hardware profile's by default.
    :param dtype: `float32`, `float16` or `bfloat16`; by default float16 on CUDA and float32 elsewhere.
    :param token_budget: padded tokens in a batch, which bounds memory whatever the pool.
    :param threads: for torch's own threads, which the whole process shares; left as they are by default.
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
        if token_budget is not None and token_budget < 1:
            raise InputError(f"expected a whole number from 1, got {token_budget}", field="token_budget")
        if threads is not None:
            if threads < 1:
                raise InputError(f"expected a whole number from 1, got {threads}", field="threads")
            torch.set_num_threads(threads)
        machine = detect_hardware()
        self.token_budget = token_budget or machine.token_budget
        self.on_batch: Callable[[Batch], None] | None = None
        self.device = _checked_device(device or machine.device)
        self.dtype = _checked_dtype(dtype or ("float16" if self.device.type == "cuda" else "float32"))
        self._lock = threading.Lock()
        self._closed = False
        tokenizing = self._load(artifact)
        self._pad_id = tokenizing.pad_id
        self._writer = InputWriter(tokenizing.tokenizer, artifact.manifest)
        super().__init__(artifact.manifest.name, self._writer)

    @abstractmethod
    def _load(self, artifact: Artifact) -> Tokenizing:
        """Load the network, and say how to tokenize for it."""

    @abstractmethod
    def _forward(self, feed: Feed) -> Scores:
        """One raw score a row."""

    @abstractmethod
    def _unload(self) -> None:
        """Let go of the network."""

    def score_pairs(self, pairs: Sequence[Pair], *, deadline: Deadline | None = None) -> Scores:
        """`score` for pairs of different queries, which share batches."""
        scores = np.full(len(pairs), np.nan)
        inputs = self._writer.write(pairs)
        lengths = [len(each.ids) for each in inputs]
        if deadline is None:
            batches = pack(lengths, self.token_budget)
        else:
            batches = pack_in_order(lengths, max(self.token_budget // 4, 1))
        try:
            for batch in batches:
                # The wait for another request's batch counts towards the deadline.
                wait = -1 if deadline is None else deadline.remaining()
                if wait == 0 or not self._lock.acquire(timeout=wait):
                    break
                try:
                    scores[batch] = self._run([inputs[position] for position in batch])
                finally:
                    self._lock.release()
        except MnemorankError:
            raise
        except Exception as error:  # torch's errors share no base; whichever it is, the model failed
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
        longest = max(len(each.ids) for each in inputs)
        if longest > self._writer.max_length:
            raise ScorerError(
                f"{self.name}: an input of {longest} tokens is longer than the model's {self._writer.max_length}"
            )
        with torch.inference_mode():
            scores = self._forward(self._padded(inputs, longest))
        if not np.isfinite(scores).all():
            raise ScorerError(f"{self.name}: the model gave a score that is not a number; try dtype=float32")
        if self.on_batch is not None:
            self.on_batch(Batch(len(inputs), sum(len(each.ids) for each in inputs), len(inputs) * longest))
        return scores

    def _padded(self, inputs: Sequence[Input], longest: int) -> Feed:
        shape = (len(inputs), longest)
        ids, types, mask = (np.full(shape, fill, dtype=np.int64) for fill in (self._pad_id, 0, 0))
        for row, each in enumerate(inputs):
            length = len(each.ids)
            span = slice(longest - length, longest) if self.padding == "left" else slice(0, length)
            ids[row, span], types[row, span], mask[row, span] = each.ids, each.types, 1
        # Positions count from a row's first token, so that padding on the left moves nothing.
        positions = np.maximum(np.cumsum(mask, axis=1) - 1, 0)
        arrays = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types, "position_ids": positions}
        return {name: torch.from_numpy(array).to(self.device) for name, array in arrays.items()}


def accepted(network: Any, *names: str) -> tuple[str, ...]:
    """Those of the names that the network's forward takes."""
    taken = inspect.signature(network.forward).parameters
    return tuple(name for name in names if name in taken)


def _checked_device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(f"{name!r} cannot be used: {str(error).splitlines()[0]}", field="device") from None
    return device


def _checked_dtype(name: str) -> torch.dtype:
    known = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
    if name not in known:
        raise InputError(f"expected {', '.join(known)}, got {name!r}", field="dtype")
    return known[name]
