"""Which environment `agent.env` names: one of the trainer's own, tools, a class in a user's file, a library's.

A user's file is read on the driver and travels as text, so that nodes need no copy of it. Standard library only.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import os
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainer import user_file
from trainer.agent import others
from trainer.agent.tools.bundle import Bundle

SEARCH, SEVERAL = "search", "several"
TOOLS = "tools"  # a user's, as verl's configuration names them: `agent/tools/bundle.py`
BUILT_IN = {  # name -> module, class
    "frozen_lake": ("trainer.env.frozen_lake", "FrozenLake"),
    "roll_frozen_lake": ("trainer.env.roll_frozen_lake", "RollFrozenLake"),
    "sokoban": ("trainer.env.sokoban", "Sokoban"),
    SEVERAL: ("trainer.env.several", "Several"),
    SEARCH: ("trainer.env.search", "Search"),
}
WAITING = frozenset({SEARCH})  # of these, the ones that wait for others: each call has a thread
MODULE = "agent_environment"
CONSTRUCTOR = "its constructor"
METHODS = ("reset", "step")  # and `close`, where there is something to close: GEM's have none


class NoEnvironment(Exception):
    """A file or a library that does not load, or has no such class; the message says which."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True)
class Source:
    """How to make environments. `text` is that of a user's file, or of tools; None of others.

    >>> Source("frozen_lake").built_in, Source("lake.py:Lake").path, Source("lake.py:Lake").class_name
    (True, 'lake.py', 'Lake')
    """

    env: str  # as `agent.env` has it
    text: str | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def built_in(self) -> bool:
        return self.env in BUILT_IN

    @property
    def path(self) -> str:
        return self.env.rpartition(":")[0]

    @property
    def class_name(self) -> str:
        return self.env.rpartition(":")[2]

    @property
    def shown(self) -> str:
        """What its code is called in an error."""
        return self.path if is_file(self.env) else ", ".join(self.files) or self.env

    @property
    def files(self) -> list[str]:
        """The names under which its code is known to tracebacks and debuggers."""
        if self.env == TOOLS:
            return Bundle.of_text(self.text).files if self.text is not None else []
        return [self.file] if is_file(self.env) else []

    @property
    def file(self) -> str:
        return os.path.abspath(os.path.expanduser(self.path))

    def load(self) -> Any:
        """The class, or a function that makes the environment. Raises NoEnvironment."""
        if self.built_in:
            module, name = BUILT_IN[self.env]
            return getattr(importlib.import_module(module), name)
        if self.env == TOOLS and self.text is not None:
            return _with_tools(self.text)
        if others.named(self.env):
            return _of_others(self.env, self.kwargs)
        if self.text is None:
            said, hint = unknown(self.env)
            raise NoEnvironment(f"agent.env={self.env} {said}", hint)
        return _class_in(_module(self.text, self.file, self.path), self.class_name, self.path)

    def raised(self, doing: str, error: BaseException) -> str:
        """What `doing`, a call of an environment or CONSTRUCTOR, came to, in a line."""
        from trainer.agent.contract import told

        if type(error).__name__ == "BdbQuit":
            return f"{doing} stopped in a debugger that has no terminal; agent.isolate=False lets breakpoint() have one"
        said = f"{doing} raised {told(error, self.files)}"
        if doing == CONSTRUCTOR and isinstance(error, TypeError) and not self.built_in:
            said += f"; agent.env_kwargs has {', '.join(self.kwargs) or 'nothing'}"
        return said


def makes_tasks(env: str | None) -> bool:
    """Whether the tasks are seeds of the environment `agent.env`, and its rewards the run's.

    Otherwise they are the rows of data files: without an environment, in search, with tools, and with SkyRL-Gym's.

    >>> makes_tasks("frozen_lake"), makes_tasks(SEARCH), makes_tasks(TOOLS), makes_tasks(None)
    (True, False, False, False)
    """
    return env not in (None, SEARCH, TOOLS) and not others.takes_rows(env)


def scores(env: str | None) -> bool:
    """Whether rewards are what the environment `agent.env` gives, and not a reward function of what was said.

    >>> scores("frozen_lake"), scores("skyrl_gym:gsm8k"), scores(SEARCH), scores(TOOLS), scores(None)
    (True, True, False, False, False)
    """
    return makes_tasks(env) or others.takes_rows(env)


def is_file(env: str) -> bool:
    """Whether `agent.env` names a class in a file.

    >>> is_file("lake.py:Lake"), is_file("frozen_lake"), is_file("lake.py")
    (True, False, False)
    """
    path, _, name = env.rpartition(":")
    return path.endswith(".py") and name.isidentifier()


def unknown(env: str) -> tuple[str, str]:
    """What is wrong with a name that is neither, and what to write instead."""
    if env.endswith(".py"):
        return "is no environment: it names no class of that file", f"write agent.env={env}:CLASS"
    if env.rstrip(":") in others.LIBRARIES:
        library = env.rstrip(":")
        return "is no environment: it names none of that library", f"write agent.env={library}:ID"
    near = difflib.get_close_matches(env, (*BUILT_IN, TOOLS), n=1)
    said = f"did you mean {near[0]}?" if near else f"there is {', '.join((*BUILT_IN, TOOLS))};"
    named = ", ".join(f"{library}:ID" for library in others.LIBRARIES)
    theirs = f"others are {named}, {others.SERVER}ws://HOST:PORT"
    return "is no environment", f"{said} a class in a file of yours is agent.env=FILE.py:CLASS; {theirs}"


def _with_tools(text: str) -> Any:
    from trainer.agent.tools import bundle
    from trainer.env.tools import Tools

    try:
        return functools.partial(Tools, bundle.load(Bundle.of_text(text)))
    except bundle.Broken as error:
        raise NoEnvironment(str(error), error.hint) from error


def _of_others(env: str, kwargs: Mapping[str, Any]) -> Any:
    try:
        return others.load(env, kwargs)
    except others.Unknown as error:
        raise NoEnvironment(str(error), error.hint) from error


def _module(text: str, file: str, shown: str) -> types.ModuleType:
    from trainer.agent.contract import told

    try:
        return user_file.load(text, file, MODULE)
    except (Exception, SystemExit) as error:  # the user's code may raise anything; it is reported, with its cause
        raise NoEnvironment(
            f"{shown} raised while it was loaded: {told(error, [file])}", f"it must load on its own: python {shown}"
        ) from error


def _class_in(module: types.ModuleType, name: str, shown: str) -> Any:
    found = getattr(module, name, None)
    if callable(found) and not isinstance(found, type):
        return found  # a function that makes one, as gymnasium's and GEM's `make`
    if not isinstance(found, type):
        own = [key for key, value in vars(module).items() if isinstance(value, type) and value.__module__ == MODULE]
        raise NoEnvironment(f"{shown} has no class {name}", f"it has {', '.join(own) or 'none'}")
    missing = [method for method in METHODS if not callable(getattr(found, method, None))]
    if missing:
        hint = "an environment has reset(*, seed) and step(action): docs/agents.md"
        if callable(getattr(found, "init", None)):
            hint = f"SkyRL-Gym's, which have init, are agent.env={others.SKYRL}:MODULE:{name}"
        raise NoEnvironment(f"{name} in {shown} has no {' and no '.join(missing)}", hint)
    return found
