"""How a time-out is lifted, by the way in which it is read: whoever loaded its module first, and whoever set it.

Each way is told the module and what makes a longer limit of a limit. What another version of a library does not have is
left out without a word.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from .passing import unframed

MARK = "__devkit_raised__"

Raised = Callable[[Any], Any]  # a limit as it would be -> as it shall be


class Lift(Protocol):
    @property
    def module(self) -> str: ...

    def apply(self, module: Any, raised: Raised) -> None: ...


@dataclass(frozen=True)
class Constant:
    """Read once, when its module is imported; others may have copied it by `from module import NAME`."""

    module: str
    name: str

    def apply(self, module: Any, raised: Raised) -> None:
        before = vars(module).get(self.name)
        after = raised(before)
        if after != before:
            for holder in [module, *_copies(self.module, self.name, before)]:
                setattr(holder, self.name, after)


@dataclass(frozen=True)
class Attribute:
    """Taken by a class when an object of it is made: from a variable, a default, or what the program gave."""

    module: str
    owner: str
    names: tuple[str, ...]
    live: str = ""  # the name in the module of an object that may be there already

    def apply(self, module: Any, raised: Raised) -> None:
        owner = getattr(module, self.owner, None)
        original: Any = getattr(owner, "__init__", None)
        if owner is None or hasattr(original, self._mark):
            return

        @functools.wraps(original)
        def init(this: Any, *arguments: Any, **named: Any) -> None:
            original(this, *arguments, **named)
            self._raise(this, raised)

        setattr(init, self._mark, True)
        owner.__init__ = init
        there = getattr(module, self.live, None) if self.live else None
        if there is not None:
            self._raise(there, raised)

    @property
    def _mark(self) -> str:
        return MARK + "".join(self.names)  # several limits may be of one class

    def _raise(self, this: Any, raised: Raised) -> None:
        for name in self.names:
            before = getattr(this, name, None)
            after = raised(before)
            if after != before:
                setattr(this, name, after)


@dataclass(frozen=True)
class Property:
    """Asked for at each use, of something that the program has set."""

    module: str
    owner: str
    name: str

    def apply(self, module: Any, raised: Raised) -> None:
        owner = getattr(module, self.owner, None)
        original = vars(owner).get(self.name) if owner is not None else None
        if isinstance(original, property) and not hasattr(original.fget, MARK):
            asked: Any = original.fget

            @functools.wraps(asked)
            def longer(this: Any) -> Any:
                return raised(asked(this))

            setattr(longer, MARK, True)
            setattr(owner, self.name, property(longer))


@dataclass(frozen=True)
class Argument:
    """Handed to a function or method, or its default."""

    module: str
    function: str  # NAME, or CLASS.NAME
    parameter: str

    def apply(self, module: Any, raised: Raised) -> None:
        owner, name, found = _found(module, self.function)
        original = getattr(found, "__func__", found)  # of a classmethod
        if original is None or hasattr(original, MARK):
            return
        signature = inspect.signature(original)
        if self.parameter not in signature.parameters:
            return

        @functools.wraps(original)
        def wrapper(*arguments: Any, **named: Any) -> Any:
            given = signature.bind(*arguments, **named)
            given.apply_defaults()
            given.arguments[self.parameter] = raised(given.arguments[self.parameter])
            try:
                return original(*given.args, **given.kwargs)
            except BaseException as error:
                unframed(error)
                raise

        setattr(wrapper, MARK, True)
        after = type(found)(wrapper) if isinstance(found, (classmethod, staticmethod)) else wrapper
        for holder in [owner, *(_copies(self.module, name, original) if owner is module else ())]:
            setattr(holder, name, after)


@dataclass(frozen=True)
class Written:
    """A number in the middle of a function: no variable and no argument changes it."""

    module: str
    function: str
    number: int

    def apply(self, module: Any, raised: Raised) -> None:
        _, _, found = _found(module, self.function)
        function = inspect.unwrap(found) if callable(found) else None
        code = getattr(function, "__code__", None)
        if function is None or code is None or [each for each in code.co_consts if self._is(each)] == []:
            return
        constants = tuple(raised(each) if self._is(each) else each for each in code.co_consts)
        function.__code__ = code.replace(co_consts=constants)

    def _is(self, constant: object) -> bool:
        return type(constant) is int and constant == self.number


@dataclass(frozen=True)
class ByHand:
    """What needs more than this."""

    module: str
    callback: Callable[[Any], None]

    def apply(self, module: Any, raised: Raised) -> None:
        self.callback(module)


def _found(module: Any, path: str) -> tuple[Any, str, Any]:
    """(holder, name, what is there) of a function NAME or CLASS.NAME: as it is stored, so a classmethod as such."""
    owner, _, name = path.rpartition(".")
    holder = getattr(module, owner, None) if owner else module
    return holder, name, vars(holder).get(name) if holder is not None else None


def _copies(module: str, name: str, value: Any) -> list[Any]:
    """The modules of the same package that copied it before we came."""
    package = ".".join(module.split(".")[:2]) + "."
    return [
        each
        for path, each in list(sys.modules.items())
        if path.startswith(package) and getattr(each, "__dict__", {}).get(name) is value
    ]
