"""Measures the machine's pace when tests begin, and gives each test that much more time."""

from __future__ import annotations

import os

import pytest

from tests import pace


def pytest_configure(config: pytest.Config) -> None:
    """Workers, and pytest runs that a run starts, keep what was measured first."""
    if pace.VARIABLE not in os.environ:
        os.environ[pace.VARIABLE] = f"{pace.measured():.2f}"


def pytest_report_header() -> str:
    return f"pace: deadlines are {os.environ[pace.VARIABLE]} times those of two quiet cores"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        mark = item.get_closest_marker("timeout")
        limit = (
            mark.args[0]
            if mark and mark.args
            else (mark.kwargs if mark else {}).get("timeout", config.getini("timeout"))
        )
        if limit:
            item.add_marker(pytest.mark.timeout(pace.stretched(float(limit))), append=False)
