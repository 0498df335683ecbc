"""Parity of an exported graph with the trained model: size, speed, scores, order, and quality on dev data."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

from mnemorank._internal.arrays import Floats, spearman
from mnemorank.artifact.formats import formats
from mnemorank.artifact.manifest import Manifest
from mnemorank.data.examples import Example
from mnemorank.errors import MnemorankError
from mnemorank.export.graph import Feed, accepted_inputs
from mnemorank.export.split import WEIGHTS
from mnemorank.scorers.encoding import InputWriter, one_score_per_row
from mnemorank.scorers.protocol import Pair

GRAPH_TOLERANCE = 1e-3
METRIC = "ndcg@10"


class ParityError(MnemorankError):
    """The exported graph is worse than the trained model."""


@dataclass(frozen=True, slots=True)
class Parity:
    """The exported graph against the fp32 graph, which is itself compared with the torch model.

    :param latency_ratio: the speedup when pairs are scored one by one on one core.
    :param graph_difference: the largest difference of a score between the torch model and the fp32 graph.
    :param rank_correlation: Spearman's, over all pairs.
    :param metric_before: on the dev data; None without any.
    :param note: remarks for the user.
    """

    pairs: int
    megabytes_before: float
    megabytes: float
    latency_ratio: float
    graph_difference: float
    max_difference: float
    mean_difference: float
    rank_correlation: float
    metric: str | None = None
    metric_before: float | None = None
    metric_after: float | None = None
    note: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value is not None}

    def rows(self) -> list[tuple[str, str]]:
        """Return the table that `mnemorank export` prints."""
        rows = [
            ("size", f"{self.megabytes_before:.1f} → {self.megabytes:.1f} MB"),
            ("latency", f"{self.latency_ratio:.2f}× as fast as fp32, one pair at a time on one core"),
            ("fp32 graph − torch, max", f"{self.graph_difference:.1e}"),
            ("score difference, max", f"{self.max_difference:.4f}"),
            ("score difference, mean", f"{self.mean_difference:.4f}"),
            ("rank correlation", f"{self.rank_correlation:.4f} over {self.pairs} pairs"),
        ]
        if self.metric_before is not None and self.metric_after is not None:
            rows.append((f"dev {self.metric}", f"{self.metric_before:.4f} → {self.metric_after:.4f}"))
        else:
            rows.append(("dev", "no dev data: quality not evaluated"))
        if self.note is not None:
            rows.append(("note", self.note))
        return rows

    def check(self, tolerance: float) -> None:
        """Raise if the graph is worse than it may be.

        :param tolerance: the largest acceptable drop of the dev metric.
        """
        if not self.graph_difference <= GRAPH_TOLERANCE:  # NaN fails too
            raise ParityError(
                f"the ONNX graph differs from the torch model by {self.graph_difference:.2g}, "
                f"more than {GRAPH_TOLERANCE}"
            )
        if not math.isfinite(self.max_difference):
            raise ParityError("the quantized graph gives scores that are not finite; nothing was written")
        if self.metric_before is None or self.metric_after is None:
            return
        drop = self.metric_before - self.metric_after
        if not drop <= tolerance:  # NaN fails too
            raise ParityError(
                f"dev {self.metric} drops by {drop:.4f} ({self.metric_before:.4f} → {self.metric_after:.4f}), more "
                f"than the tolerance {tolerance:g}; nothing was written. Quantize less, or raise the tolerance"
            )


def make_feeds(examples: Sequence[Example], tokenizer: Tokenizer, manifest: Manifest, limit: int = 200) -> list[Feed]:
    """Return the model inputs of an even sample of the pairs, one pair each; long texts are truncated."""
    writer = InputWriter(tokenizer, manifest)
    write = formats[manifest.format].write
    pairs = [(example.query, memory) for example in examples for memory in example.memories if memory.text.strip()]
    chosen = pairs[:: max(-(-len(pairs) // limit), 1)]
    passages = writer.prepare([write(memory).text for _, memory in chosen])
    written = writer.write([Pair(query, passage) for (query, _), passage in zip(chosen, passages, strict=True)])
    return [_feed(entry.ids[: manifest.max_length], entry.types[: manifest.max_length]) for entry in written]


def _feed(ids: NDArray[np.int64], types: NDArray[np.int64]) -> Feed:
    rows = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": types}
    return {name: np.ascontiguousarray(row[None], dtype=np.int64) for name, row in rows.items()}


def torch_scores(model: Any, inputs: Sequence[Feed]) -> Floats:
    """Return the scores of the trained model."""
    accepted = accepted_inputs(model)
    with torch.no_grad():
        logits = [model(**{k: torch.from_numpy(v) for k, v in feed.items() if k in accepted}).logits for feed in inputs]
    return one_score_per_row(np.concatenate([row.double().numpy() for row in logits]), "torch model")


def compare_graphs(before: Path, after: Path, expected: Floats, inputs: Sequence[Feed], rounds: int = 3) -> Parity:
    """Run both graphs pair by pair, alternating, so that other load on the machine affects both.

    :param before: the fp32 graph.
    :param expected: the scores of the torch model.
    """
    sessions = {path: _session(path) for path in (before, after)}
    scores = {path: _scores(session, inputs) for path, session in sessions.items()}
    seconds: dict[Path, list[float]] = {before: [], after: []}
    timed = inputs[:: max(len(inputs) // 24, 1)]
    for _ in range(rounds):
        for path, session in sessions.items():
            started = time.thread_time()
            _scores(session, timed)
            seconds[path].append(time.thread_time() - started)
    difference = np.abs(scores[after] - scores[before])
    return Parity(
        pairs=len(inputs),
        megabytes_before=_megabytes(before),
        megabytes=_megabytes(after),
        latency_ratio=round(float(np.median(seconds[before]) / max(float(np.median(seconds[after])), 1e-9)), 3),
        graph_difference=float(np.abs(scores[before] - expected).max()),
        max_difference=float(difference.max()),
        mean_difference=float(difference.mean()),
        rank_correlation=rank_correlation(scores[before], scores[after]),
    )


def _megabytes(graph: Path) -> float:
    """Return the size of a graph with its weights, which may be in a file next to it."""
    weights = graph.with_name(WEIGHTS)
    size = graph.stat().st_size + (weights.stat().st_size if weights.is_file() else 0)
    return round(size / 1e6, 3)


def rank_correlation(first: Floats, second: Floats) -> float:
    """Return Spearman's rank correlation; 1 if both are constant."""
    if np.ptp(first) == 0 and np.ptp(second) == 0:
        return 1.0
    return spearman(first, second)


def _session(path: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _scores(session: ort.InferenceSession, inputs: Sequence[Feed]) -> Floats:
    names = [entry.name for entry in session.get_inputs()]
    runs = [session.run(["logits"], {name: feed[name] for name in names})[0] for feed in inputs]
    return one_score_per_row(np.concatenate(runs).astype(np.float64), "ONNX graph")
