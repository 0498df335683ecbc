"""Measure models on all development sets and print a Markdown table, for docs/benchmarks.md and for choosing a model.

    MNEMORANK_DATA=/path/to/data MNEMORANK_LISTS=/path/to/lists python research/dev_bench.py --model mini --model bm25

MNEMORANK_LISTS is the output of `research/mini_data`. Two sets are parts of larger files: the 300 questions of
2WikiMultiHopQA with the lowest md5 of their id, and the questions of LongMemEval-S whose md5 is a multiple of 3.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DATASETS = Path(__file__).parents[1] / "src/mnemorank/assets/datasets"


@dataclass(frozen=True, slots=True)
class DevSet:
    """A development set.

    :param part: selects the records of the set from those of a larger file.
    """

    name: str
    task: str
    path: str
    limit: int | None = None
    part: Callable[[list[dict[str, Any]]], list[dict[str, Any]]] | None = None


def _md5(text: str) -> int:
    return int(hashlib.md5(text.encode(), usedforsecurity=False).hexdigest(), 16)


SETS = (
    DevSet("everyday facts, four unseen authors", "everyday", str(DATASETS / "everyday/dev.jsonl.gz")),
    DevSet("Memex `eval_70`", "triplets", "{data}/memex/eval_70.jsonl"),
    DevSet(
        "LongMemEval-S sessions, dev",
        "longmemeval",
        "{data}/longmemeval/longmemeval_s_train.json.gz",
        part=lambda records: [record for record in records if _md5(record["question_id"]) % 3 == 0],
    ),
    DevSet(
        "2WikiMultiHopQA dev",
        "2wiki",
        "{data}/2wiki/2wikimultihop.json.gz",
        part=lambda records: sorted(records, key=lambda record: _md5(record["_id"]))[:300],
    ),
    DevSet("LifeBench dev, phone records", "lists", "{data}/lists/lifebench.dev.jsonl.gz"),
    DevSet("RealMem dev, chat turns → profile", "lists", "{data}/lists/realmem.dev.jsonl.gz"),
    DevSet("MedQuAD dev", "lists", "{data}/lists/medquad.dev.jsonl.gz", limit=200),
    DevSet("SQuAD dev", "lists", "{data}/lists/squad.dev.jsonl.gz"),
    DevSet("HotpotQA sample", "hotpotqa", "{data}/hotpotqa/hotpotqa_sample.json.gz"),
    DevSet("MuSiQue sample", "musique", "{data}/musique/musique_sample.json.gz"),
    DevSet("LoCoMo, one conversation", "locomo", "{data}/locomo/locomo_sample.json.gz"),
    DevSet("our articles, written after training", "lists", "{lists}/articles-dev.jsonl.gz"),
    DevSet("our dated triplets, unseen author", "triplets", str(DATASETS / "dated/test.jsonl")),
    DevSet("our scenes with decoys, unseen author", "lists", "{lists}/decoys-test.jsonl.gz"),
    DevSet("our conversations, unseen author", "lists", "{lists}/conversations-test.jsonl.gz"),
)


def measure(dev: DevSet, models: list[str], folder: Path, extra: list[str]) -> dict[str, Any]:
    """Return the JSON report of `mnemorank bench`."""
    path = Path(dev.path.format(data=os.environ["MNEMORANK_DATA"], lists=os.environ["MNEMORANK_LISTS"]))
    if dev.part is not None:
        with gzip.open(path, "rt", encoding="utf-8") as stream:
            records = dev.part(json.load(stream))
        path = folder / f"{dev.task}.json"
        path.write_text(json.dumps(records), encoding="utf-8")
    command = [sys.executable, "-m", "mnemorank", "bench", dev.task, str(path), "--json", "-", *extra]
    command += [argument for model in models for argument in ("--model", model)]
    command += ["--limit", str(dev.limit)] if dev.limit else []
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    report: dict[str, Any] = json.loads(run.stdout)
    return report


def row(name: str, model: str, figures: dict[str, Any]) -> str:
    cells = []
    for metric in ("map", "mrr@10", "ndcg@10"):
        low, high = figures["intervals"][metric]
        cells.append(f"{_short(figures[metric])} ({_short(low)}–{_short(high)})")
    ece = "–" if figures["ece"] is None else _short(figures["ece"])
    return f"| {name} | `{model}` | {' | '.join(cells)} | {_short(figures['hit@1'])} | {ece} |"


def _short(value: float) -> str:
    return f"{value:.2f}" if value > 0.9995 else f"{value:.3f}".removeprefix("0")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", help="as in `mnemorank bench` (default: mini and bm25)")
    parser.add_argument("--only", action="append", help="only sets whose name contains this; may be repeated")
    arguments, extra = parser.parse_known_args()
    models = arguments.model or ["mini", "bm25"]
    print("| Data (questions) | System | MAP (95% CI) | MRR@10 (95% CI) | NDCG@10 (95% CI) | hit@1 | ECE |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for dev in SETS:
            if arguments.only and not any(part in dev.name for part in arguments.only):
                continue
            report = measure(dev, models, Path(folder), extra)
            for number, model in enumerate(models):
                name = f"{dev.name} ({report['queries_with_relevant']})" if number == 0 else ""
                print(row(name, model, report["models"][model]), flush=True)


if __name__ == "__main__":
    main()
