"""What every test can rely on, wherever it runs."""

from __future__ import annotations

import gc
import os
import secrets
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.plugins.tiers import tier_of

# Set before anything imports ray, torch or transformers; what they start inherits it.
for own in ("RAY_ADDRESS", "RAY_NAMESPACE"):  # of whoever runs the tests
    os.environ.pop(own, None)
os.environ.setdefault("RAY_AUTH_MODE", "token")  # unset, Ray would read and write a token file in the home folder
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_prestart_worker_first_driver", "0")  # idle ones, as many as there are slots: none is used
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a test that asks a hub fails at once, on every machine
os.environ.setdefault("OMP_NUM_THREADS", "1")  # the test workers share the cores already

# What a shell starts in the background has Ctrl-C ignored, and what `nohup` starts SIGHUP; and so would have whatever a
# test starts and interrupts.
for each in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(each) == signal.SIG_IGN:
        signal.signal(each, signal.default_int_handler if each == signal.SIGINT else signal.SIG_DFL)

# An example that takes long says something of a busy machine, and nothing of the code.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


# Files that take minutes, the longest first.
LONGEST = (
    "smoke/test_smoke.py",
    "hang/test_ray_own.py",
    "walks/test_pages.py",
    "trainer/test_run.py",
    "walks/test_second_terminal.py",
    "trainer/test_bad_input.py",
    "hang/test_ray_gone.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A file is one worker's, and one that comes last has the others wait: so the longest ones come first.

    After those that are known for it, the ones with the most slow tests.
    """
    slow = Counter(item.path for item in items if tier_of(item) != "quick")
    known = {Path(__file__).parent / name: len(LONGEST) - place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: (-known.get(item.path, 0), -slow[item.path]))


LOOK_AT_OBJECTS = {"debug", "hang"}  # folders of tests
_kept: list[bool] = []


@pytest.fixture(scope="module", autouse=True)
def _older_objects(request: pytest.FixtureRequest) -> None:
    """The collector passes over what was there before a file's tests: a worker has imported millions of objects for all
    of them, and goes through them for a second each time. Not where the tests look at objects themselves."""
    if not LOOK_AT_OBJECTS & {each.name for each in request.path.parents}:
        gc.freeze()
        _kept[:] = [True]
    elif _kept:
        gc.unfreeze()
        _kept.clear()


@pytest.fixture(autouse=True)
def _rays_settings() -> Iterator[None]:
    """What a command run in this process sets for a Ray of its own is not for the tests that come after it."""
    before = _of_ray()
    yield
    for name in _of_ray().keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


def _of_ray() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("RAY_")}
