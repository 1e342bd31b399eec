"""Weather is not a fault: a test that failed is tried once more by itself, in a new process, when all others are over.

If it passes then, what came before it in its file runs too, and it once more: a test that fails in its order is no
weather. Passed again: `flaky: NAME`, and the run is green. A flaky test is a bug to be mended, and is counted. Tests of
one file whose fixture has failed have one cause, and are tried together.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

MANY = 20  # more are no weather
DEADLINE_S = 900.0  # for one test, or one file up to it
BEGIN_S = 1200.0  # after so much of it no further try is begun: a gate has an end


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("once more")
    group.addoption("--once-more", action="store_true", help="try a failed test again, by itself; passed then: flaky")
    group.addoption("--counts", metavar="FILE", help="write what passed, failed and was flaky to FILE, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(OnceMore(config), "once-more")


@dataclass
class Counts:
    """What a run of one suite came to. `minutes` include the tries."""

    passed: int = 0
    flaky: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    skipped: int = 0
    minutes: float = 0.0


@dataclass(frozen=True)
class Try:
    """How a test went that was tried again: what is said of it, and what the last try printed."""

    verdict: str
    printed: str
    passed: bool


class OnceMore:
    """Sees every report of a session, wherever its tests run."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.start = time.monotonic()
        self.failed: dict[str, list[pytest.TestReport]] = {}
        self.tries: dict[str, Try] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.setdefault(report.nodeid, []).append(report)

    @pytest.hookimpl(trylast=True)  # xdist has ended its workers
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        causes = self._by_cause()
        if self.config.option.once_more and exitstatus == pytest.ExitCode.TESTS_FAILED and len(causes) <= MANY:
            self._say(f"trying {len(self.failed)} failed once more, each by itself")
            self._try_all(causes)
            self._forgive()
            if self.failed and all(each.passed for each in self.tries.values()):
                session.exitstatus = pytest.ExitCode.OK
        if self.config.option.counts:
            Path(self.config.option.counts).write_text(json.dumps(asdict(self._counts()), indent=1))

    def _by_cause(self) -> list[list[str]]:
        """The tests that failed; those of one file together whose set-up failed in the same way."""
        found: dict[object, list[str]] = {}
        for name, reports in self.failed.items():
            in_setup = reports[0].when == "setup"
            cause = (name.partition("::")[0], reports[0].longreprtext.rpartition("\nE ")[2]) if in_setup else name
            found.setdefault(cause, []).append(name)
        return list(found.values())

    def _try_all(self, causes: list[list[str]]) -> None:
        """Whoever interrupts it, or has no more time, still hears what failed."""
        begun, why = time.monotonic(), ""
        for names in causes:
            why = why or ("there was no time" if time.monotonic() - begun >= BEGIN_S else "")
            again = Try(f"not tried again, {why}", "", passed=False)
            if not why:
                try:
                    again = self._try(names)
                except KeyboardInterrupt:
                    why = "interrupted"
                    again = Try(f"not tried again, {why}", "", passed=False)
            for name in names:
                self.tries[name] = again
                self._say(f"{again.verdict}: {name}")

    def _try(self, names: list[str]) -> Try:
        tier, root = self._tier_of(names[0]), self.config.rootpath
        return try_again(names[0], tier, root) if len(names) == 1 else try_file(names, tier, root)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not self.tries:
            return
        terminalreporter.section("tried once more")
        for name, each in self.tries.items():
            if each.passed:
                for report in self.failed[name]:
                    terminalreporter.write_line(f"{name} failed at first, {report.when}:\n{report.longreprtext}")
            else:
                terminalreporter.write_line(f"{name}, tried again:\n{each.printed[-4000:]}")
        for name, each in self.tries.items():
            terminalreporter.write_line(f"{each.verdict}: {name}")

    def _forgive(self) -> None:
        """The summary's counts and colour follow the last word on each test."""
        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is None:
            return
        for kind in ("failed", "error"):
            reports = reporter.stats.pop(kind, [])
            red = [each for each in reports if not self._passed(each.nodeid)]
            if red:
                reporter.stats[kind] = red
        if flaky := [reports[0] for name, reports in self.failed.items() if self._passed(name)]:
            reporter.stats["flaky"] = flaky
        reporter._set_main_color()

    def _tier_of(self, name: str) -> str:
        """The tier that its file ran in: a file that was named ran whole."""
        file = str(self.config.rootpath / name.partition("::")[0])
        return "all" if file in self.config.option.named else str(self.config.option.tier)

    def _passed(self, name: str) -> bool:
        return name in self.tries and self.tries[name].passed

    def _counts(self) -> Counts:
        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        stats: dict[str, list[Any]] = reporter.stats if reporter else {}
        return Counts(
            passed=len(stats.get("passed", [])),
            flaky=[name for name in self.failed if self._passed(name)],
            failed=[name for name in self.failed if not self._passed(name)],
            skipped=len(stats.get("skipped", [])) + len(stats.get("xfailed", [])),
            minutes=round((time.monotonic() - self.start) / 60, 1),
        )

    def _say(self, text: str) -> None:
        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.ensure_newline()
            reporter.write_line(text)


def try_again(name: str, tier: str, root: Path) -> Try:
    """One test by itself; where it passes so, its file from the top down to it."""
    alone = _pytest([name, "--tier=all"], root)
    if alone is not None:
        return Try("failed again", alone, passed=False)
    in_order = _pytest([name.partition("::")[0], f"--tier={tier}", f"--until={name}"], root)
    if in_order is not None:
        return Try("fails in the order of its file, and passes by itself", in_order, passed=False)
    return Try("flaky", "", passed=True)


def try_file(names: list[str], tier: str, root: Path) -> Try:
    """Several of one file, whose fixture has failed: the file from the top down to the last of them."""
    printed = _pytest([names[0].partition("::")[0], f"--tier={tier}", f"--until={names[-1]}"], root)
    return Try("flaky", "", passed=True) if printed is None else Try("failed again", printed, passed=False)


def _pytest(words: list[str], root: Path) -> str | None:
    """What it printed where it did not pass."""
    command = [sys.executable, "-m", "pytest", "-n0", "-q", "-p", "no:cacheprovider", *words]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    with subprocess.Popen(
        command,
        cwd=root,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # what it started ends with it
    ) as process:
        try:
            printed, _ = process.communicate(timeout=DEADLINE_S)
        except BaseException as why:
            os.killpg(process.pid, signal.SIGKILL)
            if not isinstance(why, subprocess.TimeoutExpired):
                raise
            return f"it was not over after {DEADLINE_S:.0f} s"
    return None if process.returncode == 0 else printed
