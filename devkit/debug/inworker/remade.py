"""Why an exception of a task cannot be made again by who awaits it: its class, what it wants, and what would work.

Looks at classes, and runs none of the program's code.
"""

from __future__ import annotations

import dis
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from types import CodeType, FunctionType
from typing import Any

from .sources import is_users

_UNREAD = "UnserializableException"  # Ray's, in place of an exception that could not be unpickled
_RAISED = re.compile(
    r'  File "[^\n]*", line \d+, in [^\n]*\n(?:[ \t][^\n]*\n)*([A-Za-z_][\w.<>]*)(?::|$)', re.MULTILINE
)
_BY_NAME = "those by name through functools.partial"
_ANOTHER = "catch it where it is raised, and raise an exception of your own in its place"


@dataclass(frozen=True)
class Wants:
    """What the `__init__` of an exception's class has to be given."""

    by_place: tuple[str, ...]
    by_name: tuple[str, ...]
    most: int | None  # that it takes by place; None: any number
    passes: bool  # whether its `args` are what it passes to super().__init__, as far as its code tells
    sets: bool  # whether it may set its `args` itself
    kept: dict[str, str] = field(default_factory=dict)  # what has its arguments afterwards, by their names: "self.tool"
    may: tuple[str, ...] = ()  # what it may be given by place, behind those


def remade(error: BaseException) -> str:
    """Why an exception that a task raised could not be made again here; empty where it is not that, or not known.

    Ray has its text alone. Classes of that name are looked for among all that this process has: unpickling has made
    what it could not use.
    """
    if type(error).__name__ != _UNREAD:
        return ""
    raised = _RAISED.findall(str(error))
    said = {_why(each) for each in _called(raised[-1])} if raised else set()
    return said.pop() if len(said) == 1 else ""  # two classes of one name: which of them is not known


def _why(kind: type) -> str:
    wants = _wants(kind)
    if wants is None or (not wants.by_name and (len(wants.by_place) < 2 or wants.sets)):
        return ""  # the message is what nearly all pass on
    return f"{_made_again(kind, wants)}; {_remedy(kind, wants)}"


def lost_on_the_way(error: BaseException) -> str:
    """Why nobody else can make this exception again; empty where nothing is known against that.

    Who awaits the task gets an error of Ray's in its place, which no `except` of its class catches.
    """
    kind, given = type(error), len(error.args)
    wants = _wants(kind)
    if wants is None:
        return ""
    too_many = wants.most is not None and given > wants.most
    if not wants.by_name and len(wants.by_place) <= given and not too_many:
        return ""
    instead = f"who awaits it gets an error of Ray's in its place, which no `except {kind.__name__}` catches"
    return f"{_made_again(kind, wants, given if too_many else 0)}: {instead}; {_remedy(kind, wants)}"


def _made_again(kind: type, wants: Wants, too_many: int = 0) -> str:
    which = (
        "that it passed to super().__init__" if wants.passes and not wants.sets and not too_many else "in its `args`"
    )
    names = (*wants.by_place, *(f"{name} by name" for name in wants.by_name))
    wanted = f"wants {len(names)}: {', '.join(names)}" if names else "wants none"
    if too_many:
        arguments = f"the {too_many} argument{'s' * (too_many > 1)} {which}"
        wanted = f"takes {wants.most or 'none'} by place" if names else "takes none"
        return f"{kind.__name__} is made again with {arguments}, and its own __init__ {wanted}"
    return f"{kind.__name__} is made again with the arguments {which}, and its own __init__ {wanted}"


def _remedy(kind: type, wants: Wants) -> str:
    """What is to be changed, in the program's own code.

    >>> late = type("Late", (Exception,), {"__module__": "__main__"})
    >>> _remedy(late, Wants(("message",), ("status",), 1, True, False, {"message": "self.args[0]", "status": "self.s"}))
    'define a __reduce__ that returns all of them, those by name through functools.partial: `functools.partial(Late, \
status=self.s), (self.args[0],)`'
    >>> _remedy(late, Wants(("tool", "code"), (), 2, True, False, {"tool": "self.tool"}))
    'define a __reduce__ that returns all of them, with code kept as an attribute: `Late, (self.tool, self.code)`'
    """
    if not _is_the_programs(kind):
        return _ANOTHER
    name = kind.__name__
    if not wants.by_place and not wants.by_name:
        return f"define a __reduce__ that returns what it takes: `{name}, ()`"
    given = [wants.kept.get(each, f"self.{each}") for each in wants.by_place]
    given += [wants.kept[each] for each in takewhile(wants.kept.__contains__, wants.may)]
    places = f"({', '.join(given)}{',' * (len(given) == 1)})"
    how = [_BY_NAME] if wants.by_name else []
    if missing := [each for each in (*wants.by_place, *wants.by_name) if each not in wants.kept]:
        as_what = "as an attribute" if len(missing) == 1 else "as attributes"
        how.append(f"with {' and '.join(filter(None, (', '.join(missing[:-1]), missing[-1])))} kept {as_what}")
    what = f"define a __reduce__ that returns all of them{''.join(f', {each}' for each in how)}"
    if not wants.by_name:
        return f"{what}: `{name}, {places}`"
    names = ", ".join(f"{each}={wants.kept.get(each, f'self.{each}')}" for each in wants.by_name)
    return f"{what}: `functools.partial({name}, {names}), {places}`"


