"""A test that nothing ends is ended, and named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.pace import VARIABLE

ROOT = Path(__file__).parent.parent
# What pytest-timeout raises is swallowed in a destructor, or never comes: SIGALRM is blocked, as a lock within C does.
HANGS = """
import pathlib, signal, threading
def test_fine(): pass
def test_hangs():
    mark = pathlib.Path(__file__).with_suffix(".mark")
    if not mark.exists():
        mark.touch()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
        threading.Event().wait()
def test_after(): pass
"""
CONFTEST = """
from tests.plugins import deadlines
pytest_plugins = ["tests.plugins.tiers", "tests.plugins.once_more", "tests.plugins.deadlines"]
deadlines.OVERTIME_S = 0.2
"""


STRETCHED = """
from tests.pace import stretched
DEADLINE = stretched(1.0)  # when this file is imported
"""
ASKS = """
import os
from tests.pace import VARIABLE
from .conftest import DEADLINE
def test_it(): assert DEADLINE == float(os.environ[VARIABLE]) >= 1
"""


def test_the_pace_is_known_before_a_folder_that_is_named(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makeconftest("import tests.pace\ntests.pace.measured = lambda: 3.0\n" + CONFTEST)
    pytester.makepyfile(**{"inner/__init__": "", "inner/conftest": STRETCHED, "inner/test_it": ASKS})
    monkeypatch.delenv(VARIABLE, raising=False)
    _alone(monkeypatch)
    done = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-n0", "inner/test_it.py")
    done.stdout.fnmatch_lines(["pace: deadlines are 3.00 times *"])
    done.assert_outcomes(passed=1)


def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the pytest that runs this test is that one's."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in [name for name in os.environ if name.startswith("PYTEST_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", "xdist.plugin,pytest_timeout")


def test_what_no_exception_ends_is_named_and_tried_once_more(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makeini("[pytest]\naddopts = --import-mode=importlib\ntimeout = 0.5\n")
    _alone(monkeypatch)
    pytester.makepyfile(test_it=HANGS)
    done = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-n1", "--once-more")
    done.stdout.fnmatch_lines(["*worker 'gw0' crashed while running*test_hangs*", "flaky: test_it.py::test_hangs"])
    done.stderr.fnmatch_lines(["Timeout (*)!", "* in test_hangs"])
    assert done.ret == 0
    done.assert_outcomes(passed=2)
