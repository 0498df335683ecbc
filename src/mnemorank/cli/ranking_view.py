"""A ranking as a table a person reads, or as JSON a program reads."""

from __future__ import annotations

from typing import Any

from mnemorank.cli.output import paint, shorten, terminal_width, width
from mnemorank.memory.memory import Memory
from mnemorank.results import Ranking, Result

# These multiply the score; all other parts are log-odds that add up.
_MULTIPLIERS = ("recency", "temporal", "proof", "trust")
_BAR = " ▏▎▍▌▋▊▉█"


def show(ranking: Ranking, explain: bool = False) -> str:
    """The results, one a line (two with reasons), and what the reader should know about them."""
    columns = terminal_width()
    lines = [line for result in ranking for line in _result_lines(result, columns, explain)]
    if not ranking.results:
        lines.append("no memory made the short list")
    if ranking.abstained and ranking.results:
        lines.append(paint("nothing here is relevant enough to answer (best relevance under the threshold)", 33))
    if ranking.degraded:
        lines.append(paint(f"degraded, first-stage order kept: {ranking.degraded}", 31))
    lines += [paint(f"note: {warning}", 33) for warning in ranking.warnings]
    return "\n".join(lines)


def as_json(ranking: Ranking) -> dict[str, Any]:
    record = ranking.to_dict()
    for written, result in zip(record["results"], ranking, strict=True):
        written["memory"] = result.memory.to_dict()
        if not result.factors:
            del written["factors"]
    return record


def _result_lines(result: Result, columns: int, explain: bool) -> list[str]:
    head = f"{result.rank:>3}  {_bar(result.relevance)} {_number(result.relevance)}  {_change(result.rank_change)}  "
    date = f"{_date(result.memory):<23}  "
    mark = "  ⟲ superseded" if result.stale else ""
    text = shorten(result.passage or result.memory.text, max(columns - width(head) - width(date) - width(mark), 20))
    tone = 2 if result.stale else 1 if (result.relevance or 0) >= 0.5 else 0
    lines = [_painted(head, result) + paint(date, 36) + paint(text, tone) + paint(mark, 33)]
    if explain and result.factors:
        parts = "  ".join(
            f"{name} {value:{'' if name in _MULTIPLIERS else '+'}.2f}" for name, value in result.factors.items()
        )
        lines.append(" " * 5 + paint(f"{parts}  raw {result.raw_score:.2f}", 2))
    return lines


def _painted(head: str, result: Result) -> str:
    return paint(head, 32 if (result.relevance or 0) >= 0.5 else 0)


def _bar(relevance: float | None, cells: int = 6) -> str:
    if relevance is None:
        return "·" * cells
    eighths = round(relevance * cells * 8)
    full, part = divmod(eighths, 8)
    return ("█" * full + (_BAR[part] if part else "")).ljust(cells)


def _number(relevance: float | None) -> str:
    return "  — " if relevance is None else f"{relevance:.2f}"


def _change(places: int) -> str:
    return "   =" if places == 0 else f"{'↑' if places > 0 else '↓'}{abs(places):>3}"


def _date(memory: Memory) -> str:
    start, end = memory.occurred_start, memory.occurred_end
    if start and end:
        first, last = str(start)[:10], str(end)[:10]
        return first if first == last else f"{first} → {last}"
    if start:
        return f"{str(start)[:10]} →" if not memory.is_event else str(start)[:10]
    if end:
        return f"→ {str(end)[:10]}"
    return str(memory.mentioned_at)[:10] if memory.mentioned_at else ""
