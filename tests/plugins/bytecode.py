"""What tests start finds the packages compiled, where Python writes no bytecode by itself (PYTHONDONTWRITEBYTECODE).

Else each of some thousand processes compiles all that it imports anew, which takes half of its time. Only the packages,
which nobody changes meanwhile: of a module that a test writes twice in a second Python would take the first bytecode.
"""

from __future__ import annotations

import compileall
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGES = ("devkit", "trainer")


def pytest_configure(config: pytest.Config) -> None:
    if sys.dont_write_bytecode and not hasattr(config, "workerinput"):
        for name in PACKAGES:  # what is up to date is left; a folder that cannot be written stays without
            compileall.compile_dir(Path(__file__).parents[2] / name, quiet=2)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """And what is collected: the next run in this folder, and a test that is tried once more, rewrite no assertion."""
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, False
    try:
        return (yield)
    finally:
        sys.dont_write_bytecode = before
