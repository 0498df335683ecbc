"""Measure a `MemoryIndex` that grows, and draw it: search, opening, memory and disk by the number of memories.

    python benchmarks/growth.py [--model mini] [--sizes 10,100,1000,10000,100000] [--plot FILE.svg] [--json FILE]

Each size is opened and searched in a process of its own, with texts of 80 tokens on average. The model reads the first
`--read` memories (1,000) and the rate of that is printed; further ones get copies of their states with some noise in
the embedding, since reading 100,000 takes many minutes and changes nothing else that is measured. Also prints the
time to open a state file of a million entries. Nothing else should run on the machine, and the file of 100,000
memories takes 3.5 GB of disk: about three minutes. `--plot docs/images/growth.svg` writes the plot of the docs.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from mnemorank import MemoryIndex, Reranker
from mnemorank.artifact.resolve import load_artifact
from mnemorank.scorers.protocol import Passage
from mnemorank.scorers.split import SplitScorer
from mnemorank.scorers.state_file import StateFile
from mnemorank.scorers.states import State
from speed import make_pairs

_MILLION = 1_000_000
_NOISE = 0.02
_AT_ONCE = 1000
# Titles of the plot's halves, and for each line the label, the color, the key in a row and the factor to its unit.
_PANELS = (
    (
        "milliseconds",
        (
            ("search", "#1f6feb", "search_seconds", 1000),
            ("open", "#d9822b", "open_seconds", 1000),
            ("first search", "#2da44e", "first_search_seconds", 1000),
        ),
    ),
    ("megabytes", (("process", "#8250df", "megabytes", 1), ("file", "#57606a", "file_megabytes", 1))),
)
_WIDTH, _HEIGHT, _LEFT, _TOP, _PANEL_WIDTH, _PANEL_HEIGHT, _GAP = 820, 330, 60, 46, 300, 230, 110


def grow_index(model: str, sizes: Sequence[int], read: int, rounds: int) -> list[dict[str, Any]]:
    pools = make_pairs(load_artifact(model).file("tokenizer.json"), queries=5)
    texts = [text for _, pool in pools for text in pool]
    queries = [query for query, _ in pools]
    with Reranker(model, cache_megabytes=0) as reranker:
        seconds = []
        for number, query in enumerate(queries):
            new = [f"{text} {number}" for text in texts[:100]]
            started = time.perf_counter()
            reranker.rerank(query, new)
            seconds.append(time.perf_counter() - started)
    unprepared = float(np.median(seconds))
    print(f"{'memories':>9}  search ms  against 100 unprepared  open ms  first search ms  process MB  bytes/memory")
    rows: list[dict[str, Any]] = []
    read_seconds = 0.0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "index.db"
        count = 0
        for size in sorted(sizes):
            with MemoryIndex.open(path, model) as index:
                while count < size:
                    is_read = count < read
                    end = min(count + _AT_ONCE, size, read) if is_read else min(count + _AT_ONCE, size)
                    memories = [{"id": str(n), "text": f"{texts[n % len(texts)]} {n}"} for n in range(count, end)]
                    started = time.perf_counter()
                    if is_read:
                        index.add(memories)
                        read_seconds += time.perf_counter() - started
                    else:
                        with copied_states(index, texts):
                            index.add(memories)
                    count = end
            command = [sys.executable, __file__, "--search", str(path), model, str(rounds), *queries]
            row: dict[str, Any] = json.loads(subprocess.check_output(command))
            row |= {"memories": size, "file_megabytes": path.stat().st_size / 1e6}
            row["against_100_unprepared"] = row["search_seconds"] / unprepared
            print(
                f"{size:9,}  {1000 * row['search_seconds']:9.1f}  {row['against_100_unprepared']:21.2f}x  "
                f"{1000 * row['open_seconds']:7.0f}  {1000 * row['first_search_seconds']:15.0f}  "
                f"{row['megabytes']:10.0f}  {path.stat().st_size / size:12,.0f}",
                flush=True,
            )
            rows.append(row)
    read_count = min(read, max(sizes))
    print(f"added per second, read by the model: {read_count / read_seconds:.0f}")
    return rows


@contextmanager
def copied_states(index: MemoryIndex, texts: Sequence[str]) -> Iterator[None]:
    """Let the model copy states that it has read, instead of reading texts."""
    scorer = index.model.scorer
    assert isinstance(scorer, SplitScorer)
    donors = scorer.states(scorer.prepare(texts))
    generator = np.random.default_rng(0)
    read = SplitScorer._read

    def copy(self: SplitScorer, passage: Passage) -> State:
        donor = donors[int(generator.integers(len(donors)))]
        embedding = donor.embedding + generator.normal(scale=_NOISE, size=len(donor.embedding))
        return State(donor.codes, donor.scales, (embedding / np.linalg.norm(embedding)).astype(np.float16))

    SplitScorer._read = copy  # type: ignore[method-assign]
    try:
        yield
    finally:
        SplitScorer._read = read  # type: ignore[method-assign]


def search_once(path: str, model: str, rounds: int, queries: Sequence[str]) -> None:
    """Measure an index in a process of its own; prints JSON."""
    started = time.perf_counter()
    with MemoryIndex.open(path, model) as index:
        opened = time.perf_counter()
        index.search(f"{queries[0]} first")
        first = time.perf_counter() - opened
        seconds = []
        for number in range(rounds):
            for query in queries:
                before = time.perf_counter()
                index.search(f"{query} {number}")
                seconds.append(time.perf_counter() - before)
    status = Path("/proc/self/status").read_text()
    peak = next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM"))
    print(
        json.dumps(
            {
                "open_seconds": opened - started,
                "first_search_seconds": first,
                "search_seconds": float(np.median(seconds)),
                "megabytes": peak,
            }
        )
    )


def open_million(entries: int = _MILLION, tokens: int = 4, width: int = 32) -> dict[str, float]:
    """Open a state file of a million small entries; their number matters, not their size."""
    state = State(np.zeros((tokens, width), np.int8), np.ones(tokens, np.float16), np.ones(width, np.float16))
    with tempfile.TemporaryDirectory() as folder:
        file = StateFile(folder, "model")
        for first in range(0, entries, 5000):
            file.store({number.to_bytes(16, "big"): state for number in range(first, min(first + 5000, entries))})
        file.close()
        started = time.perf_counter()
        file = StateFile(folder, "model")
        opened = time.perf_counter() - started
        found = file.get([number.to_bytes(16, "big") for number in range(0, entries, max(entries // 100, 1))])
        read = time.perf_counter() - started - opened
        file.close()
    assert len(found) >= min(entries, 100)
    print(f"{entries:,} states: opened in {1000 * opened:.1f} ms, {len(found)} of them read in {1000 * read:.1f} ms")
    return {"open_seconds": opened, "read_100_seconds": read}


def plot(rows: Sequence[dict[str, Any]]) -> str:
    """Return an SVG with two log-log plots: times, and sizes."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        'font-size="12" fill="#24292f">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
    ]
    for number, (title, lines) in enumerate(_PANELS):
        parts += _panel(_LEFT + number * (_PANEL_WIDTH + _GAP), title, lines, rows)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(
    left: int, title: str, lines: Sequence[tuple[str, str, str, float]], rows: Sequence[dict[str, Any]]
) -> list[str]:
    memories = [row["memories"] for row in rows]
    values = {label: [row[key] * factor for row in rows] for label, _, key, factor in lines}
    every = [value for line in values.values() for value in line]
    x_range = math.floor(math.log10(min(memories))), math.ceil(math.log10(max(memories)))
    y_range = math.floor(math.log10(min(every))), math.ceil(math.log10(max(every)))

    def x(value: float) -> float:
        return left + _PANEL_WIDTH * (math.log10(value) - x_range[0]) / max(x_range[1] - x_range[0], 1)

    def y(value: float) -> float:
        share = (math.log10(value) - y_range[0]) / max(y_range[1] - y_range[0], 1)
        return _TOP + _PANEL_HEIGHT * (1 - share)

    bottom = _TOP + _PANEL_HEIGHT
    parts = [f'<text x="{left}" y="{_TOP - 22}" font-weight="bold">{title}</text>']
    for exponent in range(x_range[0], x_range[1] + 1):
        at = x(10**exponent)
        parts.append(f'<path d="M{at:.1f} {_TOP}V{bottom}" stroke="#d0d7de"/>')
        parts.append(f'<text x="{at:.1f}" y="{bottom + 18}" text-anchor="middle">{10**exponent:,}</text>')
    for exponent in range(y_range[0], y_range[1] + 1):
        at = y(10.0**exponent)
        parts.append(f'<path d="M{left} {at:.1f}h{_PANEL_WIDTH}" stroke="#d0d7de"/>')
        parts.append(f'<text x="{left - 6}" y="{at + 4:.1f}" text-anchor="end">{10.0**exponent:,.10g}</text>')
    middle = left + _PANEL_WIDTH / 2
    parts.append(f'<text x="{middle}" y="{bottom + 40}" text-anchor="middle">memories in the index</text>')
    for position, (label, color, _, _) in enumerate(lines):
        points = list(zip(map(x, memories), map(y, values[label]), strict=True))
        path = "L".join(f"{a:.1f} {b:.1f}" for a, b in points)
        parts.append(f'<path d="M{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{color}"/>' for a, b in points]
        at = left + 100 * position
        parts.append(f'<path d="M{at} {_TOP - 11}h16" stroke="{color}" stroke-width="2"/>')
        parts.append(f'<text x="{at + 20}" y="{_TOP - 7}">{label}</text>')
    return parts


def main() -> None:
    if sys.argv[1:2] == ["--search"]:
        search_once(sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mini", help="a split model")
    parser.add_argument("--sizes", default="10,100,1000,10000,100000")
    parser.add_argument("--read", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--states", type=int, default=_MILLION, help="entries of the state file (default: a million)")
    parser.add_argument("--plot", type=Path, metavar="FILE")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    rows = grow_index(
        arguments.model, [int(size) for size in arguments.sizes.split(",")], arguments.read, arguments.rounds
    )
    if arguments.plot is not None:
        arguments.plot.parent.mkdir(parents=True, exist_ok=True)
        arguments.plot.write_text(plot(rows), encoding="utf-8")
    report = {"index": rows, "states": open_million(arguments.states)}
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
