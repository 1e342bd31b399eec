"""What of a program lives in this process: its functions, its frames, and the text that they were made from."""

from __future__ import annotations

import gc
import operator
import os
import re
import sys
from collections.abc import AsyncGenerator, Coroutine, Generator, Iterator, Sequence
from functools import lru_cache
from itertools import chain, compress
from types import (
    AsyncGeneratorType,
    CellType,
    CodeType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    ModuleType,
)
from typing import Any

Suspendable = Generator[Any, Any, Any] | Coroutine[Any, Any, Any] | AsyncGenerator[Any, Any]
_SUSPENDABLE: dict[type, str] = {GeneratorType: "gi_frame", CoroutineType: "cr_frame", AsyncGeneratorType: "ag_frame"}

# Older than any code of the program. Python 3.12 freezes a few hundred objects itself, so their number says nothing.
_OLD = os.makedirs
_FROZEN = gc.get_freeze_count()

_who = object.__hash__  # of another object another number, which is made from its address

_UNPACKED = re.compile(r"/(?:working_dir_files|py_modules_files)/_ray_pkg_[0-9a-f]+/")


class Functions:
    """All functions that are in this process now. Takes about 70 ms per million objects."""

    def __init__(self) -> None:
        found = instances(FunctionType)
        if _OLD not in found:  # the program has called `gc.freeze`: the collector doesn't show all of them
            known = set(map(id, found))
            found += [each for each in _in_modules() if id(each) not in known]
        self.all: list[FunctionType] = found
        self._names: list[str] = list(map(operator.attrgetter("__code__.co_filename"), found))
        self.files = set(self._names)

    def of(self, filename: str) -> list[FunctionType]:
        """Those that come from one file."""
        return list(compress(self.all, map(filename.__eq__, self._names)))


def module_files() -> set[str]:
    """The files of all modules; a module need not have functions."""
    modules = [vars(each) for each in list(sys.modules.values()) if isinstance(each, ModuleType)]
    return {name for each in modules if isinstance(name := each.get("__file__"), str) and name.endswith(".py")}


def suspended() -> list[Suspendable]:
    """All generators and coroutines that aren't done. Those that run just now are on a stack, too."""
    return [each for each in instances(*_SUSPENDABLE) if frame_of(each) is not None]


def instances(*kinds: type) -> list[Any]:
    """Every object of exactly one of these types, but for what the program has frozen.

    Must be a single call into C, during which no other thread runs: a reference of ours to a tuple that `tuple(...)` is
    still filling in another thread would make that raise SystemError, in the middle of the program.
    """
    every: list[Any] = []
    # Types by who they are: they may have a hash of the program's own. Not by `id`, each call of which goes through the
    # audit hooks of the process, functions of Python such as filelock's.
    wanted = frozenset(map(_who, kinds))
    steps = chain(
        map(every.extend, map(gc.get_objects, (None,))),
        compress(every, map(wanted.__contains__, map(_who, map(type, every)))),
        map(list.clear, (every,)),
    )  # nothing of it happens before the list below is made
    was_enabled = gc.isenabled()
    gc.disable()  # a collection would call finalizers of the program
    try:
        return list(steps)[1:-1]  # the first and the last step give None
    finally:
        if was_enabled:
            gc.enable()


def sees_all() -> bool:
    """Whether what `instances` finds is all there is: what a program has frozen, the collector doesn't show."""
    return gc.get_freeze_count() in (0, _FROZEN)  # 0: `gc.unfreeze` has taken Python's own back, too


def frame_of(each: Suspendable) -> FrameType | None:
    frame: FrameType | None = getattr(each, _SUSPENDABLE[type(each)])
    return frame


def stacks() -> Iterator[tuple[int, FrameType]]:
    """Each frame of each thread, innermost first, with its thread's id."""
    for thread, top in sys._current_frames().items():
        frame: FrameType | None = top
        while frame is not None:
            yield thread, frame
            frame = frame.f_back


def function_behind(value: object) -> FunctionType | None:
    """The function that a user means by a name: under decorators, properties, methods and Ray's wrappers."""
    for _ in range(32):
        if isinstance(value, FunctionType) and not hasattr(value, "__wrapped__"):
            return value
        inner = next((found for name in _WRAPS if (found := _attribute(value, name)) is not None), None)
        if inner is None:
            return value if isinstance(value, FunctionType) else None
        value = inner
    return None


_WRAPS = ("__wrapped__", "fget", "__func__", "func", "_function")


def _attribute(value: object, name: str) -> object:
    try:
        return getattr(value, name, None)
    except Exception:  # noqa: BLE001 - an object of the program's that doesn't like to be asked is not what is looked for
        return None


def functions_of(module: ModuleType) -> Iterator[FunctionType]:
    """Those that can be reached by a module's names; of what it has imported, too."""
    return _below(list(vars(module).values()), set())


def _in_modules() -> Iterator[FunctionType]:
    seen: set[int] = set()
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType):
            yield from _below(list(vars(module).values()), seen)


def _below(values: list[Any], seen: set[int]) -> Iterator[FunctionType]:
    while values:
        value = values.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        kind = type(value)  # `isinstance` would ask the object, which may be one that warns or loads something
        if kind is FunctionType:
            yield value
            values += [_contents(cell) for cell in value.__closure__ or ()]
            values.append(value.__dict__.get("__wrapped__"))
        elif issubclass(kind, type):
            values += list(vars(value).values())
        elif issubclass(kind, staticmethod | classmethod):
            values.append(value.__func__)
        elif issubclass(kind, property):
            values += [value.fget, value.fset, value.fdel]


def _contents(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        return None  # it is empty


# ---- files


def path_rank(filename: str, paths: Sequence[str]) -> int | None:
    """Which of the names in `paths`, best first, the file of a code object bears.

    Their number says that it is in a folder that Ray has unpacked, and bears there the end of one of them: the user's
    own path, where `ray.init` uploads the folder, or another file.

    >>> path_rank("/tmp/pkg_1/trainer/ppo.py", ("/home/me/trainer/ppo.py", "trainer/ppo.py"))
    1
    >>> path_rank("/tmp/s/working_dir_files/_ray_pkg_0f3a/trainer/ppo.py", ("/home/me/trainer/ppo.py",))
    1
    >>> path_rank("/tmp/pkg_1/retrainer/ppo.py", ("trainer/ppo.py",)) is None
    True
    """
    if not any(filename.endswith(os.path.basename(path)) for path in paths):
        return None
    name = _real(filename)
    for rank, path in enumerate(paths):
        if os.path.isabs(path):
            if filename == path or (os.path.basename(name) == os.path.basename(path) and name == _real(path)):
                return rank
        elif ("/" + filename.replace("\\", "/")).endswith("/" + os.path.normpath(path).replace("\\", "/")):
            return rank
    uploaded = _UNPACKED.split(filename, maxsplit=1)
    if len(uploaded) == 2 and any(os.path.isabs(path) and path.endswith("/" + uploaded[1]) for path in paths):
        return len(paths)
    return None


@lru_cache(maxsize=4096)
def _real(path: str) -> str:
    return path if path.startswith("<") else os.path.realpath(path)


def codes_below(code: CodeType) -> Iterator[CodeType]:
    """This code object and all that it holds."""
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from codes_below(each)
