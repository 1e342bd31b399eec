"""Runs every suite of tests, one after another, whatever fails; ends with a table of them, and the same as JSON.

    python scripts/test_all.py [--json FILE] [SUITE ...]

A suite is a verb of the Makefile. Exit code 1 if one did not pass.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if __package__ in (None, ""):
    sys.path.insert(0, str(ROOT))
RAYS = ("test-ray", "test-trainer", "test-verdicts", "test-walks", "test-mutants")
HOSTS = ("test-hosts", "test-faults", "test-programs")
PYTEST = ("test", *RAYS, *HOSTS)
ENGINES = ("test-sglang", "test-vllm", "test-gpu")
SUITES = ("lint", "test", "smoke", *RAYS, "test-vscode", *HOSTS, *ENGINES)
HEAD = ("suite", "verdict", "passed", "flaky", "failed", "skipped", "minutes")


@dataclass(frozen=True)
class Result:
    """What a suite came to. `passed` is None where it is no suite of pytest, or ended before it could count."""

    suite: str
    verdict: str  # pass, fail
    minutes: float
    passed: int | None = None
    skipped: int | None = None
    flaky: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


def run(suite: str) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        counts, start = Path(folder) / "counts.json", time.monotonic()
        words = [f"ARGS=--counts={counts}"] if suite in PYTEST + ENGINES else []
        done = subprocess.run(["make", "--no-print-directory", suite, *words], cwd=ROOT, check=False)
        verdict, minutes = "pass" if done.returncode == 0 else "fail", round((time.monotonic() - start) / 60, 1)
        if not counts.exists():
            return Result(suite, verdict, minutes)
        said = json.loads(counts.read_text())
        return Result(suite, verdict, minutes, said["passed"], said["skipped"], said["flaky"], said["failed"])


def table(results: Sequence[Result]) -> str:
    """Markdown; under it a line for each test that failed or was flaky.

    >>> print(table([Result("lint", "pass", 1.0), Result("test", "fail", 8.2, 3300, 80, ["a"], ["b"])]))
    | suite | verdict | passed | flaky | failed | skipped | minutes |
    |---|---|---|---|---|---|---|
    | lint | pass |  | 0 | 0 |  | 1.0 |
    | test | fail | 3300 | 1 | 1 | 80 | 8.2 |
    <BLANKLINE>
    flaky: a
    failed: b
    """
    rows = [
        (
            each.suite,
            each.verdict,
            _shown(each.passed),
            len(each.flaky),
            len(each.failed),
            _shown(each.skipped),
            each.minutes,
        )
        for each in results
    ]
    lines = [f"| {' | '.join(map(str, row))} |" for row in (HEAD, *rows)]
    lines.insert(1, "|" + "---|" * len(HEAD))
    names = [f"flaky: {name}" for each in results for name in each.flaky]
    names += [f"failed: {name}" for each in results for name in each.failed]
    return "\n".join([*lines, "", *names]) if names else "\n".join(lines)


def _shown(count: int | None) -> str:
    return "" if count is None else str(count)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"of {', '.join(SUITES)}; all that can run here")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table to FILE, too")
    asked = parser.parse_args(words)
    if unknown := set(asked.suites) - set(SUITES):
        parser.error(f"no suite {', '.join(sorted(unknown))}; they are {', '.join(SUITES)}")
    here = [suite for suite in SUITES if suite != "test-gpu" or shutil.which("nvidia-smi")]
    results = [run(suite) for suite in asked.suites or here]
    print(f"\n{table(results)}")
    if asked.json:
        asked.json.write_text(json.dumps([asdict(each) for each in results], indent=1) + "\n")
    return int(any(each.verdict != "pass" for each in results))


if __name__ == "__main__":
    sys.exit(main())
