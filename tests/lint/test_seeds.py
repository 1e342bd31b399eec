"""The launch commands that people have: each finding was looked at, and is right."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from devkit.lint.read import Wish
from devkit.lint.records import LintRecord
from devkit.lint.run import lint
from devkit.lint.source import Source
from tests.pace import stretched

ROOT = Path(__file__).resolve().parent.parent.parent
SCRIPTS = ROOT / "tests" / "config" / "seeds"
PAGES = ROOT.parent / "shared" / "seeds"  # where they come from, on a machine that has them
SLOWEST = 2.0  # CPU seconds of one call, its start included

# Script -> line and rule of all that is said of it.
FINDINGS = {
    "000_two_nodes": [
        (3, "unused-variable"),  # the MATH files are named, and not trained on
        (4, "unused-variable"),
        (10, "node-local-path"),
        (11, "node-local-path"),
        (23, "duplicate-key"),
        (30, "inert-key"),
        (39, "inert-key"),
        (41, "unquoted-brackets"),
        (48, "unquoted-arguments"),
    ],
    "001_dstack": [
        (2, "missing-key"),
        (3, "node-local-path"),
        (4, "node-local-path"),
        (15, "inert-key"),
        (19, "inert-key"),
        (29, "pipe-hides-failure"),
        (30, "argument-after-pipe"),
    ],
    "001_slurm": [
        (6, "srun-nodes"),
        (20, "duplicate-key"),
        (26, "gpu-memory"),
        (27, "inert-key"),
        (36, "inert-key"),
        (38, "unquoted-brackets"),
        (40, "misleading-name"),  # 32B in the name, a model of 7B
    ],
    "002_check": [
        (21, "deprecated-key"),
        (27, "deprecated-key"),
        (30, "version-dependent-key"),
        (32, "unquoted-brackets"),
        (39, "pipe-hides-failure"),
    ],
    "002_eight_gpus": [(38, "version-dependent-key"), (40, "unquoted-brackets"), (48, "unquoted-arguments")],
    "003_search_r1": [
        (4, "placeholder"),
        (8, "undefined-variable"),
        (8, "undefined-variable"),
        (17, "log-of-no-wait"),
        (20, "relative-path"),
        (21, "relative-path"),
        (64, "unquoted-brackets"),
        (76, "duplicate-key"),
        (77, "relative-path"),
        (79, "loopback-address"),
        (81, "dash-argument"),  # two unset variables leave a name that begins with two dashes
        (81, "pipe-hides-failure"),
    ],
}

# Page -> rules of what is wrong in its blocks beside the commands above.
BESIDE = {
    "000": {"unused-variable", "inert-key"},
    "001": {"argument-after-pipe", "shell-prompt", "placeholder", "deprecated-variable"},
    "002": {"comma-argument", "typographic-quote", "deprecated-key"},
    "003": {"loopback-address", "placeholder", "dash-argument"},
    "004": {"web-page-download", "container-network", "shm-size-ignored", "placeholder"},
}
# The Slurm script of page 001 lies in several blocks, with prose between them.
SLURM = {
    "device-variables",
    "srun-tasks",
    "srun-nodes",
    "broken-quoting",
    "duplicate-key",
    "gpu-memory",
    "debug-leftover",
}


def linted(source: Source) -> LintRecord:
    return lint([source], Wish())


@pytest.mark.parametrize("name", FINDINGS)
def test_a_seed_command_s_findings(name: str) -> None:
    script = SCRIPTS / f"{name}.sh"
    record = linted(Source(script.name, script.read_bytes()))
    assert sorted((finding.line, finding.rule) for finding in record.findings) == FINDINGS[name]


def test_all_six_are_looked_at() -> None:
    assert set(FINDINGS) == {path.stem for path in SCRIPTS.glob("*.sh")}


def pages() -> dict[str, Path]:
    return {path.name[:3]: path for path in sorted(PAGES.glob("*.txt"))}


@pytest.mark.skipif(not PAGES.is_dir(), reason="the pages are not on this machine")
@pytest.mark.parametrize("name", BESIDE)
def test_what_is_wrong_on_a_page(name: str) -> None:
    path = pages()[name]
    rules = {finding.rule for finding in linted(Source(path.name, path.read_bytes())).findings}
    assert rules >= BESIDE[name]


@pytest.mark.skipif(not PAGES.is_dir(), reason="the pages are not on this machine")
def test_what_is_wrong_in_the_slurm_script() -> None:
    lines = pages()["001"].read_text(encoding="utf-8").splitlines()
    start = lines.index("#SBATCH --job-name=verl-ray-on-slurm")
    end = next(i for i, line in enumerate(lines) if i > start and "trainer.total_epochs=15" in line)
    script = "\n".join(line for line in lines[start : end + 1] if not line.startswith("```"))
    assert {finding.rule for finding in linted(Source.of_text("slurm.sh", script)).findings} >= SLURM


@pytest.mark.ray  # a figure of a quiet machine
def test_a_call_takes_less_than_two_seconds() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "devkit", "lint", str(SCRIPTS / "003_search_r1.sh")]
    done = subprocess.run(command, capture_output=True, timeout=stretched(60), check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 1
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < SLOWEST
