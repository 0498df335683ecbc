"""Measure prepared memories: against reading them at every query, and against sentence-transformers.

    python benchmarks/prepared.py [--model FOLDER --torch FOLDER] [--sizes 10,100,1000,10000,100000] [--json FILE]

`--model` is a split model and `--torch` a torch cross-encoder of the same shape (layers, width). Without them,
both are made with random weights of MiniLM-L6's shape, `--apart` layers of which read query and memory apart; the speed
is the same. Prints, as ratios in one run:

1. 100 memories of 80 tokens on average: sentence-transformers, unprepared, prepared on disk, prepared in memory. The
   systems take turns query by query, so that noise affects all equally. Also whether the top 5 are the same.
2. A `MemoryIndex` that grows: time of a search, memory of the process, time to open, bytes per memory.
3. Opening a state file of a million entries.

Nothing else should run on the machine. Needs `pip install sentence-transformers` and the extra `train`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from mnemorank import MemoryIndex, Options, Reranker
from mnemorank.scorers.state_file import StateFile
from mnemorank.scorers.states import State
from speed import make_pairs

MINI = Path(str(files("mnemorank") / "assets/models/mini"))
SHAPE = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
_MILLION = 1_000_000


def make_models(folder: Path, apart: int) -> tuple[Path, Path]:
    """Write a split model and a torch cross-encoder with random weights."""
    import torch
    from tokenizers import Tokenizer
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    from mnemorank.artifact.manifest import Manifest, write_manifest
    from mnemorank.export.exporter import export
    from mnemorank.scorers.torch.split import SplitClassifier, SplitConfig

    tokenizer = Tokenizer.from_file(str(MINI / "tokenizer.json"))
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    names = ["input_ids", "attention_mask", "token_type_ids"]
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_input_names=names, **special)
    settings = {**SHAPE, "vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": 512, "num_labels": 1}
    split_torch, cross_encoder = folder / "split-torch", folder / "cross-encoder"
    torch.manual_seed(0)
    network = SplitClassifier(SplitConfig(apart_layers=apart, **settings))
    for name, parameter in network.named_parameters():
        if "norm" in name.lower():  # as after training; equal ones would share a tensor in the graph
            parameter.data += torch.randn(parameter.shape) * 0.02
    network.save_pretrained(split_torch)
    BertForSequenceClassification(BertConfig(**settings)).save_pretrained(cross_encoder)
    for target in (split_torch, cross_encoder):
        wrapped.save_pretrained(target)
    manifest = Manifest(name="random-split", family="torch", max_length=512)
    write_manifest(split_torch, manifest, [path.name for path in split_torch.iterdir()])
    return export(split_torch, folder / "split", "int8").path, cross_encoder


def compare_pools(model: Path, torch_folder: Path, pools: list[tuple[str, list[str]]], rounds: int) -> dict[str, Any]:
    from sentence_transformers import CrossEncoder

    cross_encoder = CrossEncoder(str(torch_folder), device="cpu", max_length=512)
    options = Options.model_only()
    with tempfile.TemporaryDirectory() as states:
        unprepared = Reranker(model, cache_megabytes=0, options=options)
        on_disk = Reranker(model, cache_megabytes=0, states=states, options=options)
        in_memory = Reranker(model, states=states, options=options)
        for _, texts in pools:
            on_disk.prepare(texts)
            in_memory.prepare(texts)
        systems: dict[str, Callable[[str, list[str]], Any]] = {
            "sentence-transformers fp32": lambda query, texts: cross_encoder.predict(
                [(query, text) for text in texts], show_progress_bar=False
            ),
            "unprepared": unprepared.rerank,
            "prepared, on disk": on_disk.rerank,
            "prepared, in memory": in_memory.rerank,
        }
        seconds: dict[str, list[float]] = {name: [] for name in systems}
        for system in systems.values():
            system(*pools[0])
        for _ in range(rounds):
            for query, texts in pools:
                for name, system in systems.items():
                    started = time.perf_counter()
                    system(query, texts)
                    seconds[name].append(time.perf_counter() - started)
        same = [
            [result.index for result in unprepared.rerank(query, texts, top_k=5)]
            == [result.index for result in other.rerank(query, texts, top_k=5)]
            for query, texts in pools
            for other in (on_disk, in_memory)
        ]
        for reranker in (unprepared, on_disk, in_memory):
            reranker.close()
        size = (Path(states) / "states.db").stat().st_size / sum(len(texts) for _, texts in pools)
    medians = {name: float(np.median(values)) for name, values in seconds.items()}
    print(f"\n{'100 memories':28} ms/query  against sentence-transformers  against unprepared")
    for name, median in medians.items():
        against = medians["sentence-transformers fp32"] / median, medians["unprepared"] / median
        print(f"{name:28} {1000 * median:8.1f}  {against[0]:28.1f}x  {against[1]:17.1f}x")
    print(f"same top 5 prepared and unprepared: {np.mean(same):.0%}; bytes per memory in the state file: {size:.0f}")
    return {"seconds": medians, "same_top_5": float(np.mean(same)), "bytes_per_memory": size}


def grow_index(model: Path, sizes: list[int], pools: list[tuple[str, list[str]]], rounds: int) -> list[dict[str, Any]]:
    """Search an index of each size. The larger sizes repeat the texts with a number, so that each is read."""
    texts = [text for _, pool in pools for text in pool]
    queries = [query for query, _ in pools]
    with Reranker(model, cache_megabytes=0) as reranker:
        unprepared = _median_seconds(lambda query: reranker.rerank(query, texts[:100]), queries, rounds)
    print(f"\n{'memories':>9}  search ms  against 100 unprepared  open ms  process MB  bytes/memory  add per second")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "index.db"
        count = 0
        for size in sorted(sizes):
            started = time.perf_counter()
            with MemoryIndex.open(path, model) as index:
                while count < size:
                    some = range(count, min(count + 1000, size))
                    index.add([{"id": str(n), "text": f"{texts[n % len(texts)]} {n}"} for n in some])
                    count = some[-1] + 1
            filled = time.perf_counter() - started
            row = json.loads(
                subprocess.check_output([sys.executable, __file__, "--search", str(path), str(model), *queries])
            )
            row |= {"memories": size, "bytes_per_memory": path.stat().st_size / size, "fill_seconds": filled}
            row["against_100_unprepared"] = row["search_seconds"] / unprepared
            added = (size - (rows[-1]["memories"] if rows else 0)) / filled
            print(
                f"{size:9,}  {1000 * row['search_seconds']:9.1f}  {row['against_100_unprepared']:21.2f}x  "
                f"{1000 * row['open_seconds']:7.0f}  {row['megabytes']:10.0f}  {row['bytes_per_memory']:12,.0f}  "
                f"{added:14.0f}",
                flush=True,
            )
            rows.append(row)
    return rows


def search_once(path: Path, model: Path, queries: list[str]) -> None:
    """Measure an index in a process of its own; prints JSON."""
    started = time.perf_counter()
    with MemoryIndex.open(path, model) as index:
        opened = time.perf_counter() - started
        index.search(queries[0])
        seconds = _median_seconds(index.search, queries, rounds=5)
    status = Path("/proc/self/status").read_text()
    peak = next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM"))
    print(json.dumps({"open_seconds": opened, "search_seconds": seconds, "megabytes": peak}))


def open_million(tokens: int = 4, width: int = 32) -> dict[str, float]:
    """Open a state file of a million small entries; their number matters, not their size."""
    state = State(np.zeros((tokens, width), np.int8), np.ones(tokens, np.float16), np.ones(width, np.float16))
    with tempfile.TemporaryDirectory() as folder:
        file = StateFile(folder, "model")
        for first in range(0, _MILLION, 5000):
            file.store({number.to_bytes(16, "big"): state for number in range(first, first + 5000)})
        file.close()
        started = time.perf_counter()
        file = StateFile(folder, "model")
        opened = time.perf_counter() - started
        found = file.get([number.to_bytes(16, "big") for number in range(0, _MILLION, _MILLION // 100)])
        read = time.perf_counter() - started - opened
        file.close()
    assert len(found) == 100
    print(f"\na million states: opened in {1000 * opened:.1f} ms, 100 of them read in {1000 * read:.1f} ms")
    return {"open_seconds": opened, "read_100_seconds": read}


def _median_seconds(call: Callable[[str], object], queries: list[str], rounds: int) -> float:
    seconds = []
    for _ in range(rounds):
        for query in queries:
            started = time.perf_counter()
            call(query)
            seconds.append(time.perf_counter() - started)
    return float(np.median(seconds))


def main() -> None:
    if sys.argv[1:2] == ["--search"]:
        search_once(Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--torch", type=Path)
    parser.add_argument("--apart", type=int, default=4)
    parser.add_argument("--sizes", default="10,100,1000,10000,100000")
    parser.add_argument("--queries", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if (arguments.model is None) != (arguments.torch is None):
        parser.error("give both --model and --torch, or none")
    with tempfile.TemporaryDirectory() as scratch:
        model, torch_folder = arguments.model, arguments.torch
        if model is None:
            model, torch_folder = make_models(Path(scratch), arguments.apart)
        pools = make_pairs(model / "tokenizer.json", arguments.queries)
        sizes = [int(size) for size in arguments.sizes.split(",") if size]
        report = {
            "pools": compare_pools(model, torch_folder, pools, arguments.rounds),
            "index": grow_index(model, sizes, pools, arguments.rounds),
            "million": open_million(),
        }
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
