"""What a function does where an exception has brought it: only a handler that can go on without it may catch it.

`finally`, the exit of a `with` and what Python itself puts into comprehensions, coroutines and behind each handler come
first, and most of them only pass it on. On 3.12 and later `sys.monitoring` says "handled" of each of these.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from types import CodeType
from typing import NamedTuple

PASSES, EXIT, CATCHES = "passes", "exit", "catches"
MOST = 500  # places that are kept
_DEEPEST = 20  # handlers in handlers
_ENDS = frozenset(
    {
        *("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"),
        *("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"),
    }
)
_JUMPS = frozenset({*dis.hasjrel, *dis.hasjabs})


class Landing(NamedTuple):
    """What is at a place to which an exception may bring a function.

    PASSES: the exception goes on in any case; EXIT: it does unless the exit of a `with` has returned true; CATCHES: the
    function may go on without it.
    """

    kind: str
    branch: int = -1  # of EXIT, the instruction that decides it
    over: int = -1  # at this instruction or behind it the function goes on without the exception


_known: dict[tuple[int, int], tuple[CodeType, Landing]] = {}  # an id is another code's once that is gone


def landing(code: CodeType, offset: int) -> Landing:
    """Of the instruction at which the function goes on."""
    known = _known.get((id(code), offset))
    if known is None:
        if len(_known) >= MOST:
            _known.clear()
        known = _known[id(code), offset] = code, _looked_at(code, offset)
    return known[1]


def landing_from(code: CodeType, offset: int) -> Landing | None:
    """Of an exception that comes from this instruction; None: it leaves the function."""
    targets = [target for start, end, target in _guarded(code) if start <= offset < end]
    return landing(code, targets[0]) if targets else None


def branches(code: CodeType) -> frozenset[int]:
    """The instructions that decide whether the exit of a `with` has ended an exception."""
    every = (landing(code, target) for _, _, target in _guarded(code))
    return frozenset(each.branch for each in every if each.kind == EXIT)


def is_passing(code: CodeType, offset: int) -> bool:
    """Whether the instruction is of what follows an exception that only passes it, or may: a `finally`, an exit."""
    return offset in _passing(code)


@lru_cache(maxsize=64)
def _passing(code: CodeType) -> frozenset[int]:
    every, after = _instructions(code)
    targets = {target for _, _, target in _guarded(code) if landing(code, target).kind != CATCHES}
    return frozenset(each for target in targets for each in _ahead(every, after, target))


def _ahead(every: dict[int, dis.Instruction], after: dict[int, int], offset: int) -> Iterator[int]:
    """The instructions of a handler, without those to which an exception of its own may lead."""
    seen: set[int] = set()
    ahead = [offset]
    while ahead:
        at = ahead.pop()
        if at in seen or at not in every:
            continue
        seen.add(at)
        yield from range(at, after.get(at, at + 2), 2)  # with its caches: in a call, a frame stands in one of them
        if every[at].opname != "POP_EXCEPT":
            ahead += _next(every[at], after)


def _looked_at(code: CodeType, offset: int) -> Landing:
    every, after = _instructions(code)
    if offset not in every or every[offset].opname != "PUSH_EXC_INFO":
        return Landing(PASSES)
    if (start := after.get(offset)) is not None and every[start].opname == "WITH_EXCEPT_START":
        decides = next((each for each in every if each > start and every[each].opname.startswith("POP_JUMP")), None)
        return Landing(EXIT, decides, every[decides].argval) if decides is not None else Landing(PASSES)
    return Landing(CATCHES if _goes_on(code, every, after, offset) else PASSES)


def _instructions(code: CodeType) -> tuple[dict[int, dis.Instruction], dict[int, int]]:
    """By their offsets, in order; and the offset of the next one."""
    every = {each.offset: each for each in dis.get_instructions(code)}
    return every, dict(pairwise(every))


def _goes_on(code: CodeType, every: dict[int, dis.Instruction], after: dict[int, int], offset: int) -> bool:
    """Whether a way leads out of the handler other than an exception. Handlers within it are among the ways."""
    guarded = list(_guarded(code))
    seen: set[tuple[int, int]] = set()
    ahead = [(offset, 0)]
    while ahead:
        here = at, depth = ahead.pop()
        if here in seen or at not in every:
            continue
        seen.add(here)
        name = every[at].opname
        if name == "PUSH_EXC_INFO":
            depth = min(_DEEPEST, depth + 1)
        elif not depth:
            if name != "RERAISE":
                return True
            continue
        else:
            ahead += [(target, depth) for start, end, target in guarded if start <= at < end]
            depth -= name == "POP_EXCEPT"
        ahead += [(each, depth) for each in _next(every[at], after)]
    return False


def _next(one: dis.Instruction, after: dict[int, int]) -> Iterator[int]:
    if one.opcode in _JUMPS:
        yield one.argval
    if one.opname not in _ENDS and one.offset in after:
        yield after[one.offset]


def _guarded(code: CodeType) -> Iterator[tuple[int, int, int]]:
    """(start, end, where it goes on) of each run of instructions whose exceptions do not leave the function at once."""
    numbers = _numbers(code.co_exceptiontable)
    for start in numbers:
        length, target, _ = next(numbers), next(numbers), next(numbers)
        yield 2 * start, 2 * (start + length), 2 * target


def _numbers(table: bytes) -> Iterator[int]:
    """Six bits of each byte, the highest first; another bit says that more follow."""
    value = 0
    for byte in table:
        value = value << 6 | byte & 63
        if not byte & 64:
            yield value
            value = 0


__all__ = ["CATCHES", "EXIT", "PASSES", "Landing", "branches", "is_passing", "landing", "landing_from"]
