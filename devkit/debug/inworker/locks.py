"""Which locks the threads of this process wait for, and which they hold: a deadlock is a circle of these.

A lock of Python knows no owner. But a thread that waits for one stands at the instruction that takes it, and one that
holds it stands inside of the `with` that took it; from the instructions the lock itself is found, without running any.
"""

from __future__ import annotations

import dis
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from types import CodeType, FrameType
from typing import Any, NamedTuple

from . import import_locks
from .sources import is_users
from .stacks import asyncio_tasks, awaiting

Document = dict[str, Any]

DEPTH = 60  # frames of a thread that are looked at
_LOCKS = (type(threading.Lock()), type(threading.RLock()))
_OWNER = re.compile(r"owner=(\d+)")
_TAKES = ("acquire", "__enter__")
_ENTERS = ("BEFORE_WITH", "LOAD_SPECIAL")  # how a `with` begins; the second from Python 3.14 on
_LOADS = (
    "LOAD_FAST",
    "LOAD_FAST_CHECK",
    "LOAD_FAST_BORROW",
    "LOAD_GLOBAL",
    "LOAD_NAME",
    "LOAD_DEREF",
    "LOAD_CLASSDEREF",
)
_PASSED = ("PRECALL", "KW_NAMES", "CACHE", "PUSH_NULL", "COPY", "SWAP")
_UNKNOWN = object()


class Place(NamedTuple):
    """A lock, and where in a thread it is taken."""

    lock: Any
    frame: FrameType
    line: int


class Kept(NamedTuple):
    """A lock that a coroutine keeps while it awaits something."""

    place: Place
    thread: int | None  # which runs its event loop
    at: FrameType  # where it awaits


def describe(frames: Mapping[int, FrameType], names: Mapping[int, str]) -> list[Document]:
    """Every thread that waits for a lock: which one, where, and who holds it, as far as that can be told.

    `frames` is each thread's innermost frame by its ident. "kept_at": where a coroutine of this thread's own event loop
    awaits something, and keeps the lock. "what": of one that is no lock of the program's, as `import_locks` has it.
    """
    imports = import_locks.describe(frames, names)
    others = ((ident, frame) for ident, frame in frames.items() if ident not in imports)
    waiting = {ident: place for ident, frame in others if (place := awaited(frame)) is not None}
    if not waiting:
        return list(imports.values())
    held = [(ident, place) for ident, frame in frames.items() for place in holdings(frame)]
    kept = list(_kept())
    return [*imports.values(), *(_document(ident, place, held, kept, names) for ident, place in waiting.items())]


def _kept() -> Iterator[Kept]:
    for task in asyncio_tasks():
        try:
            frames = [] if task.done() else [frame for frame, _ in awaiting(task.get_coro())]
            thread = getattr(task.get_loop(), "_thread_id", None)
        except Exception:  # noqa: BLE001 - a task of somebody's own make: the others are still wanted
            continue
        at = next((frame for frame in frames if is_users(frame.f_code.co_filename)), None)
        if at is not None:
            held = (place for frame in frames for place in (*_held_by_with(frame), *_held_by_acquire(frame)))
            yield from (Kept(place, thread, at) for place in held)


def _document(
    ident: int, place: Place, held: list[tuple[int, Place]], kept: list[Kept], names: Mapping[int, str]
) -> Document:
    owner = _owner(place.lock)
    # What it waits for it does not hold by the same instruction; it may by an outer one, and waits for itself then.
    holders = [(who, at) for who, at in held if at.lock is place.lock and (owner is None or who == owner)]
    if not holders and owner is not None:
        holders = [(owner, None)]  # type: ignore[list-item]
    who, at = holders[0] if holders else (None, None)
    mine = next((each for each in kept if who is None and each.place.lock is place.lock and each.thread == ident), None)
    if mine is not None:  # it goes on when this thread does, which waits for it
        who, at = ident, mine.place
    return {
        "thread": names.get(ident, f"thread {ident}"),
        "lock": _name(place.lock),
        "at": _at(place),
        "holder": None if who is None else names.get(who, f"thread {who}"),
        "held_at": None if at is None else _at(at),
        "call": _outermost(place.frame),
        "kept_at": None if mine is None else _at(Place(None, mine.at, mine.at.f_lineno or 0)),
    }


