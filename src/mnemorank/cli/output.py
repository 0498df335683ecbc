"""What the commands print: tables on stdout, progress on stderr when a person watches."""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import sys
import time
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, TypeVar

T = TypeVar("T")


def uses_colour(stream: IO[str]) -> bool:
    return stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def paint(text: str, *codes: int, stream: IO[str] | None = None) -> str:
    """The text in ANSI colours where the stream is a terminal."""
    if not uses_colour(stream or sys.stdout):
        return text
    return f"\033[{';'.join(map(str, codes))}m{text}\033[0m"


def terminal_width(most: int = 140) -> int:
    return min(shutil.get_terminal_size((110, 24)).columns, most)


def width(text: str) -> int:
    """Columns that a text takes in a terminal."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def shorten(text: str, columns: int) -> str:
    """One line of at most so many columns, with an ellipsis where it was cut; control characters are dropped."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    if width(line) <= columns:
        return line
    result = ""
    for character in line:
        if width(result + character) > columns - 1:
            break
        result += character
    return result.rstrip() + "…"


def pad(text: str, columns: int, right: bool = False) -> str:
    space = " " * max(columns - width(text), 0)
    return space + text if right else text + space


def table(rows: Iterable[Sequence[object]], header: Sequence[str], right: Sequence[int] = ()) -> str:
    """A plain table; the columns named in `right` are aligned right."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(width(row[i]) for row in [list(header), *cells]) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        return "  ".join(pad(cell, widths[i], i in right) for i, cell in enumerate(row)).rstrip()

    return "\n".join([line(header), "  ".join("─" * w for w in widths), *(line(row) for row in cells)])


def print_json(value: Any) -> None:
    """Print as JSON that any reader takes: no NaN, and escapes for what the terminal or a file cannot encode."""
    text = json.dumps(_finite(value), ensure_ascii=False, indent=2, allow_nan=False)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(_finite(value), indent=2, allow_nan=False)
    print(text)


def _finite(value: Any) -> Any:
    """The value with null for numbers that JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, (list, tuple)) else value


def progress(items: Iterable[T], label: str, total: int | None = None) -> Iterator[T]:
    """Yield the items, showing a bar with the time left on stderr; nothing at all when stderr is not a terminal."""
    if not sys.stderr.isatty():
        yield from items
        return
    count = total if total is not None else len(items) if isinstance(items, Sequence) else None
    started = time.monotonic()
    for done, item in enumerate(items, 1):
        yield item
        _draw(label, done, count, time.monotonic() - started)
    print("\r\033[K", end="", file=sys.stderr, flush=True)


def _draw(label: str, done: int, total: int | None, seconds: float) -> None:
    if total:
        filled = round(24 * done / total)
        left = seconds / done * (total - done)
        bar = f"{'━' * filled}{'╌' * (24 - filled)} {done}/{total}  {left:.0f} s left"
    else:
        bar = f"{done} done, {seconds:.0f} s"
    print(f"\r\033[K{label} {bar}", end="", file=sys.stderr, flush=True)


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", default="mini", metavar="M", help="bundled model, model folder or hf:org/name (default: mini)"
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="write JSON to standard output and nothing else")


def named_number(text: str) -> tuple[str, float]:
    """Parse `name=number`, for argparse."""
    name, _, number = text.partition("=")
    try:
        return name, float(number)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected NAME=NUMBER, got {text!r}") from None


def positive_number(text: str) -> int:
    """A whole number from 1, for argparse."""
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1, got {text!r}")
    return number
