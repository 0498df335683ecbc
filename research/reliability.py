"""Draw how reliable `relevance` is, a panel for each development set, as an SVG file for docs/benchmarks.md.

    python research/reliability.py mini docs/images/reliability.svg --set everyday=everyday:ndcg@10:dev.jsonl.gz

A point is a tenth of the pairs of question and memory whose relevance is at least 2%, by relevance: its mean relevance
and the share that is relevant. Also prints the calibration error of all pairs, and of these.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from fit_pipeline import CachingModel, DevSet, read_set
from mnemorank import Model
from mnemorank._internal.arrays import Floats, sigmoid
from mnemorank.artifact.calibration import model_odds
from mnemorank.evaluation.metrics import expected_calibration_error, reliability

SIDE, MARGIN, POINTS, LEAST = 150, 34, 10, 0.02


def pairs_of(dev: DevSet, model: CachingModel) -> tuple[Floats, Floats]:
    """Return the relevance of all pairs, and whether they are relevant."""
    relevance = [sigmoid(model_odds(model.score(case.query, case.pool).raw, model.manifest)) for case in dev.cases]
    predicted, actual = np.concatenate(relevance), np.concatenate([case.relevant for case in dev.cases])
    known = np.isfinite(predicted)
    return predicted[known], actual[known].astype(np.float64)


def points(predicted: Floats, actual: Floats) -> list[tuple[float, float]]:
    order = np.argsort(predicted)
    order = order[predicted[order] >= LEAST]
    return [(predicted[part].mean(), actual[part].mean()) for part in np.array_split(order, POINTS) if len(part)]


def panel(name: str, error: float, curve: list[tuple[float, float]], left: float, top: float) -> list[str]:
    def place(x: float, y: float) -> str:
        return f"{left + SIDE * x:.1f},{top + SIDE * (1 - y):.1f}"

    ends = f"{place(0, 0)} {place(1, 1)}"
    return [
        f'<text x="{left}" y="{top - 8}">{name} · ECE {error:.3f}</text>',
        f'<rect x="{left}" y="{top}" width="{SIDE}" height="{SIDE}" fill="none" stroke="#999"/>',
        f'<polyline points="{ends}" fill="none" stroke="#999" stroke-dasharray="3 3"/>',
        f'<polyline points="{" ".join(place(x, y) for x, y in curve)}" fill="none" stroke="#3f7cc4" stroke-width="2"/>',
        *(f'<circle cx="{at[0]}" cy="{at[1]}" r="3" fill="#3f7cc4"/>' for at in (place(*p).split(",") for p in curve)),
        *(f'<text x="{left + SIDE * t}" y="{top + SIDE + 14}" text-anchor="middle">{t:g}</text>' for t in (0, 0.5, 1)),
        *(f'<text x="{left - 5}" y="{top + SIDE * (1 - t) + 4}" text-anchor="end">{t:g}</text>' for t in (0.5, 1)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("output", type=Path)
    parser.add_argument("--set", action="append", required=True, help="name=task:metric:path")
    parser.add_argument("--limit", type=int, help="questions of each set")
    parser.add_argument("--scores", type=Path, default=Path("scores.pkl"), help="keep raw scores here (pickle)")
    parser.add_argument("--columns", type=int, default=4)
    parser.add_argument("--threads", type=int)
    arguments = parser.parse_args()
    model = CachingModel(Model.load(arguments.model, threads=arguments.threads), arguments.scores)
    drawn: list[str] = []
    for number, stated in enumerate(arguments.set):
        dev = read_set(stated, arguments.limit)
        predicted, actual = pairs_of(dev, model)
        model.save()
        high = predicted >= LEAST
        errors = [
            expected_calibration_error(reliability(p, a > 0)) or 0.0
            for p, a in ((predicted, actual), (predicted[high], actual[high]))
        ]
        print(f"{dev.name}: ECE {errors[0]:.3f}, of relevance above {LEAST:g} {errors[1]:.3f}", flush=True)
        row, column = divmod(number, arguments.columns)
        left, top = MARGIN + column * (SIDE + MARGIN + 10), 26 + row * (SIDE + 52)
        drawn += panel(dev.name, errors[1], points(predicted[high], actual[high]), left, top)
    columns = min(len(arguments.set), arguments.columns)
    width, height = columns * (SIDE + MARGIN + 10) + 10, (row + 1) * (SIDE + 52)
    label = "Share of relevant pairs against relevance, for each development set"
    arguments.output.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{label}" font-family="sans-serif" font-size="11" fill="#777">{"".join(drawn)}</svg>\n',
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
