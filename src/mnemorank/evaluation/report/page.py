"""Puts the report together."""

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
from mnemorank.evaluation.benchmark import Evaluation
from mnemorank.evaluation.report import charts as svg
from mnemorank.evaluation.report.failures import failures
from mnemorank.evaluation.summary import Figures, Summary

KIND_MEASURES = ("map", "ndcg@10", "recall@5", "hit@1")
_LEFT = ' class="word"'
COLUMNS = ("map", "mrr@10", "ndcg@10", "recall@5", "recall@10", "hit@1", "hit@5")


def write_report(evaluation: Evaluation, summary: Summary, path: Path) -> None:
    # Half a character in a question is shown as "?".
    path.write_text(report_page(evaluation, summary), encoding="utf-8", errors="replace")


def report_page(evaluation: Evaluation, summary: Summary) -> str:
    """The page as HTML. Style, script and data are inside it."""
    figures = list(summary.figures.values())
    missed = failures(evaluation)
    data = {"models": list(summary.figures), "failures": missed}
    sections = [
        _section("Summary", _summary_table(figures), "Mean over questions; bars show MAP with its 95 % interval."),
        _section(f"{figures[0].name} against the others", _comparisons(summary), _COMPARED) if len(figures) > 1 else "",
        _section("By question type", _by_kind(figures), "") if any(one.by_kind for one in figures) else "",
        _section("Quality against time", _latency(figures, summary.queries), "Up and to the left is better."),
        _section("Reliability", _reliability(figures), _RELIABLE) if any(one.curve for one in figures) else "",
        _section("Scores of relevant and irrelevant memories", _distributions(evaluation), _SPREAD),
        _section("Failures", _asset("failures.html"), "Questions whose first-ranked memory is not relevant."),
    ]
    return Template(_asset("page.html")).substitute(
        title=escape(f"{summary.task} · mnemorank bench"),
        task=escape(summary.task),
        source=escape(Path(summary.path).name),
        facts=_facts(summary),
        legend=_legend(figures),
        style=_asset("style.css"),
        sections="".join(sections),
        data=_embedded(data),
        script=_asset("script.js"),
        version=__version__,
    )


_COMPARED = "Paired over questions: difference of MAP with its 95 % bootstrap interval, two-sided randomization test."
_RELIABLE = "On the diagonal, memories said to be relevant with probability p are so in p of the cases."
_SPREAD = "Filled: relevant. Outlined: irrelevant. Heights are square roots of shares; the less overlap, the better."


def _asset(name: str) -> str:
    return (files("mnemorank.evaluation.report") / name).read_text(encoding="utf-8")


def _embedded(data: object) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _section(title: str, body: str, note: str) -> str:
    hint = f'<p class="note">{escape(note)}</p>' if note else ""
    return f"<section><h2>{escape(title)}</h2>{hint}{body}</section>"


def _facts(summary: Summary) -> str:
    facts = [("questions", f"{summary.queries:,}")]
    if summary.ranked != summary.queries:
        facts.append(("with an answer", f"{summary.ranked:,}"))
    facts.append(("candidates each", f"{summary.candidates_mean:.1f}"))
    if summary.pool_recall is not None:
        facts.append(("of the relevant in the pool", f"{summary.pool_recall:.1%}"))
    return "".join(f"<div><b>{value}</b><span>{name}</span></div>" for name, value in facts)


def _legend(figures: Sequence[Figures]) -> str:
    return "".join(
        f'<span><i class="swatch {svg.colour(index)}"></i>{escape(one.name)}</span>'
        for index, one in enumerate(figures)
    )


def _summary_table(figures: Sequence[Figures]) -> str:
    spreads = [one.intervals["map"] for one in figures if not math.isnan(one.intervals["map"].mean)]
    low = min((one.low for one in spreads), default=0.0)
    high = max((one.high for one in spreads), default=1.0)
    extra: dict[str, list[float | None]] = {}
    if any(one.pairwise is not None for one in figures):
        extra["pairwise"] = [one.pairwise for one in figures]
    if any(one.abstention for one in figures):
        extra["abstain F1"] = [(one.abstention or {}).get("abstention_f1") for one in figures]
    head = ["", *COLUMNS, "MAP, 95 %", *extra, "ECE", "pairs/s", "net top 5"]
    best = {name: _best([one.mean(name) or 0.0 for one in figures]) for name in COLUMNS}
    rows = []
    for index, one in enumerate(figures):
        cells = [f'<th><i class="swatch {svg.colour(index)}"></i>{escape(one.name)}</th>']
        for name in COLUMNS:
            value = one.mean(name)
            mark = ' class="best"' if value is not None and value >= best[name] - 1e-9 else ""
            cells.append(f"<td{mark}>{svg.figure(value)}</td>")
        spread = one.intervals["map"]
        cells.append(
            f'<td class="chart">{svg.interval_bar(spread, low, high, index)}'
            f"<small>{svg.figure(spread.low)} – {svg.figure(spread.high)}</small></td>"
        )
        cells += [f"<td>{svg.figure(values[index])}</td>" for values in extra.values()]
        cells.append(f"<td>{svg.figure(one.ece)}</td>")
        cells.append(f"<td>{one.pairs / one.seconds:,.0f}</td>" if one.seconds else "<td>–</td>")
        cells.append(f'<td title="{one.exchange.added} added, {one.exchange.lost} lost">{one.exchange.net:+d}</td>')
        rows.append(f"<tr>{''.join(cells)}</tr>")
    header = "".join(f"<th{_LEFT if name == 'MAP, 95 %' else ''}>{escape(name)}</th>" for name in head)
    return f'<div class="scroll"><table><thead><tr>{header}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _best(values: Sequence[float]) -> float:
    """What is marked as best; nothing is where all are alike."""
    return max(values) if max(values) > min(values) else math.inf


