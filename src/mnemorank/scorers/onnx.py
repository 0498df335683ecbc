"""Cross-encoders on ONNX Runtime: the scorer that needs onnxruntime, tokenizers and numpy alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnxruntime as ort

from mnemorank._internal.deadline import Deadline
from mnemorank._internal.hardware import available_cores
from mnemorank._internal.threads import Workers
from mnemorank.artifact.resolve import Artifact, read_json_object
from mnemorank.errors import ArtifactError, InputError, ScorerError
from mnemorank.scorers.encoding import Input, InputWriter, load_tokenizer, one_score_a_row, pack, pack_in_order
from mnemorank.scorers.protocol import Batch, Pair, PairwiseBase, Scores

_KNOWN_INPUTS = {"input_ids", "attention_mask", "token_type_ids"}


class OnnxScorer(PairwiseBase):
    """Scores pairs in batches of bounded size, in as many threads as there are cores.

    Each thread runs whole batches on one core: on the small batches of a reranker that beats many cores on one batch.

    :param threads: how many batches run at once; all cores of the process by default.
    :param token_budget: padded tokens in a batch, which bounds memory whatever the pool.
    """

    def __init__(self, artifact: Artifact, *, threads: int | None = None, token_budget: int = 512) -> None:
        if threads is not None and threads < 1:
            raise InputError(f"expected a whole number from 1, got {threads}", field="threads")
        if token_budget < 1:
            raise InputError(f"expected a whole number from 1, got {token_budget}", field="token_budget")
        manifest = artifact.manifest
        self.threads = threads or available_cores()
        self.token_budget = token_budget
        # The ranges of dynamically quantized activations span a batch, so only a pair alone is scored for itself.
        self._most = 1 if manifest.quantization == "int8-dynamic" else None
        tokenizer = load_tokenizer(artifact.file("tokenizer.json"))
        self._writer = InputWriter(tokenizer, manifest)
        super().__init__(manifest.name, self._writer)
        self._pad_id = _pad_id(artifact, tokenizer.token_to_id)
        self._session: ort.InferenceSession | None = _open_session(artifact)
        self._inputs = _checked_inputs(artifact, self._session)
        self.on_batch: Callable[[Batch], None] | None = None
        self._workers = Workers(self.threads, "mnemorank")

    def score_pairs(self, pairs: Sequence[Pair], *, deadline: Deadline | None = None) -> Scores:
        """`score` for pairs of different queries, which share batches."""
        session = self._session
        if session is None:
            raise ScorerError(f"{self.name}: the model was closed")
        scores = np.full(len(pairs), np.nan)
        inputs = self._writer.write(pairs)
        lengths = [len(each.ids) for each in inputs]
        batches = (
            pack(lengths, self.token_budget, self._most)
            if deadline is None
            else pack_in_order(lengths, max(self.token_budget // 4, 1), self._most)
        )

        def run(batch: list[int]) -> None:
            if deadline is None or not deadline.expired:
                scores[batch] = self._run(session, [inputs[position] for position in batch])

        try:
            if len(batches) == 1 or self.threads == 1:
                for batch in batches:
                    run(batch)
            else:
                list(self._workers.map(run, batches))
        except ScorerError:
            raise
        except Exception as error:  # onnxruntime's errors share no base; whichever it is, the model failed
            raise ScorerError(f"{self.name}: scoring failed: {error}") from error
        return scores

    def close(self) -> None:
        self._workers.shutdown()
        self._session = None

    def _run(self, session: ort.InferenceSession, inputs: Sequence[Input]) -> Scores:
        longest = max(len(each.ids) for each in inputs)
        if longest > self._writer.max_length:
            raise ScorerError(
                f"{self.name}: an input of {longest} tokens is longer than the model's {self._writer.max_length}"
            )
        shape = (len(inputs), longest)
        ids, types, mask = (np.full(shape, fill, dtype=np.int64) for fill in (self._pad_id, 0, 0))
        for row, each in enumerate(inputs):
            length = len(each.ids)
            ids[row, :length], types[row, :length], mask[row, :length] = each.ids, each.types, 1
        feed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
        (logits, *_) = session.run(None, {name: feed[name] for name in self._inputs})
        if self.on_batch is not None:
            self.on_batch(Batch(len(inputs), sum(len(each.ids) for each in inputs), mask.size))
        return one_score_a_row(np.asarray(logits, dtype=np.float64), self.name)


def _open_session(artifact: Artifact) -> ort.InferenceSession:
    path = artifact.file("model.onnx", "onnx/model.onnx")
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.enable_mem_pattern = False  # shapes differ from batch to batch
    options.log_severity_level = 3
    try:
        return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors share no base
        raise ArtifactError(f"{path}: cannot be loaded as an ONNX model: {error}") from None


def _checked_inputs(artifact: Artifact, session: ort.InferenceSession) -> list[str]:
    names = [entry.name for entry in session.get_inputs()]
    unknown = set(names) - _KNOWN_INPUTS
    if unknown or "input_ids" not in names:
        raise ArtifactError(
            f"{artifact.path}: expected a model with the inputs input_ids, attention_mask and perhaps token_type_ids, "
            f"got {', '.join(names)}"
        )
    return names


def _pad_id(artifact: Artifact, id_of: object) -> int:
    stated = read_json_object(artifact.path / "config.json").get("pad_token_id")
    if isinstance(stated, int):
        return stated
    found = (id_of(token) for token in ("[PAD]", "<pad>", "<|endoftext|>"))  # type: ignore[operator]
    return next((token_id for token_id in found if token_id is not None), 0)
