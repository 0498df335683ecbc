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
    from mnemorank.evaluation.summary import BenchmarkSummary

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
    from mnemorank.evaluation.benchmark import run_benchmark
    from mnemorank.evaluation.cache import default_cache_folder
    from mnemorank.evaluation.summary import summarize
    from mnemorank.evaluation.systems import load_system
    from mnemorank.options import Options

    loader = loaders[arguments.task]
    path = _existing(arguments.path)
    outputs = [_writable(file) for file in (arguments.json, arguments.html) if file and file != "-"]
    options = Options(weights=dict(arguments.weights or ()))
    systems = [
        load_system(name, model_only=arguments.model_only, options=options, threads=arguments.threads)
        for name in arguments.models or ["mini", "first-stage"]
    ]

    def with_progress(examples: Iterable[Example]) -> Iterator[Example]:
        return progress(examples, arguments.task, arguments.limit)

    benchmark_run = run_benchmark(
        loader,
        path,
        systems,
        limit=arguments.limit,
        cache=None if arguments.no_cache else default_cache_folder(),
        progress=with_progress,
    )
    summary = summarize(benchmark_run)
    figures = json.dumps(summary.to_json(), ensure_ascii=False, indent=2, allow_nan=False)
    if arguments.json == "-":
        print(figures)
    else:
        print(_format(summary))
    if arguments.json and arguments.json != "-":
        Path(arguments.json).write_text(figures + "\n", encoding="utf-8")
    if arguments.html:
        from mnemorank.evaluation.report import write_report

        write_report(benchmark_run, summary, Path(arguments.html))
    if arguments.json != "-":
        for output in outputs:
            print(f"wrote {output}")


def _existing(text: str) -> Path:
    from mnemorank.errors import InputError

    path = Path(text).expanduser()
    if not path.exists():
        raise InputError("no such file or folder", location=str(path), code="not_found")
    return path


def _writable(text: str) -> Path:
    """Return the path of an output file; fail before the work, not after."""
    from mnemorank.errors import InputError

    path = Path(text)
    if path.is_dir() or not path.absolute().parent.is_dir():
        problem = "it is a folder" if path.is_dir() else "its folder does not exist"
        raise InputError(f"cannot write the file: {problem}", location=str(path))
    return path


def _format(summary: BenchmarkSummary) -> str:
    """Return the figures as text: the main table, abstention, kinds of questions, and comparisons."""
    recall = "" if summary.pool_recall is None else f", with {summary.pool_recall:.1%} of the relevant memories"
    parts = [
        f"{summary.task}: {summary.queries} questions ({summary.with_relevant} answerable), "
        f"{summary.candidates_mean:.1f} candidates each{recall}",
        _main_table(summary),
        _pairs_and_abstention_table(summary),
        _kinds_table(summary),
        "\n".join([*_comparison_lines(summary), *_top_k_lines(summary)]),
    ]
    return "\n\n".join(part for part in parts if part)


def _main_table(summary: BenchmarkSummary) -> str:
    from mnemorank.cli.output import table

    metrics = ("map", "mrr@10", "ndcg@10", "recall@5", "recall@10", "hit@1", "hit@5")
    rows = [
        [
            name,
            *(_figure(system.mean(metric)) for metric in metrics),
            f"{_figure(system.intervals['map'].low)}–{_figure(system.intervals['map'].high)}",
            _figure(system.ece),
            f"{system.seconds:.1f}",
            f"{system.pairs / system.seconds:.0f}" if system.seconds else "–",
        ]
        for name, system in summary.systems.items()
    ]
    header = ["", *metrics, "map 95%", "ece", "s", "pairs/s"]
    return table(rows, header, right=range(1, len(header)))


def _pairs_and_abstention_table(summary: BenchmarkSummary) -> str:
    """Return what only some benchmarks measure: compared pairs, and abstention on unanswerable questions."""
    from mnemorank.cli.output import table

    systems = summary.systems.values()
    columns: dict[str, list[float | None]] = {}
    if any(system.pairwise is not None for system in systems):
        name = next(iter(systems)).pairs_metric.replace("_", " ")
        columns[name] = [system.pairwise for system in systems]
    abstentions = [system.abstention for system in systems]
    if any(abstentions):
        columns["answerable refused"] = [a.answerable_refused if a else None for a in abstentions]
        columns["unanswerable refused"] = [a.unanswerable_refused if a else None for a in abstentions]
        columns["abstention AUC"] = [a.auc if a else None for a in abstentions]
    if not columns:
        return ""
    rows = [[name, *map(_figure, values)] for name, *values in zip(summary.systems, *columns.values(), strict=True)]
    return table(rows, ["", *columns], right=range(1, len(columns) + 1))


def _kinds_table(summary: BenchmarkSummary) -> str:
    """Return NDCG@10 and hit@1 by kind of question, if there are several kinds."""
    from mnemorank.cli.output import table

    first = next(iter(summary.systems.values()))
    if len(first.by_kind) < 2:
        return ""
    rows = [
        [
            kind,
            f"{means['queries']:.0f}",
            *(
                _figure(system.by_kind[kind][metric])
                for system in summary.systems.values()
                for metric in ("ndcg@10", "hit@1")
            ),
        ]
        for kind, means in first.by_kind.items()
    ]
    header = ["kind", "questions", *(f"{name} {metric}" for name in summary.systems for metric in ("ndcg@10", "hit@1"))]
    return table(rows, header, right=range(1, len(header)))


def _comparison_lines(summary: BenchmarkSummary) -> list[str]:
    first = next(iter(summary.systems))
    lines = []
    for other, by_metric in summary.comparisons.items():
        comparison = by_metric["map"]
        lines.append(
            f"{first} vs. {other}: map {comparison.difference.mean:+.4f} "
            f"({comparison.difference.low:+.4f} to {comparison.difference.high:+.4f}), p = {comparison.p:.4f}, "
            f"{comparison.wins} wins, {comparison.losses} losses, {comparison.ties} ties"
        )
    return lines


def _top_k_lines(summary: BenchmarkSummary) -> list[str]:
    return [
        f"{name}: top 5 vs. the first stage: {change.added} relevant memories added, {change.lost} lost, "
        f"net {change.net:+d}"
        for name, system in summary.systems.items()
        if (change := system.top_k_change).added or change.lost
    ]


def _figure(value: float | None) -> str:
    return "–" if value is None or value != value else f"{value:.4f}".replace("0.", ".", 1)
