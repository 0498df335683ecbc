"""Compare pairs per second with sentence-transformers, fastembed and FlashRank on the same weights and pairs.

    python benchmarks/speed.py --torch FOLDER [--model mini] [--queries 5] [--rounds 5]

FOLDER is the torch model that the artifact was exported from. The others run what their users would run:
sentence-transformers the fp32 torch model, fastembed a plain fp32 ONNX export, FlashRank that export with onnxruntime's
default dynamic INT8 quantization. The systems take turns query by query, so that noise affects all equally. Ratios are
of medians. Also prints the rank correlation with sentence-transformers, the import time, and the peak memory for 10,000
candidates. Nothing else should run on the machine. Needs `pip install sentence-transformers fastembed flashrank onnx`.
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

from mnemorank._internal.arrays import spearman

System = Callable[[str, list[str]], list[float]]


def make_pairs(tokenizer_file: Path, queries: int, per_query: int = 100) -> list[tuple[str, list[str]]]:
    """Return pools of texts of the bundled `dated` set, cut to 80 tokens per pair on average and 180 at most."""
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
    all_queries = sorted({record["query"] for record in records})
    rng = random.Random(0)
    pools = []
    for query in rng.sample(all_queries, queries):
        query_tokens = len(tokenizer.encode(query).ids) + 1
        texts = []
        for _ in range(per_query):
            text_tokens = min(max(int(rng.lognormvariate(4.26, 0.5)), query_tokens + 8), 180) - query_tokens
            text = ""
            while len(tokenizer.encode(text).ids) < text_tokens + 2:
                text += " " + rng.choice(sentences)
            spans = tokenizer.encode(text, add_special_tokens=False).offsets
            texts.append(text[: spans[text_tokens - 1][1]].strip())
        pools.append((query, texts))
    lengths = [len(tokenizer.encode(query, text).ids) for query, texts in pools for text in texts]
    print(f"{len(lengths)} pairs, {np.mean(lengths):.0f} tokens on average, {max(lengths)} at most")
    return pools


def plain_export(torch_folder: Path, target: Path) -> None:
    """Write the ONNX file of a plain export: the whole graph in fp32."""
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


def sentence_transformers_system(torch_folder: Path) -> System:
    from sentence_transformers import CrossEncoder

    model = CrossEncoder(str(torch_folder), device="cpu", max_length=512)
    return lambda query, texts: list(model.predict([(query, text) for text in texts], show_progress_bar=False))


def fastembed_system(folder: Path) -> System:
    from fastembed.common.model_description import ModelSource
    from fastembed.rerank.cross_encoder import TextCrossEncoder

    TextCrossEncoder.add_custom_model(
        "local/same-weights", ModelSource(hf="local/same-weights"), model_file="model.onnx"
    )
    model = TextCrossEncoder("local/same-weights", specific_model_path=str(folder))
    return lambda query, texts: list(model.rerank(query, texts))


def flashrank_system(cache: Path, name: str) -> System:
    from flashrank import Ranker, RerankRequest

    ranker = Ranker(model_name=name, cache_dir=str(cache), max_length=512, log_level="ERROR")

    def rank(query: str, texts: list[str]) -> list[float]:
        passages = [{"id": index, "text": text} for index, text in enumerate(texts)]
        scores = [0.0] * len(texts)
        for passage in ranker.rerank(RerankRequest(query=query, passages=passages)):
            scores[passage["id"]] = float(passage["score"])
        return scores

    return rank


def mnemorank_system(model: str) -> System:
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
    name = "ms-marco-MiniLM-L-12-v2"  # FlashRank accepts only known names; the folder has our weights
    quantized = scratch / "flashrank" / name
    shutil.copytree(plain, quantized, ignore=shutil.ignore_patterns("model.onnx"))
    quantize_dynamic(str(plain / "model.onnx"), str(quantized / model_file_map[name]))
    return plain, scratch / "flashrank", name


def compare(systems: dict[str, System], pools: list[tuple[str, list[str]]], rounds: int) -> None:
    seconds: dict[str, list[float]] = {name: [] for name in systems}
    scores: dict[str, list[list[float]]] = {name: [] for name in systems}
    for name, system in systems.items():
        system(*pools[0])
        scores[name] = [system(query, texts) for query, texts in pools]
    for _ in range(rounds):
        for query, texts in pools:
            for name, system in systems.items():
                started = time.perf_counter()
                system(query, texts)
                seconds[name].append(time.perf_counter() - started)
    reference = next(iter(systems))
    ours = list(systems)[-1]
    per_query = len(pools[0][1])
    print(f"{'':28} pairs/s  ms/100   {ours} is  rank corr.  same first")
    for name in systems:
        median = float(np.median(seconds[name]))
        ratio = median / float(np.median(seconds[ours]))
        correlation = np.mean(
            [spearman(np.array(a), np.array(b)) for a, b in zip(scores[reference], scores[name], strict=True)]
        )
        first = np.mean([np.argmax(a) == np.argmax(b) for a, b in zip(scores[reference], scores[name], strict=True)])
        speed = f"{per_query / median:7.0f} {1000 * median:7.0f}  {ratio:8.2f}x"
        print(f"{name:28} {speed}  {correlation:10.4f}  {first:10.2f}")


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
        "pool = [f'memory number {i} about something' for i in range(10_000)]\n"
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
        systems = {
            "sentence-transformers fp32": sentence_transformers_system(arguments.torch),
            "fastembed, plain ONNX fp32": fastembed_system(plain),
            "FlashRank, plain ONNX INT8": flashrank_system(flashrank_cache, name),
            "mnemorank": mnemorank_system(arguments.model),
        }
        compare(systems, pools, arguments.rounds)
    import_and_memory(arguments.model)


if __name__ == "__main__":
    main()
