"""Whether a frame that runs may yet make functions of a code object that it holds, or has passed it for good."""

from __future__ import annotations

import opcode
from collections.abc import Iterator
from types import CodeType, FrameType

from .finding import codes_below

_LOAD_CONST, _EXTENDED_ARG = opcode.opmap["LOAD_CONST"], opcode.opmap["EXTENDED_ARG"]
_BACKWARD = frozenset(number for name, number in opcode.opmap.items() if "JUMP_BACKWARD" in name)
_CACHES = 8  # bytes by which a jump's target may be off here: how many inline caches follow it differs with the version


def may_make(frame: FrameType, inner: CodeType) -> bool:
    """`inner` is in the constants of the frame's code, or in those of a function or class that it makes.

    >>> import sys
    >>> def early(): return 1
    >>> def look(): return may_make(sys._getframe(1), early.__code__)
    >>> def outer(again):
    ...     for _ in range(2 if again else 1):
    ...         found = may_make(sys._getframe(), late_code)
    ...         def late(): return 2
    ...     return found, may_make(sys._getframe(), late_code)
    >>> late_code = next(each for each in outer.__code__.co_consts if hasattr(each, "co_name"))
    >>> outer(True)
    (True, False)
    """
    code = frame.f_code
    held = {number for number, each in enumerate(code.co_consts) if isinstance(each, CodeType) and _holds(each, inner)}
    instructions = list(_instructions(code.co_code))
    first = _first_reachable(instructions, frame.f_lasti)
    return any(name == _LOAD_CONST and value in held and at >= first for at, name, value in instructions)


def _holds(code: CodeType, inner: CodeType) -> bool:
    return any(each is inner for each in codes_below(code))


def _instructions(code: bytes) -> Iterator[tuple[int, int, int]]:
    """Offset, operation and argument of each instruction, inline caches among them."""
    extended = 0
    for at in range(0, len(code), 2):
        name, value = code[at], code[at + 1] | extended
        extended = value << 8 if name == _EXTENDED_ARG else 0
        yield at, name, value


def _first_reachable(instructions: list[tuple[int, int, int]], now: int) -> int:
    """How far up the jumps that are ahead, or that those lead to, can take a frame."""
    jumps = [(at, at + 2 - 2 * value - _CACHES) for at, name, value in instructions if name in _BACKWARD]
    first, before = now, now + 1
    while first < before:
        before, first = first, min([first, *(target for at, target in jumps if at >= first)])
    return first
