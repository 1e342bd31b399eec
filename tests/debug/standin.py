"""Ray's own sources can be imported where what they need is not installed: any such package is there, and empty.

For processes of their own only: `install()` is for good.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from typing import Any, ClassVar

PACKAGES = (
    *("starlette", "uvicorn", "fastapi", "grpc_reflection", "watchfiles", "async_timeout"),  # Ray Serve
    *("vllm", "openai", "jsonref", "transformers"),  # for LLMs
    *("gymnasium", "scipy", "tree", "dm_tree", "ormsgpack", "lz4"),  # RLlib
    "cupy",  # collective groups
)


class _Kind(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _kind(name)

    def __or__(cls, other: Any) -> Any:
        return cls

    def __ror__(cls, other: Any) -> Any:
        return cls

    def __getitem__(cls, item: Any) -> Any:
        return cls


def _kind(name: str) -> Any:
    """A class that can be made, called as a decorator, and asked for anything."""
    return _Kind(
        name,
        (),
        {
            "__init__": lambda self, *arguments, **named: None,
            "__call__": lambda self, *arguments, **named: arguments[0] if arguments else None,
            "__getattr__": lambda self, name: _kind(name),
        },
    )


class _Module(types.ModuleType):
    __path__: ClassVar[list[str]] = []
    __version__ = "1.0.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, _kind(name))
        return getattr(self, name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, packages: tuple[str, ...]) -> None:
        self._packages = packages

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] in self._packages:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> Any:
        return _Module(spec.name)

    def exec_module(self, module: Any) -> None:
        pass


def install() -> None:
    missing = tuple(each for each in PACKAGES if importlib.util.find_spec(each) is None)
    sys.meta_path.append(_Finder(missing))
