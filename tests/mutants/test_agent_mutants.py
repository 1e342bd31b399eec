"""Unit tests of conversations that can't fail are worthless: each mistake makes the test fail that is about it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants.mutant import ROOT, Mutant
from tests.mutants.of_agents import MUTANTS
from tests.mutants.test_mutants import INJECT
from tests.pace import stretched

TIMEOUT_S = stretched(90.0)  # a test takes 5 s on an idle machine, most of it to import torch


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_its_text_stands_once_in_the_source(mutant: Mutant) -> None:
    broken = mutant.applied_to((ROOT / mutant.file).read_text())
    compile(broken, mutant.file, "exec")
    file, _, test = mutant.caught_by.partition("::")
    assert f"def {test}(" in (ROOT / file).read_text()


@pytest.mark.mutants
@pytest.mark.timeout(2 * TIMEOUT_S + 60)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_is_caught_by_its_test(mutant: Mutant, tmp_path: Path) -> None:
    """Which passes in the same way without it."""
    applied = tmp_path / "applied"
    for names, code, said in ((mutant.name, 1, "1 failed"), ("", 0, "1 passed")):
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-n0", "-q", "-p", "no:cacheprovider", mutant.caught_by],
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(INJECT), str(ROOT)]),
                "SMOKE_MUTANTS": names,
                "SMOKE_MUTANTS_FILE": str(applied),
            },
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        assert (done.returncode, said in done.stdout) == (code, True), done.stdout + done.stderr
    assert applied.read_text().split() == [mutant.name]
