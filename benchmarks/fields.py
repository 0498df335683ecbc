"""Measure what each field of a memory is worth: accuracy with all fields, without the end dates, and so on.

    python benchmarks/fields.py

Uses the bundled dated pairs for development: a question, a memory that answers it and one that is outdated or close.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from importlib.resources import files
from typing import Any

from mnemorank import Moment, Reranker

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mini")
    arguments = parser.parse_args()
    measure_pairs(Reranker(arguments.model))


if __name__ == "__main__":
    main()
