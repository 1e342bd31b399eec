"""Loops that train, on Python 3.12 and later: `sys.monitoring` tells how each of them begins, and nothing else.

Events are switched on in the code of such loops alone, and off again at the first round: a loop that goes round costs
one call.
"""

from __future__ import annotations

import ast
import dis
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from types import CodeType, ModuleType
from typing import Any, NamedTuple

from . import finding, loading, no_rounds
from .sources import is_users
from .stacks import OURS
from .training_loops import Loop, may

_TOOLS = (5, 3, 4)  # ids without a name of their own; two of them are left to others
_LEFT = 1
MOST = 1000  # codes: a function that is sent with each call is another one each time


class _Branch(NamedTuple):
    """An instruction by which a loop begins."""

    loop: Loop
    over: int  # where it jumps to when there is no round: this offset or behind it
    is_last: bool  # of a condition's; one before it tells only that there is none


class Monitored:
    """Told of code as it comes into this process."""

    def __init__(self) -> None:
        self._monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
        self._branches: dict[int, dict[int, _Branch]] = {}  # by the id of their code
        self._codes: list[CodeType] = []  # of those: an id is another code's when this one is gone
        self._off = self._monitoring.DISABLE
        self._tool = -1
        self._is_over = False
        os.register_at_fork(after_in_child=self.close)

    def came(self, code: CodeType) -> None:
        """A module's or a function's, with all that is in it. Never raises."""
        with suppress(Exception):  # the program goes on, and nothing is known of these loops then
            self._look_in(code)

    def _look_in(self, code: CodeType) -> None:
        name = code.co_filename
        if self._is_over or not is_users(name) or name.startswith(OURS):
            return
        codes = [*finding.codes_below(code)]
        if any(may(no_rounds.names_in(one)) for one in codes):
            for each in codes:
                self._look_at(each)

    def _look_at(self, code: CodeType) -> None:
        if id(code) in self._branches or len(self._codes) >= MOST:
            return
        if (loops := no_rounds.in_code(code)) and (branches := branches_of(code, loops)):
            if self._tool < 0 and not self._begin():
                return
            self._codes.append(code)
            self._branches[id(code)] = branches
            self._monitoring.set_local_events(self._tool, code, self._monitoring.events.BRANCH)

    def _begin(self) -> bool:
        free = [tool for tool in _TOOLS if self._monitoring.get_tool(tool) is None]
        if len(free) <= _LEFT:
            self._is_over = True  # other tools need them more
            return False
        self._tool = free[0]
        self._monitoring.use_tool_id(self._tool, "devkit-rounds")
        self._monitoring.register_callback(self._tool, self._monitoring.events.BRANCH, self._at_branch)
        return True

    def close(self) -> None:
        """Nothing is looked at from now on."""
        self._is_over = True
        if self._tool >= 0:
            for code in self._codes:
                self._monitoring.set_local_events(self._tool, code, 0)
            self._monitoring.register_callback(self._tool, self._monitoring.events.BRANCH, None)
            self._monitoring.free_tool_id(self._tool)
            self._tool = -1
        self._branches.clear()
        self._codes.clear()

    def _at_branch(self, code: CodeType, offset: int, destination: int) -> object:
        try:
            branch = self._branches.get(id(code), {}).get(offset)
            return self._off if branch is None else self._goes(branch, destination)
        except RecursionError:  # at the program's limit there is no room for a look
            return None
        except Exception:  # noqa: BLE001 - keeps the program running: nothing is known of this loop then
            self._branches.get(id(code), {}).pop(offset, None)
            return self._off

    def _goes(self, branch: _Branch, destination: int) -> object:
        frame = sys._getframe(2)
        if destination >= branch.over:
            return None if no_rounds.ended(branch.loop, frame) else self._off
        if not branch.is_last:
            return None
        no_rounds.came_round(branch.loop)
        return self._off


def branches_of(code: CodeType, loops: Iterable[Loop]) -> dict[int, _Branch]:
    """By their offsets, those with which these loops begin."""
    found: dict[int, _Branch] = {}
    instructions = list(dis.get_instructions(code))
    for loop in loops:
        if isinstance(loop.node, ast.For):
            places = {_place(loop.node), _place(loop.node.iter)}
            for each in instructions:
                if each.opname == "FOR_ITER" and _at(each) in places:
                    found[each.offset] = _Branch(loop, each.argval, True)
        else:
            found.update(_of_while(instructions, loop))
    return found


def _of_while(instructions: list[dis.Instruction], loop: Loop) -> dict[int, _Branch]:
    """The jumps before the body: behind it the condition is compiled again."""
    test = loop.node.test if isinstance(loop.node, ast.While) else None
    assert test is not None
    found: list[dis.Instruction] = []
    for each in instructions:
        line, column = _at(each)
        is_within = line is not None and column is not None and _place(test) <= (line, column) < _end(test)
        if is_within and "POP_JUMP" in each.opname:
            found.append(each)
        elif found and line is not None and line >= loop.node.body[0].lineno and not is_within:
            break
    if any(each.opname != "POP_JUMP_IF_FALSE" for each in found):
        return {}
    return {each.offset: _Branch(loop, each.argval, each is found[-1]) for each in found}


def _at(instruction: dis.Instruction) -> tuple[Any, Any]:
    positions = instruction.positions
    return (positions.lineno, positions.col_offset) if positions is not None else (None, None)


def _place(node: ast.stmt | ast.expr) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _end(node: ast.expr) -> tuple[int, int]:
    return node.end_lineno or 0, node.end_col_offset or 0


_monitored: list[Monitored] = []  # at most one


def watch() -> None:
    """Covers what is here, and what comes."""
    if _monitored:
        return
    monitored = Monitored()
    _monitored.append(monitored)
    for code in _here():
        monitored.came(code)
    loading.tell(monitored.came)


def _here() -> list[CodeType]:
    """The code of functions in the program's modules, and of what runs. Codes of two files may be equal."""
    found = [frame.f_code for _, frame in finding.stacks()]
    for name, module in list(sys.modules.items()):
        if not issubclass(type(module), ModuleType):  # it may be anything, and load something when it is asked
            continue
        file = vars(module).get("__file__")
        if name == "__main__" or (isinstance(file, str) and is_users(file) and not file.startswith(OURS)):
            found += [each.__code__ for each in finding.functions_of(module)]
    return found


__all__ = ["Monitored", "branches_of", "watch"]
