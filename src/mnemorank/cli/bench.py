"""`mnemorank bench`: measure models and baselines on a benchmark."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mnemorank.cli.arguments import named_number, positive_int

if TYPE_CHECKING:
    from mnemorank.data.examples import Example
    from mnemorank.evaluation.summary import Summary

HELP = "measure models and baselines on a benchmark"
EXAMPLE = "mnemorank bench longmemeval longmemeval_s.json --model mini --model bm25 --html report.html"

TASKS = (
    "triplets", "lists", "graded", "everyday", "longmemeval", "longmemeval-turns", "locomo", "hotpotqa", "2wiki",
    "musique", "squad", "beir",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("task", metavar="TASK", help=", ".join(TASKS))
    parser.add_argument(
        "path", metavar="PATH", help="the published file or folder of the benchmark; plain, .gz or .zst"
    )
    parser.add_argument(
        "--model",
        action="append",
        metavar="M",
        dest="models",
        help="a bundled model, a model folder, a Hub id, a bi-encoder folder (bi:FOLDER), an HTTP reranker (http://…), "
        "or a baseline: first-stage, bm25, recency, fusion, random; may be repeated (default: mini and first-stage). "
        "The first is compared with the others",
    )
    parser.add_argument("--limit", type=positive_int, metavar="N", help="use only the first N questions")
    parser.add_argument(
        "--model-only", action="store_true", help="rank by the model alone, without the pipeline around it"
    )
    parser.add_argument(
        "--weight",
        action="append",
        type=named_number,
        metavar="NAME=W",
        dest="weights",
        help="override a pipeline weight, such as same_day=0; may be repeated",
    )
    parser.add_argument("--threads", type=positive_int, metavar="N", help="threads of each model (default: all cores)")
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE as JSON; - for standard output")
    parser.add_argument("--html", metavar="FILE", help="write a self-contained HTML report to FILE")
    parser.add_argument("--no-cache", action="store_true", help="neither read nor write cached results")


def run(arguments: argparse.Namespace) -> None:
    from mnemorank.cli.output import progress
    from mnemorank.data.benchmarks import loaders
    from mnemorank.evaluation.benchmark import evaluate
    from mnemorank.evaluation.cache import default_folder
    from mnemorank.evaluation.summary import summarise
    from mnemorank.evaluation.systems import contestant
    from mnemorank.options import Options

    loader = loaders[arguments.task]
    path = _existing(arguments.path)
    outputs = [_writable(file) for file in (arguments.json, arguments.html) if file and file != "-"]
    options = Options(weights=dict(arguments.weights or ()))
    names = arguments.models or ["mini", "first-stage"]
    contestants = [
        contestant(name, model_only=arguments.model_only, options=options, threads=arguments.threads) for name in names
    ]

    def with_progress(examples: Iterable[Example]) -> Iterator[Example]:
        return progress(examples, arguments.task, arguments.limit)

    evaluation = evaluate(
        loader,
        path,
        contestants,
        limit=arguments.limit,
        cache=None if arguments.no_cache else default_folder(),
        progress=with_progress,
    )
    summary = summarise(evaluation)
    figures = json.dumps(summary.to_json(), ensure_ascii=False, indent=2, allow_nan=False)
    if arguments.json == "-":
        print(figures)
    else:
        print(_format(summary))
    if arguments.json and arguments.json != "-":
        Path(arguments.json).write_text(figures + "\n", encoding="utf-8")
    if arguments.html:
        from mnemorank.evaluation.report import write_report

        write_report(evaluation, summary, Path(arguments.html))
    if arguments.json != "-":
        for output in outputs:
            print(f"wrote {output}")


def _existing(text: str) -> Path:
    from mnemorank.errors import InputError

    path = Path(text).expanduser()
    if not path.exists():
        raise InputError("no such file or folder", field=str(path), code="not_found")
    return path


def _writable(text: str) -> Path:
    """Return the path of an output file; fail before the work, not after."""
    from mnemorank.errors import InputError

    path = Path(text)
    if path.is_dir() or not path.absolute().parent.is_dir():
        problem = "it is a folder" if path.is_dir() else "its folder does not exist"
        raise InputError(f"cannot write the file: {problem}", field=str(path))
    return path


def _format(summary: Summary) -> str:
    from mnemorank.cli.output import table

    columns = ("map", "mrr@10", "ndcg@10", "recall@5", "recall@10", "hit@1", "hit@5")
    has_pairs = any(figures.pairwise is not None for figures in summary.figures.values())
    has_abstention = any(figures.abstention for figures in summary.figures.values())
    rows = []
    for name, figures in summary.figures.items():
        interval = figures.intervals["map"]
        row = [
            name,
            *(_figure(figures.mean(column)) for column in columns),
            f"{_figure(interval.low)}–{_figure(interval.high)}",
        ]
        row += [_figure(figures.pairwise)] if has_pairs else []
        row += [_figure((figures.abstention or {}).get("abstention_f1"))] if has_abstention else []
        pairs_per_second = f"{figures.pairs / figures.seconds:.0f}" if figures.seconds else "–"
        rows.append([*row, _figure(figures.ece), f"{figures.seconds:.1f}", pairs_per_second])
    header = ["", *columns, "map 95 %"]
    header += ["pairwise"] if has_pairs else []
    header += ["abstain F1"] if has_abstention else []
    header += ["ece", "s", "pairs/s"]
    recall = "" if summary.pool_recall is None else f", with {summary.pool_recall:.1%} of the relevant memories"
    lines = [
        f"{summary.task}: {summary.queries} questions ({summary.ranked} answerable), "
        f"{summary.candidates_mean:.1f} candidates each{recall}",
        "",
        table(rows, header, right=range(1, len(header))),
    ]
    first = next(iter(summary.figures))
    lines += [""] if summary.comparisons else []
    for other, by_measure in summary.comparisons.items():
        result = by_measure["map"]
        lines.append(
            f"{first} vs. {other}: map {result.difference.mean:+.4f} "
            f"({result.difference.low:+.4f} to {result.difference.high:+.4f}), p = {result.p:.4f}, "
            f"{result.wins} wins, {result.losses} losses, {result.ties} ties"
        )
    for name, figures in summary.figures.items():
        exchange = figures.exchange
        if exchange.added or exchange.lost:
            lines.append(
                f"{name}: top 5 vs. the first stage: {exchange.added} relevant memories added, {exchange.lost} lost, "
                f"net {exchange.net:+d}"
            )
    return "\n".join(lines)


def _figure(value: float | None) -> str:
    return "–" if value is None or value != value else f"{value:.4f}".replace("0.", ".", 1)
