"""Cross-encoders on ONNX Runtime, the only scorer that needs nothing but the core dependencies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort
from tokenizers import Tokenizer

from mnemorank._internal.deadline import Deadline
from mnemorank._internal.hardware import available_cores
from mnemorank._internal.threads import Workers
from mnemorank._internal.validation import check_number
from mnemorank.artifact.resolve import Artifact, read_json_object
from mnemorank.errors import ArtifactError, ScorerError
from mnemorank.scorers.encoding import (
    Input,
    InputWriter,
    check_length,
    load_tokenizer,
    one_score_per_row,
    pack,
    pack_in_order,
    pad,
)
from mnemorank.scorers.protocol import BasePairScorer, Batch, Pair, Scores

_KNOWN_INPUTS = {"input_ids", "attention_mask", "token_type_ids"}


class OnnxScorer(BasePairScorer):
    """Scores pairs in batches of bounded size, one batch per core at a time.

    Each thread runs whole batches on one core. For the small batches of a reranker this is faster than spreading one
    batch over all cores.

    :param threads: how many batches run at once; by default as many as the process has cores.
    :param token_budget: padded tokens in a batch, which bounds the memory in use.
    """

    def __init__(self, artifact: Artifact, *, threads: int | None = None, token_budget: int = 512) -> None:
        if threads is not None:
            check_number("threads", threads, 1, whole=True)
        check_number("token_budget", token_budget, 1, whole=True)
        manifest = artifact.manifest
        self.threads = threads or available_cores()
        self.token_budget = token_budget
        # Dynamic quantization takes the range of activations over the whole batch, so pairs would affect each other.
        self._max_rows = 1 if manifest.quantization == "int8-dynamic" else None
        tokenizer = load_tokenizer(artifact.file("tokenizer.json"))
        self._writer = InputWriter(tokenizer, manifest)
        super().__init__(manifest.name, self._writer)
        self._pad_id = _pad_id(artifact, tokenizer)
        self._session: ort.InferenceSession | None = open_session(artifact.file("model.onnx", "onnx/model.onnx"))
        self._inputs = _checked_inputs(artifact, self._session)
        self.on_batch: Callable[[Batch], None] | None = None
        self._workers = Workers(self.threads, "mnemorank")

    def score_pairs(self, pairs: Sequence[Pair], *, deadline: Deadline | None = None) -> Scores:
        session = self._session
        if session is None:
            raise ScorerError(f"{self.name}: the model was closed")
        scores = np.full(len(pairs), np.nan)
        inputs = self._writer.write(pairs)
        lengths = [len(each.ids) for each in inputs]
        if deadline is None:
            batches = pack(lengths, self.token_budget, self._max_rows)
        else:
            batches = pack_in_order(lengths, max(self.token_budget // 4, 1), self._max_rows)

        def run(batch: list[int]) -> None:
            if deadline is None or not deadline.expired:
                scores[batch] = self._run(session, [inputs[position] for position in batch])

        try:
            if len(batches) == 1 or self.threads == 1:
                for batch in batches:
                    run(batch)
            else:
                self._workers.map(run, batches)
        except ScorerError:
            raise
        except Exception as error:  # the errors of onnxruntime share no base class
            raise ScorerError(f"{self.name}: scoring failed: {error}") from error
        return scores

    def close(self) -> None:
        self._workers.shutdown()
        self._session = None

    def _run(self, session: ort.InferenceSession, inputs: Sequence[Input]) -> Scores:
        check_length(inputs, self._writer.max_length, self.name)
        batch = pad(inputs, self._pad_id)
        feed = {"input_ids": batch.ids, "attention_mask": batch.mask, "token_type_ids": batch.types}
        (logits, *_) = session.run(None, {name: feed[name] for name in self._inputs})
        if self.on_batch is not None:
            self.on_batch(Batch(len(inputs), int(batch.mask.sum()), batch.mask.size))
        return one_score_per_row(np.asarray(logits, dtype=np.float64), self.name)


def open_session(path: Path) -> ort.InferenceSession:
    """Load a graph to run on one core at a time; callers run several batches at once instead."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.enable_mem_pattern = False  # shapes differ from batch to batch
    options.log_severity_level = 3
    try:
        return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the errors of onnxruntime share no base class
        raise ArtifactError(f"{path}: not a valid ONNX model: {error}") from None


def _checked_inputs(artifact: Artifact, session: ort.InferenceSession) -> list[str]:
    names = [entry.name for entry in session.get_inputs()]
    if set(names) - _KNOWN_INPUTS or "input_ids" not in names:
        raise ArtifactError(
            f"{artifact.path}: expected a model with the inputs input_ids, attention_mask and optionally "
            f"token_type_ids, got {', '.join(names)}"
        )
    return names


def _pad_id(artifact: Artifact, tokenizer: Tokenizer) -> int:
    pad_id = read_json_object(artifact.path / "config.json").get("pad_token_id")
    if isinstance(pad_id, int):
        return pad_id
    ids = (tokenizer.token_to_id(token) for token in ("[PAD]", "<pad>", "<|endoftext|>"))
    return next((token_id for token_id in ids if token_id is not None), 0)
