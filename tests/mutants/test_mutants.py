"""A smoke test that can't fail is worthless: each mistake in the trainer is caught, by the check that names it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.mutants.mutant import OUTCOMES, ROOT, Mutant
from tests.mutants.mutants import BY_NAME, MUTANTS, TOGETHER
from tests.pace import stretched
from tests.smoke.calls import CHECKS, OF_CONVERSATIONS, OF_FILES, Done, smoke

INJECT = Path(__file__).parent / "inject"
TIMEOUT_S = stretched(150.0)  # a run takes 5 to 20 s on an idle machine, depending on how early its mistake shows


def broken_smoke(mutants: Sequence[str], folder: Path) -> tuple[Done, set[str]]:
    """The smoke test with mistakes in it, and those that were imported."""
    applied = folder / "applied"
    paths = [str(INJECT), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    [words] = {BY_NAME[name].words for name in mutants} or {()}
    done = smoke(
        "--json",
        *words,
        timeout_s=TIMEOUT_S,
        PYTHONPATH=os.pathsep.join(paths),
        SMOKE_MUTANTS=",".join(mutants),
        SMOKE_MUTANTS_FILE=str(applied),
    )
    return done, set(applied.read_text().split()) if applied.exists() else set()


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
@pytest.mark.parametrize("names", TOGETHER, ids="+".join)
def test_each_is_caught_by_its_check(names: tuple[str, ...], tmp_path: Path) -> None:
    """And next to nothing else fails: so a check that fails does it for its mutant."""
    mutants = [BY_NAME[name] for name in names]
    done, imported = broken_smoke(names, tmp_path)
    assert imported == set(names), "the others were imported without the mistake"
    failed = done.checks("fail")
    print(f"{', '.join(failed) or 'nothing'} failed in {done.record['seconds']:.1f} s")
    wanted = {mutant.caught_by for mutant in mutants}
    assert wanted <= failed.keys(), f"{wanted - failed.keys()} should have failed, and these did: {failed}\n{done.err}"
    assert failed.keys() <= wanted | {check for mutant in mutants for check in mutant.also} | OUTCOMES, failed
    assert [mutant.name for mutant in mutants if mutant.says not in failed[mutant.caught_by]] == []
    assert (done.code, done.record["verdict"]) == (1, "fail")


@pytest.mark.mutants
@pytest.mark.timeout(TIMEOUT_S + 60)
def test_nothing_is_caught_where_nothing_is_broken(tmp_path: Path) -> None:
    """The way in is not what fails."""
    done, imported = broken_smoke((), tmp_path)
    assert (done.code, done.checks("fail"), imported) == (0, {}, set())


def test_each_mutant_is_tried_once_and_beside_those_of_other_checks() -> None:
    assert sorted(name for names in TOGETHER for name in names) == sorted(BY_NAME)
    for names in TOGETHER:
        checks = [BY_NAME[name].caught_by for name in names]
        assert len(set(checks)) == len(checks), names
        assert len({BY_NAME[name].words for name in names}) == 1, names


def test_every_check_is_tried() -> None:
    """A check that no mutant is for may have stopped to look. Those of the user's own look at nothing of ours."""
    assert {mutant.caught_by for mutant in MUTANTS} == CHECKS - OF_FILES - {"command-settings"} | {
        "run"
    } | OF_CONVERSATIONS
