"""Call back when a module has been imported: now, if it is there already."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

from . import threads

Callback = Callable[[Any], object]  # is given the module

_lock = threading.Lock()
_waiting: dict[str, list[Callback]] = {}


def on_import(name: str, callback: Callback) -> None:
    """Calls back once, after the module's body has run and before the importing code goes on.

    So what the callback replaces in the module is also replaced for those who copy it by `from module import name`.
    A callback that raises is reported on stderr and harms nobody.

    >>> on_import("json", lambda module: print(module.__name__))
    json
    """
    with _lock:
        module = sys.modules.get(name)
        if module is None:
            _waiting.setdefault(name, []).append(callback)
            if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
                sys.meta_path.insert(0, _Finder())
            return
    if _is_half_imported(module):
        threads.start(lambda: _when_whole(name, callback), "devkit-import")
    else:
        _call(callback, module)


def _is_half_imported(module: Any) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def _when_whole(name: str, callback: Callback) -> None:
    """Importing a module that another thread imports waits for that thread."""
    import importlib

    try:
        module = importlib.import_module(name)
    except Exception as error:  # noqa: BLE001 - the program's own import failed, and the program is told by Python
        _report(f"{name} could not be imported: {error!r}")
        return
    _call(callback, module)


def _call(callback: Callback, module: Any) -> None:
    try:
        callback(module)
    except Exception as error:  # noqa: BLE001 - keeps the program's import alive: what we patch is never worth failing it
        _report(f"{module.__name__} could not be prepared for debugging: {error!r}")


def _report(message: str) -> None:
    print(f"devkit: {message}", file=sys.__stderr__, flush=True)


class _Finder:
    """Stands first in line, and asks those behind it for the few modules that are waited for."""

    def __init__(self) -> None:
        self._asking = threading.local()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in _waiting or getattr(self._asking, "name", None) == name:
            return None
        self._asking.name = name  # a finder behind us that asks for the same module must not come back to us
        try:
            spec = self._spec_of_others(name, path, target)
        finally:
            self._asking.name = None
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Loader(spec.loader)
        return spec

    def _spec_of_others(self, name: str, path: Any, target: Any) -> Any:
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None and finder is not self else None
            if spec is not None:
                return spec
        return None


class _Loader:
    """The loader that was found, which calls back once the module's body has run."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def create_module(self, spec: Any) -> Any:
        return self._real.create_module(spec)

    def exec_module(self, module: Any) -> None:
        module.__spec__.loader = module.__loader__ = self._real  # the module sees nothing of us
        self._real.exec_module(module)
        with _lock:
            callbacks = _waiting.pop(module.__name__, [])
        for callback in callbacks:
            _call(callback, sys.modules.get(module.__name__, module))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)