def _comparisons(summary: Summary) -> str:
    rows = []
    for other, by_measure in summary.comparisons.items():
        one = by_measure["map"]
        total = max(one.wins + one.losses + one.ties, 1)
        parts = (("won", one.wins), ("tied", one.ties), ("lost", one.losses))
        bar = "".join(
            f'<i class="{kind}" style="width:{100 * count / total:.2f}%" title="{count} {kind}"></i>'
            for kind, count in parts
        )
        verdict = "not told apart" if one.p >= 0.05 else "better" if one.difference.mean > 0 else "worse"
        rows.append(
            f"<tr><th>{escape(other)}</th><td>{one.difference.mean:+.3f}</td>"
            f"<td>{one.difference.low:+.3f} to {one.difference.high:+.3f}</td><td>{one.p:.4f}</td>"
            f'<td class="word">{verdict}</td><td class="chart"><span class="stack">{bar}</span></td>'
            f"<td>{one.wins} / {one.ties} / {one.losses}</td></tr>"
        )
    titles = ("against", "MAP", "95 %", "p", "verdict", "", "won / tied / lost")
    head = "".join(f"<th{_LEFT if name == 'verdict' else ''}>{name}</th>" for name in titles)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _by_kind(figures: Sequence[Figures]) -> str:
    by_contestant = [one.by_kind for one in figures]
    tabs = "".join(
        f'<button type="button" data-measure="{name}"{" aria-pressed=true" if not i else ""}>{name.upper()}</button>'
        for i, name in enumerate(KIND_MEASURES)
    )
    charts = "".join(
        f'<div class="scroll kind" data-measure="{name}"{" hidden" if i else ""}>'
        f"{svg.bars_by_kind(by_contestant, name)}</div>"
        for i, name in enumerate(KIND_MEASURES)
    )
    return f'<div class="tabs" id="measures">{tabs}</div>{charts}'


def _latency(figures: Sequence[Figures], queries: int) -> str:
    known = [one for one in figures if one.mean("map") is not None]
    if not known:
        return "<p>No question has an answer.</p>"
    times = [1000 * one.seconds / queries for one in known]
    chart = svg.latency_against_quality([one.name for one in known], times, [one.mean("map") or 0.0 for one in known])
    return f'<div class="scroll">{chart}</div>'


def _reliability(figures: Sequence[Figures]) -> str:
    return _multiples(
        (one.name, f"ECE {svg.figure(one.ece)}", svg.reliability_diagram(one.curve, index))
        for index, one in enumerate(figures)
        if one.curve
    )


def _distributions(evaluation: Evaluation) -> str:
    charts = []
    for index, (name, outcomes) in enumerate(evaluation.outcomes.items()):
        given = [outcome.answer.relevance for outcome in outcomes if outcome.answer.relevance is not None]
        has_relevance = len(given) == len(outcomes)
        shown = given if has_relevance else [_standardised(outcome.answer.scores) for outcome in outcomes]
        scores = np.concatenate(shown)
        is_right = np.concatenate([asked.judged.relevant for asked in evaluation.asked])
        known = np.isfinite(scores)
        if not known.any():
            continue
        unit = "relevance" if has_relevance else "standardised score"
        chart = svg.distributions(scores[known & is_right], scores[known & ~is_right], index)
        charts.append((name, unit, chart))
    return _multiples(charts)


def _standardised(scores: Floats) -> Floats:
    known = scores[np.isfinite(scores)]
    spread = float(known.std()) if len(known) else 0.0
    return (scores - known.mean()) / spread if spread > 1e-12 else np.full(len(scores), np.nan)


def _multiples(charts: Iterable[tuple[str, str, str]]) -> str:
    cells = "".join(
        f"<figure><figcaption><b>{escape(name)}</b> {escape(unit)}</figcaption>{chart}</figure>"
        for name, unit, chart in charts
    )
    return f'<div class="multiples">{cells}</div>'
