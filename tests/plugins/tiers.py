"""`--tier`: which tests run, by what they need. A file that is named on the command line runs whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

MARKED = ("ray", "trainer", "verdicts", "walks", "mutants")  # a test with none of them is of the tier `quick`
TIERS = ("quick", *MARKED)
RAYS = ("ray", "trainer", "verdicts", "walks")  # whose tests start Rays, which keep the cores at work


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tiers")
    group.addoption("--tier", choices=(*TIERS, "all"), default="all", help="quick: what needs no Ray of its own")
    group.addoption("--until", metavar="NODEID", help="leave out the tests that come after this one")


def pytest_configure(config: pytest.Config) -> None:
    """xdist's workers read the command line anew, and so see the files that are named in it, too."""
    config.option.named = []
    if config.args_source is pytest.Config.ArgsSource.ARGS:
        config.option.named = [str(file) for word in config.args if (file := _file_of(config, word))]


@pytest.hookimpl(optionalhook=True)  # xdist's
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """For `-n auto`, as many as there are cores where tests start Rays; None: as usual."""
    return len(os.sched_getaffinity(0)) if config.option.tier in RAYS else None


def _file_of(config: pytest.Config, word: str) -> Path | None:
    path = config.invocation_params.dir / word.partition("::")[0]
    return path.resolve() if path.is_file() else None


def tier_of(item: pytest.Item) -> str:
    return next((tier for tier in MARKED if item.get_closest_marker(tier)), "quick")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tier, until = config.option.tier, config.option.until
    named = config.option.named if until is None else []
    keep = [item for item in items if tier in ("all", tier_of(item)) or str(item.path) in named]
    if until is not None:
        keep = keep[: 1 + next((place for place, item in enumerate(keep) if item.nodeid == until), len(keep))]
    if len(keep) < len(items):
        kept = set(keep)
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = keep