def _wants(kind: Any) -> Wants | None:
    """None where it is not known, and where the class says itself how it is pickled, or somebody else does."""
    if kind.__reduce__ is not BaseException.__reduce__ or kind.__reduce_ex__ is not object.__reduce_ex__:
        return None
    if kind.__module__.partition(".")[0] == "ray" or _is_registered(kind):
        return None  # Ray's own see to that, some by setting `args`
    own: Any = next((each.__dict__["__init__"] for each in kind.__mro__ if "__init__" in each.__dict__), None)
    if type(own) is not FunctionType:
        return None
    code, defaults = own.__code__, own.__kwdefaults__ or {}
    by_place = code.co_varnames[1 : code.co_argcount - len(own.__defaults__ or ())]
    by_name = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    most = None if code.co_flags & 0x04 else code.co_argcount - 1  # *args
    names = code.co_names
    by_name = tuple(each for each in by_name if each not in defaults)
    may = code.co_varnames[1 + len(by_place) : code.co_argcount]
    return Wants(by_place, by_name, most, "__init__" in names, "args" in names, _kept(code), may)


def _kept(code: CodeType) -> dict[str, str]:
    """What an `__init__` keeps its arguments in: `self.tool = tool`, or `args` where that is all that it passes on.

    Also an attribute of an argument's name that is set to something else, as to `int(code)`.
    """
    own, *arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] if code.co_argcount else ("",)
    found: dict[str, str] = {}
    before: list[str] = []  # what was loaded last; empty: another instruction
    called, sets = False, "args" in code.co_names
    for each in dis.get_instructions(code):
        if each.opname == "STORE_ATTR" and before and before[-1] == own:
            if len(before) > 1 and before[-2] in arguments:
                found.setdefault(before[-2], f"self.{each.argval}")
            elif each.argval in arguments:
                found.setdefault(each.argval, f"self.{each.argval}")
        is_all = called and each.opname == "CALL" and each.arg == 1 and len(before) == 1
        if is_all and before[0] in arguments and not sets:
            found.setdefault(before[0], "self.args[0]")
        if each.opname.startswith("LOAD_FAST"):
            before += each.argval if isinstance(each.argval, tuple) else (each.argval,)
        elif each.opname not in ("PRECALL", "RESUME", "CACHE"):
            before = []
            called = each.argval == "__init__" or "__init__" in (each.argval if isinstance(each.argval, tuple) else ())
    return found


def _is_registered(kind: type) -> bool:
    """Whether `ray.util.register_serializer` or copyreg has been given a way to pickle it."""
    rays = getattr(sys.modules.get("ray.cloudpickle"), "CloudPickler", None)
    tables = (getattr(rays, "dispatch", None), getattr(sys.modules.get("copyreg"), "dispatch_table", None))
    return any(isinstance(table, dict) and kind in table for table in tables)


def _is_the_programs(kind: type) -> bool:
    """Whether a class is no library's. One whose module is not here was sent whole, as only the program's are."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return kind.__module__ == "__main__" or file is None or is_users(file)


def _called(name: str) -> list[type]:
    """The classes of exceptions that a traceback would call so, else those with the same last name."""
    last = name.rpartition(".")[2]
    alike = [each for each in _exceptions() if each.__name__ == last]
    return [each for each in alike if name in _names(each)] or alike


def _names(kind: type) -> tuple[str, str]:
    return f"{kind.__module__}.{kind.__qualname__}", kind.__qualname__ if kind.__module__ == "__main__" else ""


def _exceptions() -> Iterator[type]:
    seen: set[type] = set()
    waiting: list[type] = [Exception]
    while waiting:
        each = waiting.pop()
        if each not in seen:
            seen.add(each)
            yield each
            waiting += type.__subclasses__(each)


__all__ = ["lost_on_the_way", "remade"]