def _outermost(frame: FrameType | None) -> str:
    """The program's, such as an actor's method."""
    found = ""
    while frame is not None:
        found = frame.f_code.co_qualname if is_users(frame.f_code.co_filename) else found
        frame = frame.f_back
    return found


def holders(wanted: set[str]) -> dict[str, Document]:
    """The threads of this process that hold these locks just now: {lock: {"thread", "at"}}. The asking one has none."""
    if not wanted:
        return {}
    frames, names = innermost("devkit")
    found = {}
    for ident, frame in frames.items():
        for place in holdings(frame):
            if _name(place.lock) in wanted:
                found[_name(place.lock)] = {"thread": names.get(ident, f"thread {ident}"), "at": _at(place)}
    return found


def _name(lock: Any) -> str:
    """The same in a process and in a child that it has forked."""
    return f"{type(lock).__name__} {id(lock):#x}"


def _at(place: Place) -> Document:
    code = place.frame.f_code
    return {"file": code.co_filename, "line": place.line, "function": code.co_qualname}


def awaited(frame: FrameType) -> Place | None:
    """The lock that a thread waits for in its innermost frame, if it is one that is taken just now."""
    if frame.f_code.co_filename == threading.__file__:  # what a condition, an event or a thread's end is made of
        return None
    lock = taken_at(frame)
    if not isinstance(lock, _LOCKS) or not _locked(lock):
        return None
    return Place(lock, frame, frame.f_lineno or 0)


def taken_at(frame: FrameType) -> Any:
    """What a thread takes in its innermost frame just now, if it is something like a lock."""
    instructions = _instructions(frame.f_code)
    at = next((index for index, each in enumerate(instructions) if each.offset == frame.f_lasti), None)
    return None if at is None else _taken(instructions, at, frame)


def holdings(frame: FrameType | None) -> Iterator[Place]:
    """The locks that a thread has taken in any of its frames: by a `with` that it is in, or by `acquire` before."""
    count = 0
    while frame is not None and count < DEPTH:
        if frame.f_code.co_filename != threading.__file__:
            yield from _held_by_with(frame)
            yield from _held_by_acquire(frame)
        frame, count = frame.f_back, count + 1


def holdings_of(frame: FrameType, kind: type) -> Iterator[Place]:
    """The locks of another kind, such as asyncio's, that a frame has taken by `acquire`."""
    yield from _held_by_acquire(frame, (kind,))


def _held_by_with(frame: FrameType) -> Iterator[Place]:
    instructions = _instructions(frame.f_code)
    places = {each.offset: index for index, each in enumerate(instructions)}
    for begin in _open_blocks(frame.f_code, frame.f_lasti, instructions, places):
        at = next((index for index in range(begin - 1, -1, -1) if instructions[index].opname in _ENTERS), None)
        lock = None if at is None else _value(instructions, at - 1, frame)[0]
        if at is not None and isinstance(lock, _LOCKS) and _locked(lock):
            yield Place(lock, frame, _line(instructions, at))


def _open_blocks(code: CodeType, lasti: int, instructions: list[Any], places: Mapping[int, int]) -> list[int]:
    """Where the bodies of the `with` statements begin that the frame is in, as indices of instructions.

    The table of handlers has the innermost one for each instruction; the next one out is the handler's own.
    """
    entries = getattr(dis.Bytecode(code), "exception_entries", ())
    found: list[int] = []
    seen: set[int] = set()
    offset: int | None = lasti
    while offset is not None:
        entry = next((each for each in entries if each.start <= offset < each.end), None)
        if entry is None or entry.target in seen:
            break
        seen.add(entry.target)
        at = places.get(entry.target)
        if at is not None and any(each.opname == "WITH_EXCEPT_START" for each in instructions[at : at + 3]):
            begin = min(each.start for each in entries if each.target == entry.target)
            found += [places[begin]] if begin in places else []
        offset = entry.target
    return found


