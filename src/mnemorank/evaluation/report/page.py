"""Assemble the page of the report."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

import numpy as np

from mnemorank._internal.arrays import Floats
from mnemorank._version import __version__
from mnemorank.evaluation.benchmark import BenchmarkRun
from mnemorank.evaluation.report import charts as svg
from mnemorank.evaluation.report.failures import failures
from mnemorank.evaluation.summary import BenchmarkSummary, SystemSummary

KIND_METRICS = ("map", "ndcg@10", "recall@5", "hit@1")
_LEFT = ' class="word"'
COLUMNS = ("map", "mrr@10", "ndcg@10", "recall@5", "recall@10", "hit@1", "hit@5")


def write_report(run: BenchmarkRun, summary: BenchmarkSummary, path: Path) -> None:
    """Write the report to a file. Lone surrogates, which UTF-8 cannot encode, are replaced by "?"."""
    path.write_text(report_page(run, summary), encoding="utf-8", errors="replace")


def report_page(run: BenchmarkRun, summary: BenchmarkSummary) -> str:
    """Return the page as HTML, with style, script and data inline."""
    systems = list(summary.systems.values())
    data = {"models": list(summary.systems), "failures": failures(run)}
    sections = [
        _section("Summary", _summary_table(systems), "Means over questions; bars show MAP with its 95% interval."),
        _section(f"{systems[0].name} compared with the others", _comparisons(summary), _COMPARED)
        if len(systems) > 1
        else "",
        _section("By kind of question", _by_kind(systems), "") if any(system.by_kind for system in systems) else "",
        _section("Quality and latency", _latency(systems, summary.queries), "Up and to the left is better."),
        _section("Reliability", _reliability(systems), _RELIABLE)
        if any(system.reliability for system in systems)
        else "",
        _section("Scores of relevant and irrelevant memories", _distributions(run), _SPREAD),
        _section("Failures", _asset("failures.html"), "Questions whose first memory is not relevant."),
    ]
    return Template(_asset("page.html")).substitute(
        title=escape(f"{summary.task} · mnemorank bench"),
        task=escape(summary.task),
        source=escape(Path(summary.path).name),
        facts=_facts(summary),
        legend=_legend(systems),
        style=_asset("style.css"),
        sections="".join(sections),
        data=_embedded(data),
        script=_asset("script.js"),
        version=__version__,
    )


_COMPARED = "Paired over questions: difference of MAP with its 95% bootstrap interval; two-sided randomization test."
_RELIABLE = "On the diagonal, a share p of the memories with a predicted relevance of p is relevant."
_SPREAD = "Filled: relevant. Outlined: irrelevant. Heights are square roots of shares; less overlap is better."


def _asset(name: str) -> str:
    return (files("mnemorank.evaluation.report") / name).read_text(encoding="utf-8")


def _embedded(data: object) -> str:
    """Return JSON that cannot close the script element around it."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _section(title: str, body: str, note: str) -> str:
    hint = f'<p class="note">{escape(note)}</p>' if note else ""
    return f"<section><h2>{escape(title)}</h2>{hint}{body}</section>"


def _facts(summary: BenchmarkSummary) -> str:
    facts = [("questions", f"{summary.queries:,}")]
    if summary.with_relevant != summary.queries:
        facts.append(("with an answer", f"{summary.with_relevant:,}"))
    facts.append(("candidates per question", f"{summary.candidates_mean:.1f}"))
    if summary.pool_recall is not None:
        facts.append(("of relevant memories in the pool", f"{summary.pool_recall:.1%}"))
    return "".join(f"<div><b>{value}</b><span>{name}</span></div>" for name, value in facts)


def _legend(systems: Sequence[SystemSummary]) -> str:
    return "".join(
        f'<span><i class="swatch {svg.color(index)}"></i>{escape(system.name)}</span>'
        for index, system in enumerate(systems)
    )


def _summary_table(systems: Sequence[SystemSummary]) -> str:
    spreads = [system.intervals["map"] for system in systems if not math.isnan(system.intervals["map"].mean)]
    low = min((spread.low for spread in spreads), default=0.0)
    high = max((spread.high for spread in spreads), default=1.0)
    extra: dict[str, list[float | None]] = {}
    if any(system.pairwise is not None for system in systems):
        extra[systems[0].pairs_metric.replace("_", " ")] = [system.pairwise for system in systems]
    abstentions = [system.abstention for system in systems]
    if any(abstentions):
        extra["answerable refused"] = [a.answerable_refused if a else None for a in abstentions]
        extra["unanswerable refused"] = [a.unanswerable_refused if a else None for a in abstentions]
        extra["abstention AUC"] = [a.auc if a else None for a in abstentions]
    head = ["", *COLUMNS, "MAP, 95%", *extra, "ECE", "pairs/s", "top 5 net"]
    best = {name: _best([system.mean(name) or 0.0 for system in systems]) for name in COLUMNS}
    rows = []
    for index, system in enumerate(systems):
        cells = [f'<th><i class="swatch {svg.color(index)}"></i>{escape(system.name)}</th>']
        for name in COLUMNS:
            value = system.mean(name)
            mark = ' class="best"' if value is not None and value >= best[name] - 1e-9 else ""
            cells.append(f"<td{mark}>{svg.figure(value)}</td>")
        spread = system.intervals["map"]
        cells.append(
            f'<td class="chart">{svg.interval_bar(spread, low, high, index)}'
            f"<small>{svg.figure(spread.low)} – {svg.figure(spread.high)}</small></td>"
        )
        cells += [f"<td>{svg.figure(values[index])}</td>" for values in extra.values()]
        cells.append(f"<td>{svg.figure(system.ece)}</td>")
        cells.append(f"<td>{system.pairs / system.seconds:,.0f}</td>" if system.seconds else "<td>–</td>")
        change = system.top_k_change
        cells.append(f'<td title="{change.added} added, {change.lost} lost">{change.net:+d}</td>')
        rows.append(f"<tr>{''.join(cells)}</tr>")
    header = "".join(f"<th{_LEFT if name == 'MAP, 95%' else ''}>{escape(name)}</th>" for name in head)
    return f'<div class="scroll"><table><thead><tr>{header}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _best(values: Sequence[float]) -> float:
    """Return the value to mark as best; none if all are equal."""
    return max(values) if max(values) > min(values) else math.inf


