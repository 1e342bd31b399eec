"""A curve by step: an SVG image that follows the reader's light or dark theme, and text for a terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

WIDTH, HEIGHT = 720, 300
LEFT, RIGHT, TOP, BOTTOM = 56, 60, 36, 40  # margins
SMOOTHING = 0.8  # weight of the past in the running mean
BLOCKS = "▁▂▃▄▅▆▇█"
COLUMNS, ROWS = 60, 10  # of the text

Point = tuple[float, float]

# No CSS variables: image viewers outside browsers do not know them.
STYLE = """
    svg { font: 12px system-ui, sans-serif; }
    text { fill: #1f2430; }
    .title { font-size: 14px; font-weight: 600; }
    .grid { stroke: #c9ced8; stroke-width: 1; stroke-dasharray: 2 4; }
    .raw, .mean { fill: none; stroke: #2563eb; stroke-linejoin: round; }
    .raw { stroke-width: 1; opacity: 0.4; }
    .mean { stroke-width: 2.5; }
    .other { stroke: #b45309; }
    .last { fill: #2563eb; }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6e8ee; }
      .grid { stroke: #444b5a; }
      .raw, .mean { stroke: #7aa2ff; }
      .other { stroke: #f0a35c; }
      .last { fill: #7aa2ff; }
    }
"""


def svg_curve(values: Sequence[Point], title: str = "mean reward by step") -> str:
    """The values by step, faint, and their running mean. A value that is not finite is left out."""
    points = [(step, value) for step, value in values if math.isfinite(value)]
    if not points:
        return _svg([f'<text x="{WIDTH / 2}" y="{HEIGHT / 2}" text-anchor="middle">no steps</text>'])
    smooth = _smooth(points)
    x_ticks = ticks(points[0][0], points[-1][0])
    y_ticks = ticks(min(y for _, y in points), max(y for _, y in points))
    plane = _Plane(x_ticks, y_ticks)
    last_x, last_y = plane.at(smooth[-1])
    return _svg(
        [
            f'<text class="title" x="{LEFT}" y="20">{title}</text>',
            *plane.grid(),
            f'<polyline class="raw" points="{plane.path(points)}"/>',
            f'<polyline class="mean" points="{plane.path(smooth)}"/>',
            f'<circle class="last" cx="{last_x:.1f}" cy="{last_y:.1f}" r="4"/>',
            f'<text x="{last_x + 8:.1f}" y="{last_y + 4:.1f}">{smooth[-1][1]:.3g}</text>',
        ]
    )


def svg_curves(groups: Mapping[str, Sequence[Sequence[Point]]], title: str) -> str:
    """The running means of several runs, those of a group in one colour, with the group's name at the first one's end.

    Args:
        groups: at most two, by what they are called; each has the values by step of its runs.

    >>> text = svg_curves({"may": [[(1, 0.1), (2, 0.9)]], "may not": [[(1, 0.1), (2, 0.1)]] * 2}, "by step")
    >>> text.count('class="mean"'), text.count('class="mean other"'), ">may not</text>" in text
    (1, 2, True)
    """
    runs = [[_smooth(run) for run in group] for group in groups.values()]
    points = [point for group in runs for run in group for point in run]
    plane = _Plane(ticks(points[0][0], max(x for x, _ in points)), ticks(*_ends([y for _, y in points])))
    parts = [f'<text class="title" x="{LEFT}" y="20">{title}</text>', *plane.grid()]
    for name, group, kind in zip(groups, runs, ("mean", "mean other"), strict=False):
        parts += [f'<polyline class="{kind}" points="{plane.path(run)}"/>' for run in group]
        x, y = plane.at(group[0][-1])
        parts.append(f'<text x="{x - 4:.1f}" y="{y - 10:.1f}" text-anchor="end">{name}</text>')
    return _svg(parts)


def _smooth(values: Sequence[Point]) -> list[Point]:
    points = [(step, value) for step, value in values if math.isfinite(value)]
    return list(zip((x for x, _ in points), running_mean([y for _, y in points]), strict=True))


def _ends(values: Sequence[float]) -> tuple[float, float]:
    return min(values), max(values)


def running_mean(values: Sequence[float], weight: float = SMOOTHING) -> list[float]:
    """Exponential running mean, corrected at the start (Adam's correction), so that it begins at the first value.

    >>> running_mean([1.0, 1.0, 1.0])
    [1.0, 1.0, 1.0]
    """
    means, total, mass = [], 0.0, 0.0
    for value in values:
        total = weight * total + value
        mass = weight * mass + 1
        means.append(total / mass)
    return means


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers that enclose both ends, about so many.

    >>> ticks(0.03, 0.91)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    size = max(abs(low), abs(high), 1.0)
    span = high - low if high - low > 1e-9 * size else size  # equal but for rounding: a flat line
    power = 10.0 ** math.floor(math.log10(span / about))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power * about >= span * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, max(last, first + 1) + 1)]


class _Plane:
    """Maps data to pixels; the outermost ticks are the edges."""

    def __init__(self, x_ticks: list[float], y_ticks: list[float]) -> None:
        self.x_ticks, self.y_ticks = x_ticks, y_ticks

    def at(self, point: Point) -> Point:
        x = (point[0] - self.x_ticks[0]) / (self.x_ticks[-1] - self.x_ticks[0])
        y = (point[1] - self.y_ticks[0]) / (self.y_ticks[-1] - self.y_ticks[0])
        return LEFT + x * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - y * (HEIGHT - TOP - BOTTOM)

    def path(self, points: Sequence[Point]) -> str:
        return " ".join(f"{x:.1f},{y:.1f}" for x, y in map(self.at, points))

    def grid(self) -> list[str]:
        lines = []
        for value in self.y_ticks:
            _, y = self.at((self.x_ticks[0], value))
            lines.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            lines.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
        for value in self.x_ticks:
            x, _ = self.at((value, self.y_ticks[0]))
            lines.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{value:g}</text>')
        return lines


def _svg(parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="reward curve">'
    )
    return "\n".join([head, f"  <style>{STYLE}  </style>", *(f"  {part}" for part in parts), "</svg>\n"])


def text_curve(values: Sequence[Point], columns: int = COLUMNS, rows: int = ROWS, blocks: str = BLOCKS) -> list[str]:
    """The values by step as lines of text, from 0 or the lowest up. Several steps in one column are their mean.

    >>> text_curve([(1, 0.0), (2, 0.5), (3, 1.0)], columns=6, rows=2)
    [' 1.0 |    ██', '     |  ████', ' 0.0 +------', '      1    3']
    """
    points = [(step, value) for step, value in values if math.isfinite(value)]
    if not points:
        return []
    bars = _columns([value for _, value in points], columns)
    marks = ticks(min(0.0, *bars), max(bars))
    low, high = marks[0], marks[-1]
    levels = [round((bar - low) / (high - low) * rows * len(blocks)) for bar in bars]
    width = max(len(f"{low:.1f}"), len(f"{high:.1f}")) + 1
    lines = []
    for row in range(rows - 1, -1, -1):
        filled = "".join(_block(level - row * len(blocks), blocks) for level in levels)
        label = f"{high:.1f}" if row == rows - 1 else ""
        lines.append(f"{label:>{width}} |{filled.rstrip()}")
    first, last = f"{points[0][0]:g}", f"{points[-1][0]:g}"
    lines.append(f"{low:.1f}".rjust(width) + " +" + "-" * len(bars))
    lines.append(" " * (width + 2) + first + last.rjust(max(len(last) + 1, len(bars) - len(first))))
    return lines


def _block(level: int, blocks: str) -> str:
    return blocks[min(level, len(blocks)) - 1] if level > 0 else " "


def _columns(values: Sequence[float], columns: int) -> list[float]:
    """Means of neighbours where there are more values than columns, each value several times where there are fewer."""
    if len(values) <= columns:
        return [value for value in values for _ in range(columns // len(values))]
    return means(values, columns)


def means(values: Sequence[float], columns: int) -> list[float]:
    """At most so many means of neighbours, each of as many values but for the last.

    >>> means([1.0, 3.0, 5.0], 2)
    [2.0, 5.0]
    """
    size = -(-len(values) // columns) if values else 1
    return [sum(part) / len(part) for part in (values[i : i + size] for i in range(0, len(values), size))]


def sparkline(values: Sequence[float], columns: int) -> str:
    """The values as blocks, in at most so many columns; each column is a mean, and what is not finite is left out.

    >>> sparkline([0.0, 0.5, 1.0], 3)
    '▁▅█'
    """
    shown = means([value for value in values if math.isfinite(value)], columns)
    if not shown:
        return ""
    low, span = min(shown), max(shown) - min(shown)
    return "".join(BLOCKS[round((mean - low) / span * 7) if span else 0] for mean in shown)
