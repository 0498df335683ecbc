"""Measure what each part of the pipeline that is on by default adds, on development sets.

    python research/ablation.py mini --set everyday=everyday:ndcg@10:dev.jsonl.gz --set hotpot=hotpotqa:map:sample.json

Prints a Markdown table with a row for the pipeline as shipped and one without each part.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fit_pipeline import CachingModel, figure, read_set
from mnemorank import Model, Options

PARTS = {
    "as shipped": Options(),
    "without BM25": Options(weights={"first_stage": 0.0, "first_stage_windowed": 0.0}),
    "without entity links": Options(weights={"entity_links": 0.0}),
    "without the same-day boost": Options(weights={"same_day": 0.0}),
    "without passage re-scoring": Options(weights={"rescoring": 0.0}),
    "without judged replacements": Options(supersede_similar=False),
    "without supersession": Options(supersession="off"),
    "without detecting questions about the past": Options(detect_past_questions=False),
    "the model alone": Options.model_only(),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--set", action="append", required=True, help="name=task:metric:path")
    parser.add_argument("--limit", type=int, help="questions of each set")
    parser.add_argument("--scores", type=Path, default=Path("scores.pkl"), help="keep raw scores here (pickle)")
    parser.add_argument("--threads", type=int)
    arguments = parser.parse_args()
    model = CachingModel(Model.load(arguments.model, threads=arguments.threads), arguments.scores)
    sets = [read_set(stated, arguments.limit) for stated in arguments.set]
    print("| Pipeline | " + " | ".join(f"{dev.name} ({dev.metric}, {len(dev.cases)})" for dev in sets) + " |")
    print("|---" * (len(sets) + 1) + "|")
    for part, options in PARTS.items():
        cells = [f"{figure(dev, model, options):.3f}".removeprefix("0") for dev in sets]
        print(f"| {part} | {' | '.join(cells)} |", flush=True)
        model.save()


if __name__ == "__main__":
    main()
