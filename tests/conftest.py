"""What every test can rely on, wherever it runs."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# Set before anything imports ray, torch or transformers; what they start inherits it.
os.environ.setdefault("RAY_AUTH_MODE", "token")  # unset, Ray would read and write a token file in the home folder
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a test that asks a hub fails at once, on every machine
os.environ.setdefault("OMP_NUM_THREADS", "1")  # the test workers share the cores already

# An example that takes long says something of a busy machine, and nothing of the code.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


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
