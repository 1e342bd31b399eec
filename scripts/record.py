"""Records what the README shows, on real terminals, as animated pictures: `docs/images/*.svg`.

    uv run --with pyte python scripts/record.py [debug] [smoke]

As root: each scene is typed into shells of a virtual host (`tests/hosts`), whose user has an empty home. `pyte` is the
terminal; what it shows is drawn frame by frame, and one animation goes from frame to frame. Pauses are cut short.
"""

from __future__ import annotations

import html
import json
import os
import re
import select
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import pyte

ROOT = Path(__file__).resolve().parent.parent
if __package__ in (None, ""):
    sys.path.insert(0, str(ROOT))

BOTH_RANKS = r"^(?=[\s\S]*PPOWorker\[0\])(?=[\s\S]*PPOWorker\[1\])"
IMAGES = ROOT / "docs/images"
DEADLINE = 240.0  # seconds until a line of a scene has been printed
PAUSE = 1.0  # seconds, at most, that nothing changes in the picture
LAST = 5.0  # seconds that the last frame stays
FRAME = 0.25  # seconds between two frames, at least
CELL_W, CELL_H, PAD, BAR = 8.0, 18.0, 14.0, 26.0
INK, GROUND, FRAME_GROUND, DIM = "#d6deeb", "#0d1620", "#1a2735", "#7b8b9d"
FONT = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"
PALETTE = {
    "black": "#4b5a6a",
    "red": "#ff6b6b",
    "green": "#7fd88f",
    "brown": "#e8c268",
    "yellow": "#e8c268",
    "blue": "#7aa8ff",
    "magenta": "#d498f0",
    "cyan": "#68d3d9",
    "white": "#d6deeb",
}


@dataclass(frozen=True)
class Line:
    """What is typed into which terminal, once so many ranks are stopped, and what is seen there before the next."""

    terminal: int
    text: str
    sees: str
    stops: int = 0


@dataclass(frozen=True)
class Scene:
    name: str
    rows: tuple[int, ...]  # of each terminal
    columns: int
    lines: tuple[Line, ...]
    before: str = ""  # a command that is not shown


def scores() -> str:
    from scripts.generate_docs import with_stops

    return with_stops("trainer/roles.py:0")


def scenes() -> list[Scene]:
    trainer = f"devkit run --break {scores()} --hits 3 -- bash ~/nan-hunt/train.sh"
    return [
        Scene(
            "debug",
            (9, 17),
            118,
            (
                Line(0, "head -n 4 ~/nan-hunt/train.sh", r"\$ $"),
                Line(0, trainer, r"look at it with"),
                Line(1, "devkit ps", BOTH_RANKS, stops=2),
                Line(1, "devkit eval 'min(scores.scores)'", r"rank 1 "),
                Line(1, "devkit attach --ranks 1", r"\(devkit rank 1\) $"),
                Line(1, "p scores.scores", r"\(devkit rank 1\) $"),
                Line(1, "scores.scores[1] = 0.0", r"\(devkit rank 1\) $"),
                Line(1, "q", r"\$ $"),
                Line(1, "devkit continue --all", r"continued"),
                Line(0, "", r"step 5:[\s\S]*\$ $"),
            ),
            before=f"python {ROOT}/docs/examples/nan_hunt.py nan-hunt",
        ),
        Scene("smoke", (34,), 110, (Line(0, "devkit smoke --tiny", r"smoke: \w+ in"),)),
    ]


@dataclass
class Screen:
    """A terminal and what it shows."""

    master: int  # the terminal's other end
    screen: pyte.Screen
    stream: pyte.ByteStream = field(init=False)

    def __post_init__(self) -> None:
        self.stream = pyte.ByteStream(self.screen)

    def take(self) -> str:
        """Shows what was printed since, and gives it."""
        piece = b""
        while select.select([self.master], [], [], 0)[0]:
            piece += os.read(self.master, 1 << 16)
        self.stream.feed(piece)
        return piece.decode("utf-8", "replace")

    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.screen.display).rstrip() + " "


Run = tuple[str, str, bool]  # text, colour, bold
Row = tuple[Run, ...]
Picture = tuple[tuple[Row, ...], ...]  # of each terminal, its rows


def rows_of(screen: pyte.Screen) -> tuple[Row, ...]:
    return tuple(_row(screen.buffer[number], screen.columns) for number in range(screen.lines))


def _row(cells: Any, columns: int) -> Row:
    styled = [(cells[x].data, _colour(cells[x]), cells[x].bold) for x in range(columns)]
    runs = [("".join(cell[0] for cell in group), *key) for key, group in groupby(styled, lambda cell: cell[1:])]
    while runs and not runs[-1][0].strip():
        runs.pop()
    return tuple(runs)


def _colour(cell: Any) -> str:
    name = cell.fg.removeprefix("bright")
    return INK if name == "default" else PALETTE.get(name, f"#{name}" if re.fullmatch(r"[0-9a-f]{6}", name) else INK)


def play(scene: Scene) -> list[tuple[float, Picture]]:
    """What is seen when: one picture for each change."""
    from tests.hosts import hosts
    from tests.walks.terminals import HOME, Terminal
    from tests.walks.typist import bash

    with hosts.up(1) as lan, ExitStack() as stack:
        lan[0].run("mkdir", "-p", HOME)
        terminal = Terminal(lan[0])
        if scene.before:
            terminal.run(scene.before)
        screens = []
        for rows in scene.rows:
            _, master = stack.enter_context(bash(terminal, rows, scene.columns, "$ ", str(ROOT)))
            screens.append(Screen(master, pyte.Screen(scene.columns, rows)))
        return list(_frames(scene, screens, lambda: _stopped(terminal.try_("devkit ps --json").stdout)))


