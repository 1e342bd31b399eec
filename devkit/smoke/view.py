"""What a person sees of a smoke run: a live table on a terminal, plain lines in CI and in files.

Progress is talk and goes to stderr; the checks and the verdict are the result and go to stdout. Under --json, stdout
belongs to the record and all of this goes to stderr. Use a view as a context manager: it gives the terminal back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from devkit import console
from devkit.logs import redact
from devkit.palette import CAUTION, GOOD, NAME
from devkit.records import CheckResult, SmokeRecord, Status
from devkit.smoke.report import summary
from trainer.apart import Apart
from trainer.curve import sparkline

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

WORDS: dict[Status, str] = {"pass": "ok", "fail": "FAIL", "skip": "skip"}
MARKS: dict[Status, str] = {"pass": "✓", "fail": "✗", "skip": "-"}
STYLES: dict[Status, str] = {"pass": GOOD, "fail": "bold red", "skip": CAUTION}
SPARKS = 40  # columns of the live reward curve
LOG_LINES = 20  # of what others wrote to stderr, shown where a run ends with an error
TABLE_FRAME = 5  # lines of the table of checks beside them, and one to spare
FRAMES = 5  # redraws a second: the run needs the cores more than the table does
STEP_LINE_EVERY = 2.0  # seconds between the plain lines of steps
# A step has dozens of metrics; these tell at a glance how it goes. All of them are in the record.
SHOWN = ("reward_mean", "actor/pg_loss", "critic/vf_loss", "actor/entropy", "actor/ppo_kl")


class SmokeView(Protocol):
    """What the run tells; nothing is answered."""

    def phase_started(self, name: str) -> None: ...
    def phase_done(self, name: str, seconds: float) -> None: ...
    def check(self, result: CheckResult) -> None: ...
    def step(self, step: int, metrics: Mapping[str, float]) -> None: ...
    def note(self, text: str) -> None: ...
    def finish(self, record: SmokeRecord) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def make_view(*, json: bool = False, log: Path | None = None) -> SmokeView:
    """The view that fits stdout and stderr. `log` takes what others write to stderr beside a live table."""
    talk = console.talk()
    result = talk if json else console.result()
    return LiveView(talk, result, log=log) if console.is_live(talk) else PlainView(talk, result)


class PlainView:
    """One line for each thing that happened, in the order in which it happened."""

    def __init__(self, talk: Console, result: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._talk, self._result, self._clock = talk, result, clock
        self._printed_at = float("-inf")
        self._pending = ""  # the newest step line, if it was held back
        self._step = 0  # of that line
        self._left_out: list[int] = []  # steps before it whose lines it has replaced

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._flush()

    def phase_started(self, name: str) -> None:
        self._flush()

    def phase_done(self, name: str, seconds: float) -> None:
        self._flush()
        self._say(f"phase  {name}: {seconds:.2f} s")

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """A tiny step takes milliseconds: lines come at a pace that a log can bear, and the last step is never lost."""
        self._left_out = [*self._left_out, self._step] if self._pending else []
        self._step, self._pending = step, f"step   {step}  {figures(metrics)}"
        if self._clock() - self._printed_at >= STEP_LINE_EVERY:
            self._flush()

    def check(self, result: CheckResult) -> None:
        self._flush()
        word = WORDS[result.status]
        line = f"{word:<6} {result.name}: {result.detail} ({result.seconds:.2f} s)"
        self._result.print(line, style=STYLES[result.status], soft_wrap=True)

    def note(self, text: str) -> None:
        self._flush()
        self._say(redact.text(text))

    def finish(self, record: SmokeRecord) -> None:
        self._flush()
        self._result.print(verdict_line(record), soft_wrap=True)
        for name, path in record.artifacts.items():
            self._say(f"{name}: {path}")

    def _flush(self) -> None:
        if self._pending:
            self._say(self._pending + _not_shown(self._left_out))
            self._printed_at, self._pending = self._clock(), ""

    def _say(self, text: str) -> None:
        self._talk.print(text, soft_wrap=True)


def _not_shown(steps: list[int]) -> str:
    """
    >>> _not_shown([2, 3, 4]), _not_shown([2]), _not_shown([])
    ('  (2-4 not shown)', '  (2 not shown)', '')
    """
    if not steps:
        return ""
    return f"  ({steps[0]}-{steps[-1]} not shown)" if len(steps) > 1 else f"  ({steps[0]} not shown)"


@dataclass
class Progress:
    """What the live table shows, without the terminal."""

    started: float
    phases: dict[str, float] = field(default_factory=dict)  # done: seconds
    current: tuple[str, float] | None = None  # phase and when it started
    checks: list[CheckResult] = field(default_factory=list)
    step: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    rewards: list[float] = field(default_factory=list)  # of the phase that runs


class LiveView:
    """A table that redraws itself while the run goes on, and the result once when it is over."""

    def __init__(
        self,
        talk: Console,
        result: Console,
        clock: Callable[[], float] = time.monotonic,
        log: Path | None = None,
    ) -> None:
        """With `log`, the terminal is the table's own: what else writes to stderr meanwhile goes there."""
        self._talk, self._result, self._clock = talk, result, clock
        self._progress = Progress(started=clock())
        self._live: Live | None = None
        self._is_over = False
        self._apart = Apart(log) if log is not None else None

    def __enter__(self) -> Self:
        from rich.live import Live

        if self._apart is not None:
            self._talk.file = self._apart.open()
        self._live = Live(
            console=self._talk,
            get_renderable=self._render,
            refresh_per_second=FRAMES,
            transient=True,
            redirect_stdout=False,  # stdout is data, and stays so
        )
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.refresh()
            self._is_over = True  # rich draws once more, uncut, and could not take back what has left the screen
            self._live.stop()
            self._live = None
            if self._apart is not None:
                self._talk.file = None  # type: ignore[assignment]  # sys.stderr again
                log = self._apart.close()
                if log is not None and kind is not None and issubclass(kind, Exception):  # it may say why
                    last = redact.text(log.read_text(errors="replace")).splitlines()[-LOG_LINES:]
                    self._talk.print(*last, sep="\n", soft_wrap=True)

    def phase_started(self, name: str) -> None:
        self._progress.current = (name, self._clock())
        self._progress.step, self._progress.rewards = 0, []  # a curve of its own

    def phase_done(self, name: str, seconds: float) -> None:
        self._progress.phases[name] = seconds
        self._progress.current = None

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        self._progress.step, self._progress.metrics = step, metrics
        self._progress.rewards.append(metrics.get("reward_mean", float("nan")))

    def check(self, result: CheckResult) -> None:
        self._progress.checks.append(result)

    def note(self, text: str) -> None:
        self._talk.print(redact.text(text), style="dim")

    def finish(self, record: SmokeRecord) -> None:
        self.__exit__(None, None, None)
        self._result.print(checks_table(record.checks))
        times = "  ".join(f"{name} {seconds:.1f} s" for name, seconds in record.phases.items())
        self._talk.print(times, style="dim")
        self._result.print(verdict_line(record), soft_wrap=True)
        for name, path in record.artifacts.items():
            self._talk.print(f"{name}: {path}", style="dim", soft_wrap=True)

    def _render(self) -> RenderableType:
        from rich.text import Text

        if self._is_over:
            return Text()
        return progress_table(self._progress, self._clock(), self._talk.size.height)


