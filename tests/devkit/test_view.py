"""What a person sees of a smoke run."""

from __future__ import annotations

import io
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from devkit import console
from devkit.records import CheckResult, SmokeRecord
from devkit.smoke.view import LiveView, PlainView, Progress, make_view, progress_table
from tests.terminal import seen_on_a_terminal
from trainer.curve import sparkline

GOOD = CheckResult("logprobs_agree", "pass", "difference 2e-6 [limit 1e-4]", 0.5)
BAD = CheckResult("masks_exact", "fail", "row 3: 1 token too long", 0.25)
RECORD = SmokeRecord(14.25, {"train": 5.0}, (GOOD, BAD), (), {"report": "r/index.html"})


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def page(*, terminal: bool = False, width: int = 100) -> Console:
    return Console(
        file=io.StringIO(), width=width, force_terminal=terminal, color_system=None, markup=False, highlight=False
    )


def text(of: Console) -> str:
    assert isinstance(of.file, io.StringIO)
    return of.file.getvalue()


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A console that is told to be a terminal is one, whatever the tests were started from."""
    monkeypatch.setenv("TERM", "xterm-256color")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def quiet_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    for name in ("CI", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_plain_lines_tell_the_run_in_order(clock: Clock) -> None:
    talk = page()
    with PlainView(talk, talk, clock) as view:
        view.note("kept: rollout.n=4")
        view.phase_started("train")
        view.step(1, {"reward_mean": 0.25, "actor/entropy": 2.0, "perf/throughput": 1.0})
        view.phase_done("train", 5.0)
        view.check(GOOD)
        view.check(BAD)
        view.finish(RECORD)
    assert text(talk).splitlines() == [
        "kept: rollout.n=4",
        "step   1  reward_mean 0.25  actor/entropy 2",
        "phase  train: 5.00 s",
        "ok     logprobs_agree: difference 2e-6 [limit 1e-4] (0.50 s)",
        "FAIL   masks_exact: row 3: 1 token too long (0.25 s)",
        "smoke: fail in 14.2 s: 1 passed, 1 failed (masks_exact)",
        "report: r/index.html",
    ]


def test_plain_step_lines_keep_a_pace_and_never_lose_the_last(clock: Clock) -> None:
    talk = page()
    with PlainView(talk, talk, clock) as view:
        for step in range(1, 51):
            view.step(step, {"reward_mean": 0.5})
            clock.now += 0.25
    lines = text(talk).splitlines()
    assert [int(line.split()[1]) for line in lines] == [1, 9, 17, 25, 33, 41, 49, 50]
    assert [line for line in lines if "not shown" in line] == lines[1:-1], "whoever counts is told what is missing"
    assert lines[1].endswith("(2-8 not shown)") and lines[0] == "step   1  reward_mean 0.5"


def test_plain_results_go_to_the_result_and_progress_to_the_talk(clock: Clock) -> None:
    talk, result = page(), page()
    with PlainView(talk, result, clock) as view:
        view.phase_done("train", 5.0)
        view.check(GOOD)
        view.finish(RECORD)
    assert text(talk).splitlines() == ["phase  train: 5.00 s", "report: r/index.html"]
    assert [line.split()[0] for line in text(result).splitlines()] == ["ok", "smoke:"]


def test_long_plain_lines_are_not_folded(clock: Clock) -> None:
    talk = page(width=20)
    with PlainView(talk, talk, clock) as view:
        view.check(CheckResult("a", "fail", "word " * 40, 0.0))
    assert len(text(talk).splitlines()) == 1


def test_live_shows_phases_step_and_checks_while_it_runs() -> None:
    progress = Progress(
        started=100.0,
        phases={"start ray": 2.0},
        current=("train", 102.0),
        checks=[GOOD, BAD],
        step=3,
        metrics={"reward_mean": 0.5},
        rewards=[0.0, 0.25, 0.5],
    )
    screen = page()
    screen.print(progress_table(progress, now=105.5))
    lines = text(screen).splitlines()
    assert lines[0].split() == ["devkit", "smoke", "5.5", "s"]
    assert lines[1].split() == ["✓", "start", "ray", "2.0", "s"]
    assert lines[2].split()[1:] == ["train", "3.5", "s"]
    assert lines[3].split() == ["step", "3", "▁▅█", "reward_mean", "0.5"]
    assert re.search(r"✓ +logprobs_agree +difference 2e-6 \[limit 1e-4\] +0.50 s", text(screen))
    assert re.search(r"✗ +masks_exact +row 3", text(screen))


@pytest.mark.parametrize("height", [15, 24, 50])
def test_live_shows_the_newest_checks_that_fit(height: int) -> None:
    checks = [CheckResult(f"check-{number}", "pass", "word " * 40, 0.0) for number in range(40)]
    progress = Progress(started=0.0, phases={"start": 2.0}, current=("train", 2.0), checks=checks, step=3)
    screen = page(width=80)
    screen.print(progress_table(progress, now=5.0, height=height))
    lines = text(screen).splitlines()
    shown = re.findall(r"check-(\d+)", text(screen))
    assert len(lines) < height and shown[-1] == "39" and len(shown) == min(40, height - 10)
    assert (f"{40 - len(shown)} before" in text(screen)) is (height < 50)


def test_live_leaves_nothing_of_a_table_that_is_taller_than_the_terminal(clock: Clock) -> None:
    talk = Console(file=io.StringIO(), force_terminal=True, width=80, height=24)
    with LiveView(talk, page(), clock) as view:
        for number in range(40):
            view.check(CheckResult(f"check-{number}", "pass", "word " * 40, 0.0))
    drawn = [each for each in re.split(r"\x1b\[2K", text(talk)) if "check-" in each]
    assert drawn and max(each.count("\n") for each in drawn) < 24


def test_live_step_line_fits_a_narrow_terminal() -> None:
    screen = page(width=30)
    screen.print(progress_table(Progress(0.0, step=1, metrics={"reward_mean": 0.5}, rewards=[0.1, 0.5] * 20), now=1.0))
    assert max(map(len, text(screen).splitlines())) <= 30
    assert len(text(screen).splitlines()) == 2


def test_live_gives_the_terminal_back_also_after_ctrl_c(clock: Clock) -> None:
    talk = page(terminal=True)
    view = LiveView(talk, page(), clock)
    with pytest.raises(KeyboardInterrupt), view:
        raise KeyboardInterrupt
    hidden, shown = text(talk).rfind("\x1b[?25l"), text(talk).rfind("\x1b[?25h")
    assert 0 <= hidden < shown


def test_live_prints_checks_and_verdict_once_when_it_is_over(clock: Clock) -> None:
    talk, result = page(terminal=True), page()
    with LiveView(talk, result, clock) as view:
        view.check(GOOD)
        view.check(BAD)
        view.finish(RECORD)
    assert text(result).count("logprobs_agree") == 1
    assert text(result).splitlines()[-1] == "smoke: fail in 14.2 s: 1 passed, 1 failed (masks_exact)"
    assert text(talk).splitlines()[-1] == "report: r/index.html"


def test_sparkline_has_at_most_so_many_columns() -> None:
    assert sparkline([float(i) for i in range(100)], columns=10) == "▁▂▃▃▄▅▆▆▇█"
    assert sparkline([], 10) == ""
    assert sparkline([float("nan"), 1.0, float("inf")], 10) == "▁"


def test_a_pipe_gets_plain_lines(quiet_environment: pytest.MonkeyPatch) -> None:
    assert isinstance(make_view(), PlainView)


@pytest.mark.parametrize(
    ("terminal", "environ", "live"),
    [(True, {}, True), (True, {"CI": "true"}, False), (False, {}, False), (True, {"CI": ""}, True)],
)
def test_live_is_for_terminals_that_are_not_a_ci_log(
    quiet_environment: pytest.MonkeyPatch, terminal: bool, environ: dict[str, str], live: bool
) -> None:
    quiet_environment.setenv("TERM", "xterm")
    assert console.is_live(page(terminal=terminal), environ) is live


def test_a_dumb_terminal_gets_plain_lines(quiet_environment: pytest.MonkeyPatch) -> None:
    quiet_environment.setenv("TERM", "dumb")
    assert not console.is_live(page(terminal=True), {})


def test_no_color_is_respected(quiet_environment: pytest.MonkeyPatch) -> None:
    quiet_environment.setenv("TERM", "xterm-256color")
    quiet_environment.setenv("NO_COLOR", "1")
    coloured = Console(file=io.StringIO(), force_terminal=True)
    coloured.print("x", style="red")
    assert "\x1b[31m" not in text(coloured)


def test_under_json_nothing_but_the_record_goes_to_stdout(
    quiet_environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with make_view(json=True) as view:
        view.check(GOOD)
        view.finish(RECORD)
    out, err = capsys.readouterr()
    assert out == ""
    assert "smoke: fail" in err


def test_each_phase_has_a_reward_curve_of_its_own(clock: Clock) -> None:
    """A next stage begins low: in one line with the stage before, that looks like a collapse."""
    talk = page(terminal=True)
    with LiveView(talk, page(), clock) as view:
        view.phase_started("learning gate")
        for step, reward in enumerate([0.1, 0.5, 0.9], 1):
            view.step(step, {"reward_mean": reward})
        view.phase_done("learning gate", 1.0)
        view.phase_started("pipeline")
        talk.file.truncate(0)
        view.step(1, {"reward_mean": 0.1})
        view.step(2, {"reward_mean": 0.2})
    assert "step 2  ▁█  " in text(talk) and "▁▅█" not in text(talk)


TORN = """
import os, sys
from pathlib import Path
from devkit.smoke.view import make_view
with make_view(log=Path(sys.argv[1])) as view:
    view.phase_started("start")
    os.write(2, b"network_util.cc:330: Failed to determine local IP")
    view.note("a note")
    view.step(1, {"reward_mean": 0.5})
sys.stderr.write("afterwards")
"""


def test_nothing_tears_the_live_table(tmp_path: Path) -> None:
    log = tmp_path / "stderr.log"
    shown = seen_on_a_terminal([sys.executable, "-c", TORN, str(log)])
    assert "devkit smoke" in shown and "a note" in shown and shown.endswith("afterwards")
    assert "network_util" not in shown
    assert log.read_text() == "network_util.cc:330: Failed to determine local IP"


def test_what_others_wrote_is_shown_where_the_run_ends_with_an_error(tmp_path: Path) -> None:
    """It may say why; the folder with the file goes."""
    code = TORN.replace('view.note("a note")', 'raise SystemExit(0) if sys.argv[2:] else OSError("no Ray")')
    code = f"try:\n{textwrap.indent(code, '    ')}\nexcept OSError:\n    pass\n"
    shown = seen_on_a_terminal([sys.executable, "-c", code, str(tmp_path / "stderr.log")])
    assert shown.rstrip().endswith("network_util.cc:330: Failed to determine local IP")
    shown = seen_on_a_terminal([sys.executable, "-c", code, str(tmp_path / "other.log"), "leave"])
    assert "network_util" not in shown