def _comparisons(summary: BenchmarkSummary) -> str:
    rows = []
    for other, by_metric in summary.comparisons.items():
        comparison = by_metric["map"]
        total = max(comparison.wins + comparison.losses + comparison.ties, 1)
        parts = (("won", comparison.wins), ("tied", comparison.ties), ("lost", comparison.losses))
        bar = "".join(
            f'<i class="{kind}" style="width:{100 * count / total:.2f}%" title="{count} {kind}"></i>'
            for kind, count in parts
        )
        verdict = "no difference" if comparison.p >= 0.05 else "better" if comparison.difference.mean > 0 else "worse"
        rows.append(
            f"<tr><th>{escape(other)}</th><td>{comparison.difference.mean:+.3f}</td>"
            f"<td>{comparison.difference.low:+.3f} to {comparison.difference.high:+.3f}</td><td>{comparison.p:.4f}</td>"
            f'<td class="word">{verdict}</td><td class="chart"><span class="stack">{bar}</span></td>'
            f"<td>{comparison.wins} / {comparison.ties} / {comparison.losses}</td></tr>"
        )
    titles = ("compared with", "MAP", "95%", "p", "verdict", "", "won / tied / lost")
    head = "".join(f"<th{_LEFT if name == 'verdict' else ''}>{name}</th>" for name in titles)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _by_kind(systems: Sequence[SystemSummary]) -> str:
    by_system = [system.by_kind for system in systems]
    tabs = "".join(
        f'<button type="button" data-measure="{name}"{" aria-pressed=true" if not i else ""}>{name.upper()}</button>'
        for i, name in enumerate(KIND_METRICS)
    )
    charts = "".join(
        f'<div class="scroll kind" data-measure="{name}"{" hidden" if i else ""}>'
        f"{svg.bars_by_kind(by_system, name)}</div>"
        for i, name in enumerate(KIND_METRICS)
    )
    return f'<div class="tabs" id="measures">{tabs}</div>{charts}'


def _latency(systems: Sequence[SystemSummary], queries: int) -> str:
    known = [system for system in systems if system.mean("map") is not None]
    if not known:
        return "<p>No question has an answer.</p>"
    times = [1000 * system.seconds / queries for system in known]
    chart = svg.latency_against_quality(
        [system.name for system in known], times, [system.mean("map") or 0.0 for system in known]
    )
    return f'<div class="scroll">{chart}</div>'


def _reliability(systems: Sequence[SystemSummary]) -> str:
    return _multiples(
        (system.name, f"ECE {svg.figure(system.ece)}", svg.reliability_diagram(system.reliability, index))
        for index, system in enumerate(systems)
        if system.reliability
    )


def _distributions(run: BenchmarkRun) -> str:
    charts = []
    is_relevant = np.concatenate([question.judgments.relevant for question in run.questions])
    for index, (name, predictions) in enumerate(run.predictions.items()):
        relevance = [prediction.relevance for prediction in predictions if prediction.relevance is not None]
        has_relevance = len(relevance) == len(predictions)
        scores = np.concatenate(relevance if has_relevance else [_standardize(p.scores) for p in predictions])
        is_scored = np.isfinite(scores)
        if not is_scored.any():
            continue
        unit = "relevance" if has_relevance else "standardized score"
        chart = svg.distributions(scores[is_scored & is_relevant], scores[is_scored & ~is_relevant], index)
        charts.append((name, unit, chart))
    return _multiples(charts)


def _standardize(scores: Floats) -> Floats:
    known = scores[np.isfinite(scores)]
    spread = float(known.std()) if len(known) else 0.0
    return (scores - known.mean()) / spread if spread > 1e-12 else np.full(len(scores), np.nan)


def _multiples(charts: Iterable[tuple[str, str, str]]) -> str:
    cells = "".join(
        f"<figure><figcaption><b>{escape(name)}</b> {escape(unit)}</figcaption>{chart}</figure>"
        for name, unit, chart in charts
    )
    return f'<div class="multiples">{cells}</div>'
