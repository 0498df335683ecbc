"""Measure what each field of a memory is worth: accuracy with all fields, without the end dates, and so on.

    python benchmarks/fields.py
    python benchmarks/fields.py --everyday DIR    also stores with nothing but `created_at`, in the everyday format

The first part uses the bundled dated pairs for development: a question, a memory that answers it and one that is
outdated or close. The second compares memories that have a storage date with the same memories as dated facts, as the
adapters for memory stores read them.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterable
from importlib.resources import files
from pathlib import Path
from typing import Any

from mnemorank import Memory, Moment, Reranker
from mnemorank.integrations.adapter import Adapter

Record = dict[str, Any]
DEVELOPMENT = files("mnemorank") / "assets" / "datasets" / "dated" / "dev.jsonl"


def _without(*names: str) -> Callable[[Record], Record]:
    return lambda record: {name: value for name, value in record.items() if value and name not in names}


def _hindsight(record: Record) -> str:
    """Write a memory as Hindsight passes it to a reranker."""
    text = f"{record['context']}: {record['text']}" if record.get("context") else record["text"]
    start = record.get("occurred_start")
    return f"[Date: {Moment.parse(start).words()}] {text}" if start else text


def _as_start(record: Record) -> Record:
    """Read the date that Hindsight writes as the start of a fact."""
    text = f"{record['context']}: {record['text']}" if record.get("context") else record["text"]
    return {"text": text, "occurred_start": record.get("occurred_start")}


FORMS: dict[str, Callable[[Record], Record | str]] = {
    "all fields": _without(),
    "without the end": _without("occurred_end"),
    "[Date: …] in the text, as Hindsight does": _hindsight,
    "the same date as occurred_start": _as_start,
    "text alone": lambda record: record["text"],
}


def measure_pairs(reranker: Reranker) -> None:
    pairs = [json.loads(line) for line in DEVELOPMENT.read_text(encoding="utf-8").splitlines()]
    print(f"{len(pairs)} dated pairs, share that the model alone orders correctly")
    for name, form in FORMS.items():
        correct = 0
        for pair in pairs:
            negative, positive = reranker.score(pair["query"], [form(pair["negative"]), form(pair["positive"])])
            correct += (positive.relevance or 0.0) > (negative.relevance or 0.0)
        print(f"  {correct / len(pairs):.3f}  {name}")


def measure_stores(reranker: Reranker, folder: Path) -> None:
    stores = [store for path in sorted(folder.glob("*.json")) for store in json.loads(path.read_text(encoding="utf-8"))]
    stores = [store for store in stores if all(_has_only_created_at(memory) for memory in store["memories"])]
    print(f"{len(stores)} stores with nothing but created_at, NDCG@10")
    for name, facts in (("as stored", False), ("as facts that are true since then", True)):
        adapter = Adapter(reranker, facts=facts)
        scores = [score for store in stores for score in _score_store(adapter, store)]
        print(f"  {sum(scores) / len(scores):.3f}  {name} ({len(scores)} questions)")


def _has_only_created_at(memory: Record) -> bool:
    read = Memory.of(memory)
    return read.mentioned_at is not None and read.occurred_start is None and read.occurred_end is None


def _score_store(adapter: Adapter, store: Record) -> Iterable[float]:
    for question in store["questions"]:
        if not question["relevant"]:
            continue
        adapter.arguments["now"] = question.get("now")
        ranking = adapter.rank(question["query"], store["memories"])
        ids = [store["memories"][ranked.index]["id"] for ranked in ranking]
        yield _ndcg([name for name in ids if name not in question.get("partly", [])], set(question["relevant"]))


def _ndcg(ids: list[str], relevant: set[str]) -> float:
    gain = sum(1 / math.log2(rank + 1) for rank, name in enumerate(ids[:10], 1) if name in relevant)
    return gain / sum(1 / math.log2(rank + 1) for rank in range(1, min(len(relevant), 10) + 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mini")
    parser.add_argument("--everyday", type=Path, metavar="DIR")
    arguments = parser.parse_args()
    reranker = Reranker(arguments.model)
    measure_pairs(reranker)
    if arguments.everyday is not None:
        measure_stores(reranker, arguments.everyday)


if __name__ == "__main__":
    main()
