"""Charts as SVG text.

Colors come from the page's style sheet, which has a light and a dark theme. Classes `c0` to `c7` are the systems, in
order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

import numpy as np

from mnemorank._internal.arrays import Floats
from mnemorank.evaluation.metrics import Bin
from mnemorank.evaluation.significance import Interval

COLORS = 8


def color(index: int) -> str:
    return f"c{index % COLORS}"


def _svg(width: float, height: float, parts: Sequence[str], label: str) -> str:
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" role="img" '
        f'aria-label="{escape(label)}">{"".join(parts)}</svg>'
    )


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def figure(value: float | None) -> str:
    """Return a number as `.873` or `1.000`; a dash if there is none."""
    if value is None or math.isnan(value):
        return "–"
    return f"{value:.3f}".replace("0.", ".", 1)


def interval_bar(interval: Interval, low: float, high: float, index: int) -> str:
    """Draw a mean with its interval.

    :param low: the lower end of the scale, which all rows share.
    """
    width, height = 170.0, 22.0
    if math.isnan(interval.mean):
        return ""

    def x(value: float) -> float:
        return 6 + (width - 12) * (value - low) / max(high - low, 1e-9)

    parts = [
        _line(6, height / 2, width - 6, height / 2, "axis"),
        f'<line x1="{x(interval.low):.1f}" y1="{height / 2}" x2="{x(interval.high):.1f}" y2="{height / 2}" '
        f'class="range {color(index)}"/>',
        f'<circle cx="{x(interval.mean):.1f}" cy="{height / 2}" r="4.5" class="dot {color(index)}"/>',
    ]
    return _svg(width, height, parts, f"{interval.mean:.3f}, 95% from {interval.low:.3f} to {interval.high:.3f}")


def bars_by_kind(by_system: Sequence[Mapping[str, Mapping[str, float]]], measure: str) -> str:
    """Draw a group of bars per kind of question, with a bar per system."""
    kinds = list(dict.fromkeys(kind for system in by_system for kind in system))
    left, right, bar, gap = 210.0, 64.0, 13.0, 16.0
    group = len(by_system) * bar + gap
    width, height = 860.0, len(kinds) * group + 30
    scale = width - left - right
    parts = [_line(left + scale * t, 4, left + scale * t, height - 22, "grid") for t in (0, 0.25, 0.5, 0.75, 1)]
    parts += [_text(left + scale * t, height - 6, f"{t:g}", "tick", "middle") for t in (0, 0.25, 0.5, 0.75, 1)]
    for row, kind in enumerate(kinds):
        top = row * group + gap / 2
        middle = top + len(by_system) * bar / 2
        count = next(int(system[kind]["queries"]) for system in by_system if kind in system)
        shown = kind if len(kind) <= 26 else kind[:25] + "…"
        parts.append(_text(left - 12, middle, shown, "label", "end"))
        parts.append(_text(left - 12, middle + 13, f"{count} questions", "tick", "end"))
        for index, system in enumerate(by_system):
            value = system.get(kind, {}).get(measure, math.nan)
            if math.isnan(value):
                continue
            y = top + index * bar
            parts.append(
                f'<rect x="{left}" y="{y:.1f}" width="{max(scale * value, 1):.1f}" height="{bar - 2.5}" rx="2" '
                f'class="fill {color(index)}"/>'
            )
            parts.append(_text(left + scale * value + 6, y + bar - 4, figure(value), "tick"))
    return _svg(width, height, parts, f"{measure} by kind of question")


def reliability_diagram(curve: Sequence[Bin], index: int) -> str:
    """Draw predicted relevance against the share that is relevant; a calibrated system is on the diagonal."""
    size, edge = 250.0, 34.0
    span = size - edge - 10

    def place(predicted: float, actual: float) -> tuple[float, float]:
        return edge + span * predicted, 10 + span * (1 - actual)

    max_count = max(b.count for b in curve)
    points = [place(b.predicted, b.relevant) for b in curve]
    parts = [f'<rect x="{edge}" y="10" width="{span}" height="{span}" class="frame"/>']
    parts.append(_line(*place(0, 0), *place(1, 1), "diagonal"))
    parts.append(f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}" class="curve {color(index)}"/>')
    for (x, y), b in zip(points, curve, strict=True):
        radius = 3 + 6 * math.sqrt(b.count / max_count)
        title = f"predicted {b.predicted:.2f}, actual {b.relevant:.2f}, {b.count} pairs"
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" class="dot {color(index)}">'
            f"<title>{title}</title></circle>"
        )
    for t in (0.0, 0.5, 1.0):
        parts.append(_text(place(t, 0)[0], size - 8, f"{t:g}", "tick", "middle"))
        parts.append(_text(edge - 6, place(0, t)[1] + 4, f"{t:g}", "tick", "end"))
    return _svg(size, size, parts, "reliability diagram")


def distributions(relevant: Floats, irrelevant: Floats, index: int, bins: int = 24) -> str:
    """Draw histograms of the scores of relevant (filled) and irrelevant (outlined) candidates, each normalized."""
    width, height, base = 330.0, 170.0, 26.0
    all_scores = np.concatenate([relevant, irrelevant])
    low, high = (float(all_scores.min()), float(all_scores.max())) if len(all_scores) else (0.0, 1.0)
    high = high if high > low else low + 1
    parts = []
    counts = [np.histogram(values, bins, (low, high))[0] / max(len(values), 1) for values in (irrelevant, relevant)]
    top = max(float(values.max()) for values in counts) or 1.0
    for values, kind in zip(counts, ("other", f"right {color(index)}"), strict=True):
        parts.append(f'<path d="{_steps(values / top, width, height, base)}" class="area {kind}"/>')
    parts.append(_line(8, height - base, width - 8, height - base, "axis"))
    for t in (0.0, 0.5, 1.0):
        anchor = ("start", "middle", "end")[int(t * 2)]
        parts.append(_text(8 + (width - 16) * t, height - 8, f"{low + (high - low) * t:.2f}", "tick", anchor))
    return _svg(width, height, parts, "score distributions")


def _steps(shares: Floats, width: float, height: float, base: float) -> str:
    step = (width - 16) / len(shares)
    # The square root keeps small shares visible next to the tall bar at zero that most models have.
    tops = height - base - np.sqrt(shares) * (height - base - 10)
    path = f"M8,{height - base:.1f}"
    for i, y in enumerate(tops):
        path += f" L{8 + i * step:.1f},{y:.1f} L{8 + (i + 1) * step:.1f},{y:.1f}"
    return path + f" L{width - 8:.1f},{height - base:.1f} Z"


def latency_against_quality(names: Sequence[str], milliseconds: Sequence[float], quality: Sequence[float]) -> str:
    """Draw milliseconds per question, on a logarithmic scale, against MAP."""
    width, height, left, base = 860.0, 330.0, 56.0, 46.0
    logs = [math.log10(max(ms, 1e-3)) for ms in milliseconds]
    low, high = math.floor(min(logs)), max(math.ceil(max(logs)), math.floor(min(logs)) + 1)
    worst, best = max(min(quality) - 0.05, 0.0), min(max(quality) + 0.05, 1.0)

    def x(value: float) -> float:
        return left + (width - left - 150) * (value - low) / (high - low)

    def y(value: float) -> float:
        return 14 + (height - base - 24) * (1 - (value - worst) / max(best - worst, 1e-9))

    parts = []
    for power in range(low, high + 1):
        parts.append(_line(x(power), 10, x(power), height - base, "grid"))
        parts.append(_text(x(power), height - base + 18, f"{10.0**power:g} ms", "tick", "middle"))
    step = next(s for s in (0.01, 0.02, 0.05, 0.1, 0.2) if (best - worst) / s <= 6)
    for number in range(math.ceil(worst / step - 1e-9), math.floor(best / step + 1e-9) + 1):
        parts.append(_line(left, y(number * step), width - 150, y(number * step), "grid"))
        parts.append(_text(left - 8, y(number * step) + 4, f"{number * step:.2f}", "tick", "end"))
    parts.append(_text((left + width - 150) / 2, height - 6, "time per question", "label", "middle"))
    points = [(x(log), y(value)) for log, value in zip(logs, quality, strict=True)]
    parts += [
        f'<circle cx="{px:.1f}" cy="{py:.1f}" r="7" class="dot {color(index)}"/>'
        for index, (px, py) in enumerate(points)
    ]
    label_positions: list[tuple[float, float]] = []
    for index in sorted(range(len(names)), key=lambda i: -quality[i]):
        px, py = points[index]
        # Labels go to the right of a cluster, below each other, so that none covers a point or another label.
        label_x = max(ox for ox, oy in points if 0 <= ox - px < 150 and abs(oy - py) < 24) + 13
        label_y = py + 4
        while any(abs(label_y - oy) < 14 and abs(label_x - ox) < 180 for ox, oy in label_positions):
            label_y += 14
        label_positions.append((label_x, label_y))
        parts.append(f'<circle cx="{label_x + 4:.1f}" cy="{label_y - 4:.1f}" r="3.5" class="dot {color(index)}"/>')
        parts.append(_text(label_x + 13, label_y, f"{names[index]} {figure(quality[index])}", "label"))
    return _svg(width, height, parts, "latency against quality")
