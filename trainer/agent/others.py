"""Environments of others: a library's, by a name that it knows, and an OpenEnv server's, by its address.

    gem:game:Sudoku-v0-easy    gymnasium:games:Guess-v0    openenv+ws://127.0.0.1:8000

A library is imported where environments live, once for all of them. This module needs the standard library only.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SERVER = "openenv+"
GYMNASIUM, GEM, SKYRL = "gymnasium", "gem", "skyrl_gym"


@dataclass(frozen=True)
class Library:
    """`package` is what to install for its module, `lists` a line of Python that prints the names it knows."""

    package: str
    lists: str


LIBRARIES = {  # by the module's name
    GYMNASIUM: Library("gymnasium", "import gymnasium; gymnasium.pprint_registry()"),
    GEM: Library("gem-llm", "import gem; gem.print_envs()"),
    SKYRL: Library("skyrl-gym", "import skyrl_gym; skyrl_gym.pprint_registry()"),
}


class Unknown(Exception):
    """A library that is not installed, a server that is not there, or one without such an environment."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def named(env: str) -> bool:
    """Whether `agent.env` is LIBRARY:ID, or a server.

    >>> named("gem:game:Sudoku-v0-easy"), named("gem:"), named("openenv+ws://127.0.0.1:8000"), named("lake.py:Lake")
    (True, False, True, False)
    """
    library, _, name = env.partition(":")
    return is_server(env) or (library in LIBRARIES and bool(name))


def is_server(env: str | None) -> bool:
    """
    >>> is_server("openenv+ws://127.0.0.1:8000"), is_server("gem:game:Sudoku-v0-easy"), is_server(None)
    (True, False, False)
    """
    return env is not None and env.startswith(SERVER)


def takes_rows(env: str | None) -> bool:
    """Whether its tasks are rows of data files, which it is given whole, and its rewards the run's.

    >>> takes_rows("skyrl_gym:gsm8k"), takes_rows("gem:game:Sudoku-v0-easy"), takes_rows(None)
    (True, False, False)
    """
    return env is not None and env.startswith(f"{SKYRL}:") and named(env)


def addresses(url: str) -> tuple[str, str]:
    """Where sessions of an OpenEnv server begin, and where its schema is. Raises ValueError for what is no URL of one.

    >>> addresses("openenv+ws://127.0.0.1:8000"), addresses("https://host/echo/")
    (('ws://127.0.0.1:8000/ws', 'http://127.0.0.1:8000/schema'), ('wss://host/echo/ws', 'https://host/echo/schema'))
    """
    from trainer.retrieval import http  # and ssl, which other environments' processes can do without

    scheme, _, rest = url.removeprefix(SERVER).partition("://")
    if scheme not in ("ws", "wss", "http", "https") or any(char in rest for char in "?#"):
        raise ValueError("not ws://HOST:PORT")
    safe, rest = "s" if scheme in ("wss", "https") else "", rest.rstrip("/")
    base = f"http{safe}://{rest}"
    try:
        http.split(base)
    except ValueError:
        raise ValueError("not ws://HOST:PORT") from None
    return f"ws{safe}://{rest}/ws", f"{base}/schema"


def load(env: str, given: Mapping[str, Any]) -> Any:
    """What makes environments of the name `env`; `given` is what each is made with. Raises Unknown."""
    if not is_server(env):
        return _of_library(env)
    from trainer.env import openenv  # aiohttp

    return openenv.maker(env, given)


def _of_library(env: str) -> Any:
    library, _, name = env.partition(":")
    known = LIBRARIES[library]
    try:
        module = importlib.import_module(library)
    except Exception as error:
        said = f"agent.env={env} needs the package {known.package}, and import {library} raised {_line(error)}"
        raise Unknown(said, f"pip install {known.package}, on every node") from error
    try:
        make = _make(library, module, name)
    except Exception as error:
        raise Unknown(f"agent.env={env}: {_line(error)}", f"the names it knows: python -c '{known.lists}'") from error
    if library != SKYRL:
        return make
    from trainer.env.skyrl import SkyRL

    return functools.partial(SkyRL, make)


def _make(library: str, module: Any, name: str) -> Any:
    """What makes environments of a name. Raises what the library raises for one that it does not know."""
    if library == GEM:
        if name not in importlib.import_module("gem.envs.registration").ENV_REGISTRY:
            raise LookupError(f"gem has no environment {name}")
        return functools.partial(module.make, name)
    own, colon, identity = name.rpartition(":")
    registers = (
        importlib.import_module(own) if colon else None
    )  # gymnasium's own form: a module that registers the name
    if library == SKYRL:
        if callable(found := getattr(registers, identity, None)):  # SkyRL's `entry_point`, MODULE:CLASS
            spec = importlib.import_module("skyrl_gym.envs.registration").EnvSpec
            return functools.partial(module.make, spec(id=name, entry_point=found))
        return functools.partial(module.make, module.spec(identity))
    module.spec(identity)
    return functools.partial(module.make, name)


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
