"""Tests that need root: without it they are skipped, and in CI, where nobody reads what was skipped, they fail.

`needs_root` marks them. DEVKIT_TESTS_ROOT=0 says that they may be left out in CI, too, and 1 that nowhere they may.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import pytest

VARIABLE = "DEVKIT_TESTS_ROOT"
MARK = "needs_root"
REASON = "only root can be another user"


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker(MARK) is None or is_root():
        return
    if must_run(os.environ):
        pytest.fail(f"{REASON}; {VARIABLE}=0 leaves out what such a user may do", pytrace=False)
    pytest.skip(REASON)


def is_root() -> bool:
    return hasattr(os, "getuid") and os.getuid() == 0


def must_run(environ: Mapping[str, str]) -> bool:
    """
    >>> must_run({}), must_run({"CI": "true"}), must_run({"CI": "true", "DEVKIT_TESTS_ROOT": "0"})
    (False, True, False)
    """
    return (environ.get(VARIABLE) or environ.get("CI") or "0") not in ("0", "false")