def _held_by_acquire(frame: FrameType, kinds: tuple[type, ...] = _LOCKS) -> Iterator[Place]:
    """`lock.acquire()` before this place, and no `release` since. In the order of the code: a loop may deceive it."""
    instructions = _instructions(frame.f_code)
    taken: dict[int, Place] = {}
    for index, each in enumerate(instructions):
        if each.offset >= frame.f_lasti:
            break
        if each.opname in ("LOAD_METHOD", "LOAD_ATTR") and each.argval in ("acquire", "release"):
            lock = _value(instructions, index - 1, frame)[0]
            if not isinstance(lock, kinds) or (kinds is _LOCKS and not _locked(lock)):
                continue
            if each.argval == "release":
                taken.pop(id(lock), None)
            elif not _is_call_of(instructions, index, frame.f_lasti) and not _may_fail(instructions, index):
                taken[id(lock)] = Place(lock, frame, _line(instructions, index))
    yield from taken.values()


def _may_fail(instructions: list[Any], index: int) -> bool:
    """Whether `acquire` at this place has a time-out, or is not to wait: it may have come back without the lock."""
    call = next((each for each in instructions[index:] if each.opname.startswith("CALL")), None)
    return call is not None and bool(call.arg)


def _is_call_of(instructions: list[Any], index: int, lasti: int) -> bool:
    """Whether the call at `lasti` is the one of this method: then it is not through yet."""
    call = next((each for each in instructions[index:] if each.opname.startswith("CALL")), None)
    return call is not None and call.offset == lasti


def _taken(instructions: list[Any], at: int, frame: FrameType) -> Any:
    """What the instruction `at` takes, if it takes a lock."""
    if instructions[at].opname in _ENTERS:
        return _value(instructions, at - 1, frame)[0]
    if not instructions[at].opname.startswith("CALL"):
        return None
    for index in range(at - 1, max(-1, at - 12), -1):
        each = instructions[index]
        if each.opname in ("LOAD_METHOD", "LOAD_ATTR") and each.argval in _TAKES:
            return _value(instructions, index - 1, frame)[0]
    return None


def _value(instructions: list[Any], at: int, frame: FrameType) -> tuple[Any, int]:
    """What the instructions up to `at` leave on the stack, and the index of the first of them. Runs nothing."""
    while at >= 0 and instructions[at].opname in _PASSED:
        at -= 1
    if at < 0:
        return _UNKNOWN, at
    each = instructions[at]
    if each.opname in _LOADS:
        return _variable(each.argval, frame), at
    if each.opname == "LOAD_CONST":
        return each.argval, at
    if each.opname in ("LOAD_ATTR", "LOAD_METHOD"):
        owner, start = _value(instructions, at - 1, frame)
        return _attribute(owner, each.argval), start
    if each.opname == "BINARY_SUBSCR":
        key, start = _value(instructions, at - 1, frame)
        owner, start = _value(instructions, start - 1, frame)
        return _item(owner, key), start
    return _UNKNOWN, at


def _variable(name: str, frame: FrameType) -> Any:
    for names in (frame.f_locals, frame.f_globals, frame.f_builtins):
        if name in names:
            return names[name]
    return _UNKNOWN


def _attribute(owner: Any, name: str) -> Any:
    """Without running code of the program's: a property is not asked."""
    own = getattr(owner, "__dict__", None)
    if isinstance(own, Mapping) and name in own:
        return own[name]
    kinds = owner.__mro__ if isinstance(owner, type) else type(owner).__mro__
    return next((vars(kind)[name] for kind in kinds if name in vars(kind)), _UNKNOWN)


def _item(owner: Any, key: Any) -> Any:
    try:
        return owner[key] if type(owner) in (list, tuple, dict) else _UNKNOWN
    except (LookupError, TypeError):
        return _UNKNOWN


def _instructions(code: CodeType) -> list[Any]:
    return list(dis.get_instructions(code))


def _line(instructions: list[Any], at: int) -> int:
    positions = instructions[at].positions
    return int((positions and positions.lineno) or 0)


def _locked(lock: Any) -> bool:
    return " locked " in f" {repr(lock).lstrip('<')} "


def _owner(lock: Any) -> int | None:
    """Only the kind that may be taken twice knows its owner."""
    found = _OWNER.search(repr(lock))
    return int(found[1]) if found and found[1] != "0" else None


def innermost(ours: str) -> tuple[dict[int, FrameType], dict[int, str]]:
    """Each thread's innermost frame and its name, without threads whose name begins with `ours`."""
    names = {ident: each.name for ident, each in dict(getattr(threading, "_active", {})).items()}
    frames = {
        ident: frame for ident, frame in sys._current_frames().items() if not names.get(ident, "").startswith(ours)
    }
    return frames, names
