"""Compare the speed of the graphs that `mnemorank export` writes with other ways to run the same weights.

    python benchmarks/export_speed.py MODEL [--pairs 100] [--rounds 5] [--threads 2]

MODEL is a trained folder (a BERT-like sequence classifier with its tokenizer). All systems score the same pairs (80
tokens on average, 180 at most) in one process and take turns, so that other load affects all equally. The table has
medians over the rounds of wall-clock and CPU seconds, and the rank correlation with torch.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnxruntime as ort
import torch
from tokenizers import Tokenizer

from mnemorank._internal.arrays import Floats
from mnemorank.artifact.resolve import load_artifact
from mnemorank.cli.output import table
from mnemorank.export.blocks import quantize_in_blocks
from mnemorank.export.graph import INPUTS, load_classifier, write_graph
from mnemorank.export.parity import Feed, rank_correlation
from mnemorank.export.quantize import int8_dynamic, int8_static
from mnemorank.scorers.encoding import pack


def make_texts(tokenizer: Tokenizer, count: int) -> tuple[str, list[str]]:
    """Return a query and memories made of words that are one token each."""
    rng = np.random.default_rng(0)
    words = sorted(word for word in tokenizer.get_vocab() if word.isascii() and word.isalpha() and len(word) > 3)
    lengths = np.clip(rng.normal(80, 35, count), 20, 180).astype(int)
    return " ".join(rng.choice(words, 10)), [" ".join(rng.choice(words, length - 13)) for length in lengths]


def encode(tokenizer: Tokenizer, query: str, memories: list[str]) -> list[Feed]:
    pairs = [tokenizer.encode(query, memory) for memory in memories]
    columns = ("ids", "attention_mask", "type_ids")
    return [{n: np.array([getattr(p, c)], dtype=np.int64) for n, c in zip(INPUTS, columns, strict=True)} for p in pairs]


def make_batches(pairs: list[Feed], budget: int | None, in_order: bool = False) -> list[tuple[list[int], Feed]]:
    """Return batches with the positions of their pairs.

    :param budget: padded tokens per batch, or pairs per batch if `in_order`; None for one pair per batch.
    :param in_order: keep the order of the pairs instead of packing pairs of similar length.
    """
    lengths = [feed["input_ids"].shape[1] for feed in pairs]
    if budget is None:
        groups = [[position] for position in range(len(pairs))]
    elif in_order:
        groups = [list(range(len(pairs)))[start : start + budget] for start in range(0, len(pairs), budget)]
    else:
        groups = pack(lengths, budget)
    return [(group, _pad([pairs[position] for position in group])) for group in groups]


def _pad(pairs: list[Feed]) -> Feed:
    longest = max(feed["input_ids"].shape[1] for feed in pairs)
    return {
        name: np.concatenate([np.pad(f[name], ((0, 0), (0, longest - f[name].shape[1]))) for f in pairs])
        for name in INPUTS
    }


def session(path: Path, threads: int = 1) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.enable_mem_pattern = False
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def workers(path: Path, batches: list[tuple[list[int], Feed]], count: int, threads: int) -> Callable[[], Floats]:
    """Run each batch on one core, like `OnnxScorer`."""
    model, pool = session(path), ThreadPoolExecutor(threads)

    def run() -> Floats:
        scores = np.zeros(count)

        def score(batch: tuple[list[int], Feed]) -> None:
            scores[batch[0]] = model.run(None, dict(batch[1]))[0][:, 0]

        list(pool.map(score, batches))
        return scores

    return run


def one_session(path: Path, batches: list[tuple[list[int], Feed]], count: int, threads: int) -> Callable[[], Floats]:
    """Run one batch after the other on all cores, like FlashRank and fastembed."""
    model = session(path, threads)

    def run() -> Floats:
        scores = np.zeros(count)
        for positions, feed in batches:
            scores[positions] = model.run(None, dict(feed))[0][:, 0]
        return scores

    return run


def plain_graph(folder: Path, path: Path) -> None:
    """Write the graph of a plain `torch.onnx.export` of the transformers model."""
    model = load_classifier(load_artifact(folder))

    class Plain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
            return self.model(input_ids=ids, attention_mask=mask, token_type_ids=types).logits

    ids = torch.ones(2, 9, dtype=torch.long)
    axes = {name: {0: "batch", 1: "sequence"} for name in INPUTS}
    torch.onnx.export(
        Plain().eval(),
        (ids, ids, ids * 0),
        str(path),
        input_names=list(INPUTS),
        output_names=["logits"],
        dynamic_axes={**axes, "logits": {0: "batch"}},
        opset_version=17,
        dynamo=False,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    from sentence_transformers import CrossEncoder

    torch.set_num_threads(arguments.threads)
    tokenizer = Tokenizer.from_file(str(arguments.model / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    query, memories = make_texts(tokenizer, arguments.pairs)
    pairs, count, threads = encode(tokenizer, query, memories), arguments.pairs, arguments.threads
    with tempfile.TemporaryDirectory() as folder:
        graphs = {
            name: Path(folder) / f"{name}.onnx"
            for name in ("plain", "fp32", "smooth", "split", "dynamic", "static", "int4")
        }
        artifact = load_artifact(arguments.model)
        plain_graph(arguments.model, graphs["plain"])
        write_graph(load_classifier(artifact), graphs["fp32"])
        write_graph(load_classifier(artifact), graphs["smooth"], calibration=pairs[:32])
        write_graph(load_classifier(artifact), graphs["split"], fuse_projections=False)
        int8_dynamic(graphs["smooth"], graphs["dynamic"])
        int8_static(graphs["smooth"], graphs["static"], pairs[:32])
        quantize_in_blocks(graphs["split"], graphs["int4"])
        encoder = CrossEncoder(str(arguments.model), device="cpu")
        systems: dict[str, Callable[[], Floats]] = {
            "sentence-transformers predict": lambda: np.asarray(
                encoder.predict([(query, memory) for memory in memories], activation_fn=torch.nn.Identity())
            ),
            "plain ONNX, whole pool padded (FlashRank)": one_session(
                graphs["plain"], make_batches(pairs, count, in_order=True), count, threads
            ),
            "plain ONNX, batches of 64 in order (fastembed)": one_session(
                graphs["plain"], make_batches(pairs, 64, in_order=True), count, threads
            ),
            "ours fp32, 2048 tokens per batch": workers(graphs["fp32"], make_batches(pairs, 2048), count, threads),
            "ours fp32, 512 tokens per batch": workers(graphs["fp32"], make_batches(pairs, 512), count, threads),
            "ours fp32, one pair per run": workers(graphs["fp32"], make_batches(pairs, None), count, threads),
            "ours int8-dynamic, one pair per run": workers(
                graphs["dynamic"], make_batches(pairs, None), count, threads
            ),
            "ours int8-static, 512 tokens per batch": workers(
                graphs["static"], make_batches(pairs, 512), count, threads
            ),
            "ours int4-weights, one pair per run": workers(graphs["int4"], make_batches(pairs, None), count, threads),
        }
        scores = {name: run() for name, run in systems.items()}
        seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in systems}
        for _ in range(arguments.rounds):
            for name, run in systems.items():
                wall, cpu = time.perf_counter(), time.process_time()
                run()
                seconds[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    first = next(iter(systems))
    base = np.median(seconds[first], axis=0)
    rows = []
    for name in systems:
        wall, cpu = np.median(seconds[name], axis=0)
        correlation = rank_correlation(scores[first], scores[name])
        rows.append(
            (
                name,
                f"{wall:.2f}",
                f"{base[0] / wall:.2f}×",
                f"{cpu:.2f}",
                f"{base[1] / cpu:.2f}×",
                f"{correlation:.4f}",
            )
        )
    header = ("system", "seconds", "speedup", "CPU s", "CPU speedup", "rank correlation")
    print(
        f"{count} pairs, {np.mean([f['input_ids'].shape[1] for f in pairs]):.0f} tokens on average, {threads} threads\n"
    )
    print(table(rows, header, right=(1, 2, 3, 4, 5)))


if __name__ == "__main__":
    main()
