"""The debugger's cluster, for tests of hangs and first errors. Those on a real Ray: `make test-hosts`."""

from __future__ import annotations

import os

from tests.debug.conftest import cluster, launch

__all__ = ["cluster", "launch"]

collect_ignore = (
    []
    if os.environ.get("DEVKIT_TEST_HANGS")
    else [
        "test_ray_hangs.py",
        "test_ray_first_error.py",
        "test_ray_calls.py",
    ]
)