def _stopped(printed: str) -> int:
    return len(json.loads(printed).get("stops", ())) if printed else 0


def _frames(scene: Scene, screens: Sequence[Screen], stopped: Callable[[], int]) -> Iterator[tuple[float, Picture]]:
    start = time.monotonic()
    last: Picture | None = None
    for line in scene.lines:
        here = screens[line.terminal]
        keys = f"{line.text}\n".encode() if line.text else b""
        end, sent, fresh = time.monotonic() + DEADLINE, False, ""
        while True:
            for each in screens:
                printed = each.take()
                fresh += printed if each is here and sent else ""
            picture = tuple(rows_of(each.screen) for each in screens)
            if picture != last:
                last = picture
                yield time.monotonic() - start, picture
            seen = here.text()
            if sent and re.search(line.sees, seen) and fresh.strip():
                break
            if not sent and re.search(r"(\$|\)) $", seen) and (not line.stops or stopped() >= line.stops):
                os.write(here.master, keys)
                sent, fresh = True, "" if keys else "-"
            assert time.monotonic() < end, f"{line} is not seen in:\n{seen}"
            time.sleep(FRAME)


def timed(frames: Sequence[tuple[float, Picture]]) -> list[tuple[float, Picture]]:
    """The same with how long each picture stays, pauses cut short."""
    ends = [at for at, _ in frames[1:]]
    stays = [min(end - at, PAUSE) for (at, _), end in zip(frames[:-1], ends, strict=True)]
    return [(stay, picture) for stay, (_, picture) in zip([*stays, LAST], frames, strict=True)]


def svg(scene: Scene, frames: Sequence[tuple[float, Picture]]) -> str:
    """All frames beside each other, and a window that jumps from one to the next."""
    heights = [BAR + rows * CELL_H + PAD for rows in scene.rows]
    width, height = scene.columns * CELL_W + 2 * PAD, sum(heights) + PAD * (len(heights) - 1)
    tops = [sum(heights[:n]) + PAD * n for n in range(len(heights))]
    known: dict[Row, str] = {}
    strip = []
    for number, (_, picture) in enumerate(frames):
        uses = [
            f'<use href="#{known.setdefault(row, f"r{len(known)}")}" y="{top + BAR + (n + 1) * CELL_H + 1:g}"/>'
            for top, rows in zip(tops, picture, strict=True)
            for n, row in enumerate(rows)
            if row
        ]
        strip.append(f'<g transform="translate({number * width:g})">{"".join(uses)}</g>')
    whole = sum(stay for stay, _ in frames)
    steps, at = [], 0.0
    for number, (stay, _) in enumerate(frames):
        steps.append(f"{100 * at / whole:.3f}%{{transform:translateX({-number * width:g}px)}}")
        at += stay
    rows = "".join(f'<g id="{name}">{_drawn(row)}</g>' for row, name in known.items())
    size = f'width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}"'
    spans = zip(tops, heights, strict=True)
    panes = "".join(_pane(number, top, high, width) for number, (top, high) in enumerate(spans))
    last = (1 - len(frames)) * width
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>text{{font:14px {FONT};white-space:pre}}'
        f"@keyframes play{{{''.join(steps)}}}"
        f".strip{{animation:play {whole:.2f}s steps(1,end) infinite}}</style>"
        f'<defs>{rows}</defs>{panes}<g class="strip" transform="translate({last:g})">{"".join(strip)}</g></svg>\n'
    )


def _pane(number: int, top: float, height: float, width: float) -> str:
    dots = "".join(f'<circle cx="{16 + 16 * n}" cy="{top + 13:g}" r="5" fill="#3b4b5c"/>' for n in range(3))
    return (
        f'<rect y="{top:g}" width="{width:g}" height="{height:g}" rx="7" fill="{GROUND}"/>'
        f'<rect y="{top:g}" width="{width:g}" height="{BAR}" rx="7" fill="{FRAME_GROUND}"/>{dots}'
        f'<text x="{width / 2:g}" y="{top + 18:g}" text-anchor="middle" fill="{DIM}">terminal {number + 1}</text>'
    )


def _drawn(row: Row) -> str:
    pieces, column = [], 0
    for text, colour, bold in row:
        if text.strip():
            left = len(text) - len(text.lstrip())
            shown = text.strip()
            x, length = PAD + (column + left) * CELL_W, len(shown) * CELL_W
            weight = ' font-weight="bold"' if bold else ""
            fit = f'textLength="{length:g}" lengthAdjust="spacingAndGlyphs"'
            pieces.append(f'<text x="{x:g}" fill="{colour}"{weight} {fit}>{html.escape(shown)}</text>')
        column += len(text)
    return "".join(pieces)


def main(wanted: Sequence[str]) -> None:
    for scene in scenes():
        if not wanted or scene.name in wanted:
            frames = timed(play(scene))
            path = IMAGES / f"terminal-{scene.name}.svg"
            path.write_text(svg(scene, frames), encoding="utf-8")
            print(f"{path.relative_to(ROOT)}: {len(frames)} frames, {path.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main(sys.argv[1:])
