"""Which tests a verb of the Makefile runs, and what becomes of one that fails."""

from __future__ import annotations

import doctest
import json
import os
import re
from pathlib import Path

import pytest

from scripts import test_all
from tests.conftest import LONGEST
from tests.plugins.tiers import MARKED, TIERS

ROOT = Path(__file__).parent.parent
INI = "[pytest]\nmarkers =\n" + "".join(f"  {tier}: it\n" for tier in MARKED) + "addopts = --import-mode=importlib\n"
EACH = "import pytest\ndef test_quick(): pass\n" + "".join(
    f"@pytest.mark.{tier}\ndef test_{tier}(): pass\n" for tier in MARKED
)
# The first of them interrupts who tries it again.
INTERRUPTS = """
import os, pathlib, signal, time
def test_one():
    mark = pathlib.Path(__file__).with_suffix(".mark")
    if mark.exists():
        os.kill(os.getppid(), signal.SIGINT)
        time.sleep(60)
    mark.touch()
    raise AssertionError("the first time")
def test_two(): raise AssertionError("always")
"""
# Fails the first time, and is then remembered by a file beside it.
WEATHER = """
import pathlib
def test_late():
    mark = pathlib.Path(__file__).with_suffix(".mark")
    if not mark.exists():
        mark.touch()
        raise AssertionError("it was late")
"""
ORDER = """
SEEN = []
def test_one(): SEEN.append(1)
def test_two(): assert not SEEN
def test_three(): assert SEEN
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    pytester.makefile(".ini", pytest=INI)
    pytester.makeconftest('pytest_plugins = ["tests.plugins.tiers", "tests.plugins.once_more"]')
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in [name for name in os.environ if name.startswith("PYTEST_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take most of a start's time
    monkeypatch.setenv("PYTEST_PLUGINS", "xdist.plugin")
    return pytester


def run(project: pytest.Pytester, *words: str) -> pytest.RunResult:
    return project.runpytest_subprocess("-p", "no:cacheprovider", "-rA", *words)


@pytest.mark.parametrize("tier", TIERS)
def test_a_tier_runs_its_tests_alone(project: pytest.Pytester, tier: str) -> None:
    project.makepyfile(test_it=EACH)
    done = run(project, f"--tier={tier}")
    done.assert_outcomes(passed=1)
    done.stdout.fnmatch_lines([f"PASSED test_it.py::test_{tier}"])


@pytest.mark.parametrize("workers", ["-n0", "-n2"])
def test_a_named_file_runs_whole(project: pytest.Pytester, workers: str) -> None:
    project.makepyfile(test_it=EACH, test_other=EACH)
    run(project, "--tier=quick", "test_it.py", workers).assert_outcomes(passed=len(TIERS))
    run(project, "--tier=quick", ".", workers).assert_outcomes(passed=2)


def test_tests_that_start_rays_have_as_many_workers_as_there_are_cores(project: pytest.Pytester) -> None:
    """The cores are what is short there: with more workers trainers run beside each other, and are late."""
    project.makepyfile(test_it=EACH)
    count = min(3, len(os.sched_getaffinity(0)))
    done = run(project, "--tier=ray", "-nauto", "--maxprocesses=3")
    done.stdout.fnmatch_lines([f"created: {count}/{count} workers*"])


def test_files_that_take_longest_are_where_they_are_said_to_be() -> None:
    assert [name for name in LONGEST if not (ROOT / "tests" / name).is_file()] == []


def test_weather_is_flaky_and_green(project: pytest.Pytester) -> None:
    project.makepyfile(test_it=WEATHER, test_other="def test_fine(): pass")
    done = run(project, "--once-more", "--counts=counts.json", "-n2")
    assert done.ret == 0
    done.stdout.fnmatch_lines(["*AssertionError: it was late*", "flaky: test_it.py::test_late", "*1 passed, 1 flaky*"])
    counts = json.loads((project.path / "counts.json").read_text())
    assert counts == {
        "passed": 1,
        "flaky": ["test_it.py::test_late"],
        "failed": [],
        "skipped": 0,
        "minutes": counts["minutes"],
    }


def test_without_being_asked_nothing_runs_twice(project: pytest.Pytester) -> None:
    project.makepyfile(test_it=WEATHER)
    assert run(project).ret == 1


def test_what_fails_twice_is_red(project: pytest.Pytester) -> None:
    project.makepyfile(test_it="def test_wrong(): assert 0, 'for ever'", test_other=WEATHER)
    done = run(project, "--once-more", "--counts=counts.json")
    assert done.ret == 1
    done.stdout.fnmatch_lines(["failed again: test_it.py::test_wrong", "*1 failed, 1 flaky*"])
    assert json.loads((project.path / "counts.json").read_text())["failed"] == ["test_it.py::test_wrong"]


def test_who_interrupts_the_tries_still_hears_what_failed(project: pytest.Pytester) -> None:
    project.makepyfile(test_it=INTERRUPTS)
    done = run(project, "--once-more", "--counts=counts.json")
    assert done.ret == 1
    done.stdout.fnmatch_lines(
        [
            "not tried again, interrupted: test_it.py::test_one",
            "not tried again, interrupted: test_it.py::test_two",
            "*2 failed*",
        ]
    )
    assert len(json.loads((project.path / "counts.json").read_text())["failed"]) == 2


def test_what_fails_in_its_order_is_red(project: pytest.Pytester) -> None:
    project.makepyfile(test_it=ORDER)
    done = run(project, "--once-more")
    assert done.ret == 1
    done.stdout.fnmatch_lines(["fails in the order of its file, and passes by itself: test_it.py::test_two"])
    done.stdout.no_fnmatch_line("*test_three*once more*")


def test_an_error_of_a_fixture_is_tried_again(project: pytest.Pytester) -> None:
    fixture = WEATHER.replace("def test_late():", "@pytest.fixture\ndef late():").replace(
        "import pathlib", "import pathlib, pytest"
    )
    project.makepyfile(test_it=fixture + "def test_with(late): pass\n")
    done = run(project, "--once-more")
    assert done.ret == 0
    done.stdout.fnmatch_lines(["flaky: test_it.py::test_with"])


MANY = """
import pathlib, pytest
@pytest.fixture(scope="module")
def cluster():
    mark = pathlib.Path("came_up")
    if not mark.exists():
        mark.touch()
        raise RuntimeError("it did not come up")
