"""mnemorank bench: measure models and baselines on a benchmark."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mnemorank.cli.output import named_number, positive_number

if TYPE_CHECKING:
    from mnemorank.data.examples import Example
    from mnemorank.evaluation.summary import Summary

HELP = "measure models and baselines on a benchmark"
EXAMPLE = "mnemorank bench longmemeval longmemeval_s.json --model mini --model bm25 --html report.html"

TASKS = "triplets, lists, graded, longmemeval, longmemeval-turns, locomo, hotpotqa, 2wiki, musique, squad, beir"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("task", metavar="TASK", help=TASKS)
    parser.add_argument("path", metavar="PATH", help="the benchmark's own file or folder, plain, .gz or .zst")
    parser.add_argument(
        "--model",
        action="append",
        metavar="M",
        dest="models",
        help="what to measure, may be repeated: a bundled model, a model folder, hf:org/name, a bi-encoder folder "
        "(bi:FOLDER), an HTTP reranker (http://…), or a baseline: first-stage, bm25, recency, fusion, random "
        "(default: mini and first-stage). The first is compared with the others",
    )
    parser.add_argument("--limit", type=positive_number, metavar="N", help="only the first N questions")
    parser.add_argument("--model-only", action="store_true", help="the bare model: no blend, no other stage")
    parser.add_argument(
        "--weight",
        action="append",
        type=named_number,
        metavar="NAME=W",
        dest="weights",
        help="override a pipeline weight of the model, such as same_day=0; may be repeated",
    )
    parser.add_argument("--threads", type=positive_number, metavar="N", help="threads of each model (default: all)")
    parser.add_argument("--json", metavar="FILE", help="write the figures as JSON; - for standard output")
    parser.add_argument("--html", metavar="FILE", help="write a report, one page that needs no network")
    parser.add_argument("--no-cache", action="store_true", help="ask everything anew, keep nothing")


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

    def shown(examples: Iterable[Example]) -> Iterator[Example]:
        return progress(examples, arguments.task, arguments.limit)

    evaluation = evaluate(
        loader,
        path,
        contestants,
        limit=arguments.limit,
        cache=None if arguments.no_cache else default_folder(),
        progress=shown,
    )
    summary = summarise(evaluation)
    figures = json.dumps(summary.to_json(), ensure_ascii=False, indent=2, allow_nan=False)
    if arguments.json == "-":
        print(figures)
    else:
        print(_shown(summary))
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
        raise InputError(f"{path}: no such file or folder")
    return path


def _writable(text: str) -> Path:
    """Found out before hours of work, not after."""
    from mnemorank.errors import InputError

    path = Path(text)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise InputError(f"{path}: cannot be written: " + ("is a folder" if path.is_dir() else "no such folder"))
    return path


def _shown(summary: Summary) -> str:
    from mnemorank.cli.output import table

    columns = ("map", "mrr@10", "ndcg@10", "recall@5", "recall@10", "hit@1", "hit@5")
    has_pairs = any(one.pairwise is not None for one in summary.figures.values())
    has_abstention = any(one.abstention for one in summary.figures.values())
    rows = []
    for name, one in summary.figures.items():
        spread = one.intervals["map"]
        row = [
            name,
            *(_figure(one.mean(column)) for column in columns),
            f"{_figure(spread.low)}–{_figure(spread.high)}",
        ]
        row += [_figure(one.pairwise)] if has_pairs else []
        row += [_figure((one.abstention or {}).get("abstention_f1"))] if has_abstention else []
        row += [_figure(one.ece), f"{one.seconds:.1f}", f"{one.pairs / one.seconds:.0f}" if one.seconds else "–"]
        rows.append(row)
    header = ["", *columns, "map 95 %"]
    header += ["pairwise"] if has_pairs else []
    header += ["abstain F1"] if has_abstention else []
    header += ["ece", "s", "pairs/s"]
    recall = "" if summary.pool_recall is None else f", {summary.pool_recall:.1%} of the relevant ones among them"
    lines = [
        f"{summary.task}: {summary.queries} questions ({summary.ranked} with an answer), "
        f"{summary.candidates_mean:.1f} candidates each{recall}",
        "",
        table(rows, header, right=range(1, len(header))),
    ]
    first = next(iter(summary.figures))
    lines += [""] if summary.comparisons else []
    for other, by_measure in summary.comparisons.items():
        result = by_measure["map"]
        lines.append(
            f"{first} against {other}: map {result.difference.mean:+.4f} "
            f"({result.difference.low:+.4f} to {result.difference.high:+.4f}), p = {result.p:.4f}, "
            f"{result.wins} won, {result.losses} lost, {result.ties} tied"
        )
    for name, figures in summary.figures.items():
        exchange = figures.exchange
        if exchange.added or exchange.lost:
            lines.append(
                f"{name}: top 5 against the first stage: {exchange.added} relevant added, {exchange.lost} lost, "
                f"net {exchange.net:+d}"
            )
    return "\n".join(lines)


def _figure(value: float | None) -> str:
    return "–" if value is None or value != value else f"{value:.4f}".replace("0.", ".", 1)