def progress_table(progress: Progress, now: float, height: int | None = None) -> RenderableType:
    """Phases that are over, the one that runs with its newest step, and the checks so far.

    In a terminal of `height` lines: the newest checks, a line each, as many as there is room for.
    """
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    phases = Table.grid(padding=(0, 2))
    for name, seconds in progress.phases.items():
        phases.add_row(Text("✓", style=GOOD), name, Text(f"{seconds:.1f} s", style="dim"))
    if progress.current is not None:
        name, since = progress.current
        phases.add_row(Text(_spinner(now), style=NAME), Text(name, style="bold"), f"{now - since:.1f} s")
    head = Text.assemble(("devkit smoke", "bold"), (f"  {now - progress.started:.1f} s", "dim"))
    parts: list[RenderableType] = [head]
    if phases.row_count:
        parts.append(phases)
    if progress.step:
        parts.append(_step_line(progress))
    if progress.checks:
        taken = 1 + phases.row_count + bool(progress.step) + TABLE_FRAME
        parts.append(checks_table(progress.checks, None if height is None else max(1, height - taken)))
    return Group(*parts)


def _spinner(now: float) -> str:
    return "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"[int(now * FRAMES) % 10]


def _step_line(progress: Progress) -> Text:
    from rich.text import Text

    curve = (sparkline(progress.rewards, SPARKS), NAME)
    name = (f"step {progress.step}  ", "bold")
    return Text.assemble(name, curve, "  ", figures(progress.metrics), no_wrap=True, overflow="ellipsis")


def figures(metrics: Mapping[str, float]) -> str:
    """The metrics that are shown, in one line.

    >>> figures({"actor/entropy": 1.5, "reward_mean": 0.25, "perf/throughput": 1e5})
    'reward_mean 0.25  actor/entropy 1.5'
    """
    return "  ".join(f"{name} {metrics[name]:.4g}" for name in SHOWN if name in metrics)


def checks_table(checks: list[CheckResult] | tuple[CheckResult, ...], room: int | None = None) -> Table:
    """All checks in full, or those of the newest for which there are `room` lines, each cut to one."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim")
    table.add_column("", no_wrap=True)
    table.add_column("check", no_wrap=True)
    table.add_column("found", overflow="fold", ratio=1)
    table.add_column("time", justify="right", no_wrap=True)
    if room is not None and len(checks) > room:
        newest = checks[len(checks) - room + 1 :]
        table.add_row("", Text(f"{len(checks) - len(newest)} before", style="dim"), "", "")
        checks = newest
    for check in checks:
        style = STYLES[check.status]
        name = Text(check.name, style=style if check.status == "fail" else "")
        detail = Text(check.detail, style="" if check.status == "fail" else "dim")
        if room is not None:
            detail.no_wrap, detail.overflow = True, "ellipsis"
        table.add_row(Text(MARKS[check.status], style=style), name, detail, Text(f"{check.seconds:.2f} s", style="dim"))
    return table


def verdict_line(record: SmokeRecord) -> Text:
    """`smoke: pass in 14.2 s: 17 passed, 1 skipped`."""
    from rich.text import Text

    return Text.assemble("smoke: ", (record.verdict, STYLES[record.verdict]), " in ", summary(record))
