"""A smoke test that can't fail is worthless: each mistake in the trainer is caught, by the check that names it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.mutants.mutants import MUTANTS, ROOT, Mutant
from tests.smoke.calls import CHECKS, Done, smoke

INJECT = Path(__file__).parent / "inject"
TIMEOUT_S = 150.0  # a run takes 5 to 20 s on an idle machine, depending on how early its mistake shows


def broken_smoke(mutant: str, folder: Path, *words: str) -> tuple[Done, list[int]]:
    """The smoke test with a mistake in it, and the processes that imported the mistake."""
    applied = folder / "applied"
    paths = [str(INJECT), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = smoke(
        "--json",
        *words,
        timeout_s=TIMEOUT_S,
        PYTHONPATH=os.pathsep.join(paths),
        SMOKE_MUTANT=mutant,
        SMOKE_MUTANT_FILE=str(applied),
    )
    return done, [int(line) for line in applied.read_text().split()] if applied.exists() else []


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_its_text_stands_once_in_the_source(mutant: Mutant) -> None:
    source = (ROOT / mutant.file).read_text()
    broken = mutant.applied_to(source)
    assert broken != source
    compile(broken, mutant.file, "exec")


def test_names_are_unique() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def test_text_that_is_gone_is_an_error() -> None:
    with pytest.raises(ValueError, match="mutant x: its text stands 2 times in y, not once"):
        Mutant("x", "y", old="a", new="b", caught_by="").applied_to("a + a")


@pytest.mark.mutants
@pytest.mark.timeout(TIMEOUT_S + 60)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_is_caught(mutant: Mutant, tmp_path: Path) -> None:
    done, processes = broken_smoke(mutant.name, tmp_path, *([] if mutant.to_the_end else ["--fail-fast"]))
    assert processes, f"{mutant.module} was imported without the mistake"
    failed = done.checks("fail")
    print(f"{mutant.name}: caught by {', '.join(failed) or 'nothing'} in {done.record['seconds']:.1f} s")
    assert mutant.caught_by in failed, f"{mutant.caught_by} should have failed, and these did: {failed}\n{done.err}"
    assert mutant.says in failed[mutant.caught_by]
    assert (done.code, done.record["verdict"]) == (1, "fail")


@pytest.mark.mutants
@pytest.mark.timeout(TIMEOUT_S + 60)
def test_nothing_is_caught_where_nothing_is_broken(tmp_path: Path) -> None:
    """The way in is not what fails."""
    done, processes = broken_smoke("", tmp_path)
    assert (done.code, done.checks("fail"), processes) == (0, {}, [])


def test_every_check_is_tried() -> None:
    """A check that no mutant is for may have stopped to look."""
    assert {mutant.caught_by for mutant in MUTANTS} == CHECKS | {"run"}
