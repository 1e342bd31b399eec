"""How code comes into this process after a breakpoint was set: by import, and by unpickling a function by value.

What is replaced in Python's and cloudpickle's modules does as before until a breakpoint asks for a file.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from types import CodeType
from typing import Any, Protocol
from zipimport import zipimporter

from .imports import on_import

_PICKLERS = ("ray.cloudpickle.cloudpickle", "cloudpickle.cloudpickle")
_IMPORT_FILE = "<frozen importlib._bootstrap_external>"  # Python leaves frames of this file out of tracebacks


class Loads(Protocol):
    """Who is asked for each code object that comes in or goes out. None of these may raise."""

    def imported(self, module: str, code: CodeType, loader: Any) -> CodeType: ...

    def unpickled(self, code: CodeType, module: str) -> CodeType: ...

    def original(self, code: CodeType) -> CodeType: ...


_asked: list[Loads] = []
_told: list[Callable[[CodeType], object]] = []


def install(loads: Loads) -> None:
    """From now on `loads` is asked, and nobody else."""
    _asked[:] = [loads]
    _prepare()


def tell(call: Callable[[CodeType], object]) -> None:
    """From now on, of the code of each module and function as it will run. It must not raise."""
    _told.append(call)
    _prepare()


def _prepare() -> None:
    if not hasattr(SourceFileLoader.get_code, "devkit"):
        for loader in (SourceFileLoader, zipimporter):  # both ask themselves for the code of a module
            loader.get_code = _asking_get_code(loader.get_code)  # type: ignore[method-assign]
        for name in _PICKLERS:
            on_import(name, _prepare_pickler)


def uninstall(loads: Loads) -> None:
    if loads in _asked:
        _asked.remove(loads)


def _asking_get_code(original: Callable[..., CodeType | None]) -> Any:
    def get_code(self: Any, fullname: str) -> CodeType | None:
        code = original(self, fullname)
        if code is not None:
            for loads in _asked:
                code = loads.imported(fullname, code, self)
            for call in _told:
                call(code)
        return code

    get_code.__code__ = get_code.__code__.replace(co_filename=_IMPORT_FILE)
    get_code.devkit = True  # type: ignore[attr-defined]
    return functools.wraps(original)(get_code)


def _prepare_pickler(pickle: Any) -> None:
    """Functions made from a pickle get their breakpoints; what is pickled has none: who reads it may lack us."""
    make, extract = pickle._make_function, pickle._extract_code_globals
    table = pickle.Pickler._dispatch_table
    reduce = table[CodeType]

    @functools.wraps(make)
    def make_function(code: CodeType, namespace: dict[str, Any], *rest: Any) -> Any:
        for loads in _asked:
            code = loads.unpickled(code, str(namespace.get("__name__", "")))
        for call in _told:
            call(code)
        return make(code, namespace, *rest)

    @functools.wraps(extract)
    def extract_code_globals(code: CodeType) -> Any:
        return extract(_original(code))

    def reduce_code(code: CodeType) -> Any:
        return reduce(_original(code))

    pickle._make_function, pickle._extract_code_globals = make_function, extract_code_globals
    table[CodeType] = reduce_code


def _original(code: CodeType) -> CodeType:
    for loads in _asked:
        return loads.original(code)
    return code
