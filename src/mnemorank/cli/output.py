"""What commands print: tables, rankings and JSON on stdout, progress bars on stderr."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from mnemorank.memory.memory import Memory
    from mnemorank.results import Ranking, Result

T = TypeVar("T")

# ANSI codes.
BOLD, DIM, RED, GREEN, YELLOW, MAGENTA, CYAN = 1, 2, 31, 32, 33, 35, 36
# Factors that multiply the score; the others are log-odds that add up.
_MULTIPLIERS = ("recency", "temporal", "proof", "trust")
# Narrower terminals show no bars and no moves, so that the memory has room.
_WIDE = 100
_BAR_CELLS = 6
_BAR_EIGHTHS = " ▏▎▍▌▋▊▉█"


def paint(text: str, *codes: int, stream: IO[str] | None = None) -> str:
    """Return the text with ANSI codes if the stream (by default stdout) is a terminal with colors."""
    if not _has_colors(stream or sys.stdout):
        return text
    return f"\033[{';'.join(map(str, codes))}m{text}\033[0m"


def terminal_width(maximum: int = 140) -> int:
    return min(shutil.get_terminal_size((110, 24)).columns, maximum)


def width(text: str) -> int:
    """Return the number of columns that a text takes in a terminal."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def shorten(text: str, columns: int) -> str:
    """Return the text as one line without control characters, cut with an ellipsis if it is too wide."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    if width(line) <= columns:
        return line
    result = ""
    for character in line:
        if width(result + character) > columns - 1:
            break
        result += character
    return result.rstrip() + "…"


def table(rows: Iterable[Sequence[object]], header: Sequence[str], right: Sequence[int] = ()) -> str:
    """Return a plain-text table.

    :param right: the indices of right-aligned columns.
    """
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(width(row[i]) for row in [list(header), *cells]) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        return "  ".join(_pad(cell, widths[i], i in right) for i, cell in enumerate(row)).rstrip()

    return "\n".join([line(header), "  ".join("─" * w for w in widths), *(line(row) for row in cells)])


def print_json(value: Any) -> None:
    """Print JSON that every parser accepts: null for NaN, and escapes for what stdout cannot encode."""
    text = json.dumps(_without_nan(value), ensure_ascii=False, indent=2, allow_nan=False)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(_without_nan(value), indent=2, allow_nan=False)
    print(text)


def progress(items: Iterable[T], label: str, total: int | None = None) -> Iterator[T]:
    """Yield the items and show a progress bar, if stderr is a terminal and tqdm is installed."""
    if not sys.stderr.isatty():
        return iter(items)
    try:
        from tqdm import tqdm
    except ImportError:
        return iter(items)
    return iter(tqdm(items, desc=label, total=total, leave=False, dynamic_ncols=True))


def ranking_table(ranking: Ranking, *, explain: bool = False, header: bool = True) -> str:
    """Return a line for each result, and what holds for the whole ranking.

    :param explain: add a line with the factors of each score.
    """
    columns = terminal_width()
    date_columns = max((width(_dates(result.memory)) for result in ranking), default=0)
    lines = [paint(_header(columns, date_columns), DIM)] if header and ranking.results else []
    lines += [line for result in ranking for line in _result_lines(result, columns, date_columns, explain)]
    if not ranking.results:
        lines.append("no memory was selected")
    if ranking.abstained and ranking.results:
        lines.append(paint("abstained: no memory is relevant enough to answer the query", YELLOW))
    if ranking.degraded:
        lines.append(paint(f"degraded ({ranking.degraded.kind}): {ranking.degraded}", RED))
    lines += [paint(f"warning: {warning}", YELLOW) for warning in ranking.warnings]
    return "\n".join(lines)


def ranking_to_json(ranking: Ranking) -> dict[str, Any]:
    """Return a ranking as JSON values, with all fields of the memories."""
    record = ranking.to_dict()
    for entry, result in zip(record["results"], ranking, strict=True):
        entry["memory"] = result.memory.to_dict()
        if not result.factors:
            del entry["factors"]
    return record


def _has_colors(stream: IO[str]) -> bool:
    return stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def _pad(text: str, columns: int, right: bool) -> str:
    space = " " * max(columns - width(text), 0)
    return space + text if right else text + space


def _without_nan(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _without_nan(item) for key, item in value.items()}
    return [_without_nan(item) for item in value] if isinstance(value, (list, tuple)) else value


def _header(columns: int, date_columns: int) -> str:
    numbers = "score        relevance  moved" if columns >= _WIDE else "score  relevance"
    return f"rank  {numbers}  {'date':<{date_columns}}  memory" if date_columns else f"rank  {numbers}  memory"


def _result_lines(result: Result, columns: int, date_columns: int, explain: bool) -> list[str]:
    numbers = f"{_format(result.score):>5}  {_format(result.relevance):>9}"
    if columns >= _WIDE:
        numbers = f"{_bar(result.score)} {_format(result.score)}  {_format(result.relevance):>9}"
        numbers += f"  {_rank_change(result.rank_change):>5}"
    head = f"{result.rank:>4}  {numbers}  "
    date = f"{_dates(result.memory):<{date_columns}}  " if date_columns else ""
    mark = "  ⟲ superseded" if result.stale else ""
    text = shorten(result.passage or result.memory.text, max(columns - width(head) - width(date) - width(mark), 20))
    is_relevant = (result.relevance or 0) >= 0.5
    text_code = DIM if result.stale else BOLD if is_relevant else 0
    lines = [
        paint(head, GREEN if is_relevant else 0) + paint(date, CYAN) + paint(text, text_code) + paint(mark, YELLOW)
    ]
    if explain and result.factors:
        factors = (f"{name} {value:{'' if name in _MULTIPLIERS else '+'}.2f}" for name, value in result.factors.items())
        lines.append(" " * 5 + paint(f"{'  '.join(factors)}  raw {result.raw_score:.2f}", DIM))
    return lines


def _format(number: float | None) -> str:
    return "  — " if number is None else f"{number:.2f}"


def _bar(score: float | None) -> str:
    if score is None:
        return "·" * _BAR_CELLS
    full, eighths = divmod(round(min(score, 1.0) * _BAR_CELLS * 8), 8)
    return ("█" * full + (_BAR_EIGHTHS[eighths] if eighths else "")).ljust(_BAR_CELLS)


def _rank_change(places: int) -> str:
    return "=" if places == 0 else f"{'↑' if places > 0 else '↓'}{abs(places):>3}"


def _dates(memory: Memory) -> str:
    start, end = memory.occurred_start, memory.occurred_end
    if start and end:
        first, last = str(start)[:10], str(end)[:10]
        return first if first == last else f"{first} → {last}"
    if start:
        return f"{str(start)[:10]} →" if not memory.is_event else str(start)[:10]
    if end:
        return f"→ {str(end)[:10]}"
    return str(memory.mentioned_at)[:10] if memory.mentioned_at else ""
