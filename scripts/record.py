"""Records what the README shows, on real terminals, as animated pictures: `docs/images/*.svg`.

    pip install pyte && python scripts/record.py [debug] [smoke]

As root: the README's sessions are typed into shells of a virtual host (`tests/hosts`), whose user has an empty home.
`pyte` is the terminal; what it shows is drawn frame by frame, and one animation goes from frame to frame. Pauses are
cut short.
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
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyte

ROOT = Path(__file__).resolve().parent.parent
if __package__ in (None, ""):
    sys.path.insert(0, str(ROOT))

from tests.walks.pages import Typed, compare, steps  # noqa: E402 - found once the path is set
from tests.walks.typist import CONTROL, bash  # noqa: E402

README = ROOT / "README.md"
IMAGES = ROOT / "docs/images"
PROMPT = "$ "
CLONED = ("devkit", "trainer", "docs", "tests")  # of a clone: what the commands need, where they may write
RANKS = 2  # that the README's run has
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
class Scene:
    """Lines of a page, as somebody types them, and the terminals that they are typed into."""

    name: str
    rows: tuple[int, ...]  # of each terminal
    columns: int
    lines: tuple[Typed, ...]
    before: str = ""  # a command that is not shown


def scenes() -> list[Scene]:
    """The README's own sessions."""
    page = README.read_text(encoding="utf-8")
    preparation, *debug = typed(page, "Debug")
    return [
        Scene("debug", (12, 15), 100, tuple(debug), before=preparation.text),
        Scene("smoke", (34,), 100, tuple(typed(page, "Smoke test"))),
    ]


def typed(page: str, heading: str) -> list[Typed]:
    """What a section of the page says to type."""
    _, _, rest = page.partition(f"\n## {heading}\n")
    return [step for step in steps(rest.partition("\n## ")[0]) if isinstance(step, Typed)]


@dataclass
class Screen:
    """A terminal and what it shows."""

    master: int  # the terminal's other end
    screen: pyte.Screen
    stream: pyte.ByteStream

    printed: str = ""  # since the last line was typed

    def type(self, text: str) -> None:
        self.printed = ""
        os.write(self.master, f"{text}\n".encode())

    def take(self) -> None:
        """Shows what was printed since."""
        piece = b""
        while select.select([self.master], [], [], 0)[0]:
            piece += os.read(self.master, 1 << 16)
        self.stream.feed(piece)
        self.printed += CONTROL.sub("", piece.decode("utf-8", "replace"))

    def is_ready(self) -> bool:
        """Whether the shell waits for a line; it says so in its last one."""
        line: str = self.screen.display[self.screen.cursor.y]
        return line.rstrip() == PROMPT.rstrip()

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
    import pyte

    from tests.hosts import hosts
    from tests.walks.terminals import HOME, Terminal

    with hosts.up(1) as lan, ExitStack() as stack:
        terminal = Terminal(lan[0])
        clone = f"{HOME}/ray-devkit"
        lan[0].run("mkdir", "-p", clone)
        terminal.run(f"cd {ROOT} && cp -r {' '.join(CLONED)} {clone}")
        if scene.before:
            terminal.run(f"cd {clone} && {scene.before}")
        screens = []
        for rows in scene.rows:
            _, master = stack.enter_context(bash(terminal, rows, scene.columns, PROMPT, clone))
            screen = pyte.Screen(scene.columns, rows)
            screens.append(Screen(master, screen, pyte.ByteStream(screen)))
        player = Player(scene, screens, lambda: _stopped(terminal.try_("devkit ps --json").stdout))
        return list(player.frames())


def _stopped(printed: str) -> int:
    return len(json.loads(printed).get("stops", ())) if printed else 0


@dataclass
class Player:
    """Types a scene, and looks at all terminals meanwhile."""

    scene: Scene
    screens: Sequence[Screen]
    stopped: Callable[[], int]  # how many ranks are
    start: float = field(default_factory=time.monotonic)
    last: Picture | None = None

    def frames(self) -> Iterator[tuple[float, Picture]]:
        for line in self.scene.lines:
            yield from self._until(line.text, partial(self._may_type, line))
            self._screen(line).type(line.text)
            yield from self._until(line.text, partial(self._is_answered, line))
        yield from self._until("the prompts", self._is_over)

    def _screen(self, line: Typed) -> Screen:
        return self.screens[line.terminal - 1]

    def _may_type(self, line: Typed) -> bool:
        """Its shell is ready and, for a second terminal, all ranks are stopped."""
        return self._screen(line).is_ready() and (line.terminal == 1 or self.stopped() >= RANKS)

    def _is_answered(self, line: Typed) -> bool:
        return compare(line.shown, self._screen(line).printed).missing is None

    def _is_over(self) -> bool:
        return all(each.is_ready() for each in self.screens)

    def _until(self, what: str, holds: Callable[[], bool]) -> Iterator[tuple[float, Picture]]:
        end = time.monotonic() + DEADLINE
        while True:
            for each in self.screens:
                each.take()
            picture = tuple(rows_of(each.screen) for each in self.screens)
            if picture != self.last:
                self.last = picture
                yield time.monotonic() - self.start, picture
            if holds():
                return
            assert time.monotonic() < end, f"{what}: not over in\n" + "\n".join(each.text() for each in self.screens)
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
        f".strip{{animation:play {whole:.2f}s steps(1,end) infinite}}"
        "@media (prefers-reduced-motion:reduce){.strip{animation:none}}</style>"
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
