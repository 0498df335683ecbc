"""Pairs per second against sentence-transformers, fastembed and FlashRank on the same weights and pairs, in one run.

    python benchmarks/speed.py --torch FOLDER [--model mini] [--queries 5] [--rounds 5]

FOLDER is the torch model the artifact was exported from. Peers get what their users have: sentence-transformers the
fp32 torch model; fastembed the plain fp32 ONNX export; FlashRank the plain export with onnxruntime's default dynamic
INT8. Contestants take turns query by query, so that a noisy machine is noisy for all; ratios are of medians. Also
printed: how far each order agrees with sentence-transformers', import time, and peak memory for 10,000 candidates.
Nothing else should run on the machine. Needs `pip install sentence-transformers fastembed flashrank onnx`.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import numpy as np

Contestant = Callable[[str, list[str]], list[float]]


def make_pairs(tokenizer_file: Path, queries: int, per_query: int = 100) -> list[tuple[str, list[str]]]:
    """Pools of our own dated texts, joined and cut so that pairs have 80 tokens on average and at most 180."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    lines = (
        gzip.decompress((files("mnemorank") / "assets/datasets/dated/train.jsonl.gz").read_bytes())
        .decode()
        .splitlines()
    )
    records = [json.loads(line) for line in lines]
    sentences = sorted({side["text"] for record in records for side in (record["positive"], record["negative"])})
    asked = sorted({record["query"] for record in records})
    rng = random.Random(0)
    pools = []
    for query in rng.sample(asked, queries):
        used = len(tokenizer.encode(query).ids) + 1
        texts = []
        for _ in range(per_query):
            wanted = min(max(int(rng.lognormvariate(4.26, 0.5)), used + 8), 180) - used
            text = ""
            while len(tokenizer.encode(text).ids) < wanted + 2:
                text += " " + rng.choice(sentences)
            spans = tokenizer.encode(text, add_special_tokens=False).offsets
            texts.append(text[: spans[wanted - 1][1]].strip())
        pools.append((query, texts))
    lengths = [len(tokenizer.encode(query, text).ids) for query, texts in pools for text in texts]
    print(f"{len(lengths)} pairs, {np.mean(lengths):.0f} tokens on average, {max(lengths)} at most")
    return pools


