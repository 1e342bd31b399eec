"""A worker that crashes costs the test that it was running, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.plugins.scheduling import Scheduling

ROOT = Path(__file__).parent.parent
CONFTEST = 'pytest_plugins = ["tests.plugins.scheduling"]\n'
FINE = "def test_fine(): pass\n"
CRASHES = """
import os
def test_before(): pass
def test_crashes(): os._exit(3)
def test_after(): pass
"""


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_run_goes_on_without_the_worker_that_crashed(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, workers: str
) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makeini("[pytest]\naddopts = --import-mode=importlib --dist=loadfile\n")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in [name for name in os.environ if name.startswith("PYTEST_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", "xdist.plugin")
    # Four files are over when it crashes, and four have not been begun.
    pytester.makepyfile(**{f"test_{letter}": FINE for letter in "abcdfghi"}, test_e=CRASHES)
    done = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-n", workers, timeout=120)
    done.stdout.fnmatch_lines(["*crashed while running*test_e.py::test_crashes*"])
    done.assert_outcomes(passed=10, failed=1)


def test_a_worker_that_is_gone_when_it_is_given_more_loses_nothing(pytester: pytest.Pytester) -> None:
    """It crashed a moment ago, and xdist hears of that only after it was told of a test before."""

    class Gone:
        shutting_down = False

        def send_runtest_some(self, indices: list[int]) -> None:
            raise OSError("cannot send (already closed?)")

    scheduling = Scheduling(pytester.parseconfig("--tx=2*popen", "--dist=loadfile"))
    node, file = Gone(), "test_a.py"
    scheduling.add_node(node)
    scheduling.registered_collections[node] = [f"{file}::test_it"]
    scheduling.workqueue[file] = {f"{file}::test_it": False}
    scheduling._assign_work_unit(node)
    assert not scheduling.workqueue
    assert scheduling.remove_node(node) == f"{file}::test_it"
