"""Attacks of other users are tried where they have to be: a gate without root is not green."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plugins import users

ROOT = Path(__file__).parents[1]
INI = "[pytest]\nmarkers =\n  needs_root: becomes another user\n"
ONE = "import pytest\n@pytest.mark.needs_root\ndef test_attack(): pass\ndef test_other(): pass\n"


@pytest.mark.parametrize(
    ("root", "environ", "outcome"),
    [
        (False, {}, {"skipped": 1}),
        (False, {"CI": "true"}, {"errors": 1}),
        (False, {"CI": "true", users.VARIABLE: "0"}, {"skipped": 1}),
        (False, {users.VARIABLE: "1"}, {"errors": 1}),
        (True, {"CI": "true"}, {}),
    ],
)
def test_without_root_they_fail_where_nobody_would_see_that_they_were_skipped(
    root: bool,
    environ: dict[str, str],
    outcome: dict[str, int],
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("CI", users.VARIABLE, "PYTEST_ADDOPTS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(users, "is_root", lambda: root)
    pytester.makefile(".ini", pytest=INI)
    pytester.makepyfile(ONE)
    found = pytester.runpytest_inprocess("-p", "tests.plugins.users", "-p", "no:cacheprovider")
    found.assert_outcomes(passed=1 if outcome else 2, **outcome)


def test_the_gate_asks_for_them_as_root_and_else_says_so() -> None:
    gate = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert (
        f"export {users.VARIABLE}=${{{users.VARIABLE}:-$(" in gate and "not run by root: attacks of other users" in gate
    )


def test_nothing_that_becomes_another_user_is_skipped_in_another_way() -> None:
    folders = [ROOT / "tests" / name for name in ("security", "debug")]
    files = [file for folder in folders for file in folder.glob("*.py")]
    ways = ("getuid() != 0, reason", "geteuid() != 0, reason")
    assert [file.name for file in files if any(way in file.read_text(encoding="utf-8") for way in ways)] == []
