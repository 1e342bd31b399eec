"""Which breakpoints concern which file of this process, and from which text they can be compiled."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType, ModuleType

from .finding import Functions, function_behind, path_rank, stacks
from .instrument import Mark
from .records import Breakpoint
from .texts import texts_here


class Aims:
    """Read by all threads, changed under Arming's lock; each change replaces what is read."""

    def __init__(self) -> None:
        self.points: dict[str, Breakpoint] = {}
        self._named: dict[str, dict[str, str]] = {}  # of breakpoints by name: id -> file -> qualname
        self._ranks: dict[str, int] = {}  # the best of its paths that a file here bears
        self._marks: dict[str, tuple[Mark, ...]] = {}  # by file; made when asked for

    def add(self, point: Breakpoint) -> None:
        self.points = {**self.points, point.id: point}
        self._named[point.id] = {}
        self._marks = {}

    def remove(self, name: str) -> None:
        self.points = {each: point for each, point in self.points.items() if each != name}
        self._named.pop(name, None)
        self._ranks.pop(name, None)
        self._marks = {}

    def marks(self, filename: str, module: str = "") -> tuple[Mark, ...]:
        """The breakpoints of a file; `module` is the name under which it is loaded, if that is known."""
        if not self.points:
            return ()
        for point in self.points.values() if module else ():
            if _is_module(point, module, filename) and filename not in self._named.get(point.id, {filename: ""}):
                self._named[point.id][filename] = point.qualname
                self._marks = {}
        found = self._marks.get(filename)
        if found is None:
            found = self._marks[filename] = tuple(self._find(filename))
        return found

    def _find(self, filename: str) -> Iterator[Mark]:
        for point in self.points.values():
            qualname = self._named.get(point.id, {}).get(filename)
            if qualname:
                yield Mark(point.id, 0, qualname, point.condition, point.log)
            elif point.line:
                rank = path_rank(filename, point.paths)
                if rank is not None and rank <= self._ranks.get(point.id, rank):
                    yield Mark(point.id, point.line, "", point.condition, point.log)

    def aim(self, names: Iterable[str], functions: Functions) -> None:
        """Looks for the files that these breakpoints mean: of several whose end fits, those that fit best."""
        filenames = functions.files | {frame.f_code.co_filename for _, frame in stacks()}
        for point in [self.points[name] for name in names if name in self.points]:
            if point.line:
                ranks = [rank for each in filenames if (rank := path_rank(each, point.paths)) is not None]
                if ranks:
                    self._ranks[point.id] = min(ranks)
            else:
                self._named[point.id] = dict(_named(point, functions.all))
        self._marks = {}

    def problem(self, name: str) -> str:
        """Why a breakpoint by name has no file."""
        point = self.points.get(name)
        if point is None or not point.module or point.module not in sys.modules or self._named.get(name):
            return ""
        return f"{point.module} has no function {point.qualname}"

    def texts(self, filename: str, marks: Iterable[Mark], own: Iterable[str] | None = None) -> Iterator[str]:
        """The texts that `filename` may have been made from, and that these breakpoints' lines can be taken from.

        `own` are the versions that this machine has. A file that was found by the end of its name only may be another
        one: for that the breakpoint's own text counts.
        """
        seen: set[str] = set()
        for mark in marks:
            for text in self._texts(self.points.get(mark.id), filename, own):
                if text not in seen:
                    seen.add(text)
                    yield text

    def _texts(self, point: Breakpoint | None, filename: str, own: Iterable[str] | None) -> Iterator[str]:
        if point is None:
            return
        rank = path_rank(filename, point.paths)
        if point.source is None or rank is None or _is_by_whole_name(rank, point):
            yield from texts_here(filename) if own is None else own
        if point.source is not None:
            yield point.source.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def _is_by_whole_name(rank: int, point: Breakpoint) -> bool:
    return rank < len(point.paths) and os.path.isabs(point.paths[rank])


def _named(point: Breakpoint, functions: Iterable[FunctionType]) -> Iterator[tuple[str, str]]:
    """File and qualname of the functions that a breakpoint by name means."""
    qualname = point.qualname.replace("<locals>.", "")
    found = {
        _place(each.__code__)
        for each in functions
        if _is_module(point, each.__module__, each.__code__.co_filename)
        and each.__code__.co_qualname.replace("<locals>.", "") == qualname
    }
    module = sys.modules.get(point.module)
    if not found and isinstance(module, ModuleType):  # it comes from another module, or is inherited, or is a class
        function = _member(module, qualname)
        found = set() if function is None else {_place(function.__code__)}
    yield from found


def _is_module(point: Breakpoint, module: str | None, filename: str) -> bool:
    """Whether a breakpoint by name means this module. A driver's own script is called `__main__` where it runs."""
    if module == "__main__":
        return path_rank(filename, point.paths) is not None
    return bool(module) and module == point.module


def _place(code: CodeType) -> tuple[str, str]:
    return code.co_filename, code.co_qualname


def _member(module: ModuleType, qualname: str) -> FunctionType | None:
    """Asks no object of the program's: a module's `__getattr__` might import half of it."""
    value: object = module
    for name in qualname.split("."):
        value = _static(value, name)
    if isinstance(value, type):
        value = _static(value, "__init__")
    return function_behind(value)


def _static(owner: object, name: str) -> object:
    spaces = [vars(each) for each in type.mro(owner)] if isinstance(owner, type) else [getattr(owner, "__dict__", {})]
    return next((space[name] for space in spaces if name in space), None)