def plain_export(torch_folder: Path, target: Path) -> None:
    """The ONNX file that a user would make without care: whole graph, fp32."""
    import torch
    from transformers import AutoModelForSequenceClassification

    class Wrapper(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = AutoModelForSequenceClassification.from_pretrained(torch_folder, attn_implementation="eager")

        def forward(self, input_ids: object, attention_mask: object, token_type_ids: object) -> object:
            return self.model(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids).logits

    names = ["input_ids", "attention_mask", "token_type_ids"]
    ids = torch.ones(2, 9, dtype=torch.long)
    axes = {name: {0: "batch", 1: "sequence"} for name in names} | {"logits": {0: "batch"}}
    torch.onnx.export(
        Wrapper().eval(), (ids, ids, ids * 0), str(target), input_names=names, output_names=["logits"],
        dynamic_axes=axes, opset_version=17, dynamo=False,
    )  # fmt: skip


def sentence_transformers_contestant(torch_folder: Path) -> Contestant:
    from sentence_transformers import CrossEncoder

    model = CrossEncoder(str(torch_folder), device="cpu", max_length=512)
    return lambda query, texts: list(model.predict([(query, text) for text in texts], show_progress_bar=False))


def fastembed_contestant(folder: Path) -> Contestant:
    from fastembed.common.model_description import ModelSource
    from fastembed.rerank.cross_encoder import TextCrossEncoder

    TextCrossEncoder.add_custom_model(
        "local/same-weights", ModelSource(hf="local/same-weights"), model_file="model.onnx"
    )
    model = TextCrossEncoder("local/same-weights", specific_model_path=str(folder))
    return lambda query, texts: list(model.rerank(query, texts))


def flashrank_contestant(cache: Path, name: str) -> Contestant:
    from flashrank import Ranker, RerankRequest

    ranker = Ranker(model_name=name, cache_dir=str(cache), max_length=512, log_level="ERROR")

    def rank(query: str, texts: list[str]) -> list[float]:
        passages = [{"id": index, "text": text} for index, text in enumerate(texts)]
        scores = [0.0] * len(texts)
        for passage in ranker.rerank(RerankRequest(query=query, passages=passages)):
            scores[passage["id"]] = float(passage["score"])
        return scores

    return rank


def mnemorank_contestant(model: str) -> Contestant:
    from mnemorank import Reranker

    reranker = Reranker(model)
    return lambda query, texts: [score.raw_score or 0.0 for score in reranker.score(query, texts)]


def peer_folders(torch_folder: Path, scratch: Path) -> tuple[Path, Path, str]:
    from flashrank.Config import model_file_map
    from onnxruntime.quantization import quantize_dynamic

    plain = scratch / "plain"
    plain.mkdir()
    for name in ("tokenizer.json", "config.json", "tokenizer_config.json", "special_tokens_map.json"):
        if (torch_folder / name).exists():
            shutil.copy(torch_folder / name, plain / name)
    tokens = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    (plain / "special_tokens_map.json").write_text(json.dumps(tokens))
    settings = (
        json.loads((plain / "tokenizer_config.json").read_text()) if (plain / "tokenizer_config.json").exists() else {}
    )
    (plain / "tokenizer_config.json").write_text(
        json.dumps({**settings, "pad_token": "[PAD]", "model_max_length": 512})
    )
    plain_export(torch_folder, plain / "model.onnx")
    name = "ms-marco-MiniLM-L-12-v2"  # FlashRank takes only names it knows; the folder holds our weights
    quantized = scratch / "flashrank" / name
    shutil.copytree(plain, quantized, ignore=shutil.ignore_patterns("model.onnx"))
    quantize_dynamic(str(plain / "model.onnx"), str(quantized / model_file_map[name]))
    return plain, scratch / "flashrank", name


def rank_agreement(a: list[float], b: list[float]) -> float:
    """Spearman's correlation of two score lists."""
    ranks = [np.argsort(np.argsort(values)) for values in (a, b)]
    return float(np.corrcoef(*ranks)[0, 1])


def compare(contestants: dict[str, Contestant], pools: list[tuple[str, list[str]]], rounds: int) -> None:
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    scores: dict[str, list[list[float]]] = {name: [] for name in contestants}
    for name, contestant in contestants.items():
        contestant(*pools[0])
        scores[name] = [contestant(query, texts) for query, texts in pools]
    for _ in range(rounds):
        for query, texts in pools:
            for name, contestant in contestants.items():
                started = time.perf_counter()
                contestant(query, texts)
                seconds[name].append(time.perf_counter() - started)
    reference = next(iter(contestants))
    ours = list(contestants)[-1]
    per_query = len(pools[0][1])
    print(f"{'':28} pairs/s  ms/100   {ours} is  rank corr.  same first")
    for name in contestants:
        median = float(np.median(seconds[name]))
        ratio = median / float(np.median(seconds[ours]))
        agreement = np.mean([rank_agreement(a, b) for a, b in zip(scores[reference], scores[name], strict=True)])
        first = np.mean([np.argmax(a) == np.argmax(b) for a, b in zip(scores[reference], scores[name], strict=True)])
        print(
            f"{name:28} {per_query / median:7.0f} {1000 * median:7.0f}  {ratio:8.2f}x  {agreement:10.4f}  {first:10.2f}"
        )


def import_and_memory(model: str) -> None:
    code = "import time; t = time.perf_counter(); import mnemorank; print(time.perf_counter() - t)"
    times = [float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(7)]
    print(f"import mnemorank: {np.median(times):.3f} s (median of 7)")
    code = (
        "import re, mnemorank\n"
        "def peak(): return re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read()).group(1)\n"
        f"reranker = mnemorank.Reranker({model!r})\n"
        "reranker.rerank('warm up', ['text'])\n"
        "before = peak()\n"
        "pool = [f'memory number {i} about a matter' for i in range(10_000)]\n"
        "reranker.rerank('Where does Ruby work?', pool, top_k=5)\n"
        "print(before, peak())"
    )
    before, after = (int(value) / 1024 for value in subprocess.check_output([sys.executable, "-c", code]).split())
    print(f"peak memory: {before:.0f} MB with the model loaded, {after:.0f} MB after 10,000 candidates")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", type=Path, required=True)
    parser.add_argument("--model", default="mini")
    parser.add_argument("--queries", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    pools = make_pairs(arguments.torch / "tokenizer.json", arguments.queries)
    with tempfile.TemporaryDirectory() as scratch:
        plain, flashrank_cache, name = peer_folders(arguments.torch, Path(scratch))
        contestants = {
            "sentence-transformers fp32": sentence_transformers_contestant(arguments.torch),
            "fastembed, plain ONNX fp32": fastembed_contestant(plain),
            "FlashRank, plain ONNX INT8": flashrank_contestant(flashrank_cache, name),
            "mnemorank": mnemorank_contestant(arguments.model),
        }
        compare(contestants, pools, arguments.rounds)
    import_and_memory(arguments.model)


if __name__ == "__main__":
    main()
