"""Environments that a library makes by names of its own: `agent.env=LIBRARY:ID`, as `gem:game:Sudoku-v0-easy`.

A library is imported where environments live, once for all of them. This module needs the standard library only.
"""

from __future__ import annotations

import functools
import importlib
from dataclasses import dataclass
from typing import Any

GYMNASIUM, GEM = "gymnasium", "gem"


@dataclass(frozen=True)
class Library:
    """`package` is what to install for its module, `lists` a line of Python that prints the names it knows."""

    package: str
    lists: str


LIBRARIES = {  # by the module's name
    GYMNASIUM: Library("gymnasium", "import gymnasium; gymnasium.pprint_registry()"),
    GEM: Library("gem-llm", "import gem; gem.print_envs()"),
}


class Unknown(Exception):
    """A library that is not installed, or has no such environment; the message says which."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def named(env: str) -> bool:
    """Whether `agent.env` is LIBRARY:ID.

    >>> named("gem:game:Sudoku-v0-easy"), named("gymnasium:games:Guess-v0"), named("gem:"), named("lake.py:Lake")
    (True, True, False, False)
    """
    library, _, name = env.partition(":")
    return library in LIBRARIES and bool(name)


def load(env: str) -> Any:
    """What makes environments of the name `env`, given the settings of one. Raises Unknown."""
    library, _, name = env.partition(":")
    known = LIBRARIES[library]
    try:
        module = importlib.import_module(library)
    except Exception as error:
        said = f"agent.env={env} needs the package {known.package}, and import {library} raised {_line(error)}"
        raise Unknown(said, f"pip install {known.package}, on every node") from error
    try:
        _find(library, module, name)
    except Exception as error:
        raise Unknown(f"agent.env={env}: {_line(error)}", f"the names it knows: python -c '{known.lists}'") from error
    return functools.partial(module.make, name)


def _find(library: str, module: Any, name: str) -> None:
    """Raises what the library raises for a name that it does not know."""
    if library == GEM:
        if name not in importlib.import_module("gem.envs.registration").ENV_REGISTRY:
            raise LookupError(f"gem has no environment {name}")
        return
    own, colon, identity = name.rpartition(":")
    if colon:  # gymnasium's own form: a module that registers the name
        importlib.import_module(own)
    module.spec(identity)


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