@pytest.mark.parametrize("n", range(25))
def test_on_it(cluster, n): pass
"""


def test_a_fixture_that_many_need_is_one_cause(project: pytest.Pytester) -> None:
    project.makepyfile(test_it=MANY)
    done = run(project, "--once-more", "-n1")
    assert done.ret == 0
    done.stdout.fnmatch_lines(["flaky: test_it.py::test_on_it[[]24]", "*25 flaky*"])
    project.makepyfile(test_it=MANY.replace("mark.touch()", "pass"))
    (project.path / "came_up").unlink()
    done = run(project, "--once-more", "-n1")
    assert done.ret == 1
    done.stdout.fnmatch_lines(["failed again: test_it.py::test_on_it[[]0]"])


def test_many_are_no_weather(project: pytest.Pytester) -> None:
    project.makepyfile(test_it="import pytest\n@pytest.mark.parametrize('n', range(21))\ndef test_n(n): assert 0")
    done = run(project, "--once-more")
    assert done.ret == 1
    done.stdout.no_fnmatch_line("*once more*")


def test_the_table_of_all_suites() -> None:
    assert doctest.testmod(test_all) == doctest.TestResults(failed=0, attempted=1)
    verbs = set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text()))
    assert set(test_all.SUITES) <= verbs


def test_each_tier_is_a_suite_of_its_own() -> None:
    verbs = re.findall(r"--tier=([a-z]+)", (ROOT / "Makefile").read_text())
    assert sorted(verbs) == sorted(TIERS)
    assert {f"test-{tier}" for tier in MARKED} <= set(test_all.PYTEST)
