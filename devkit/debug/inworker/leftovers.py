"""What a process may have from before the call that failed: Ray runs the tasks of a job in the same few processes.

So what one task changes in its process (a module's function, the working directory, a seed) stays for the next one.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from types import FrameType, ModuleType
from typing import Any

from .expressions import look, tree_of
from .sources import is_users

MOST = 4  # functions that are named
_NOT_CALLABLE = "'NoneType' object is not callable"


def ran(own: str) -> dict[str, int]:
    """How often this process has run other remote functions than its `own`, by their names; most often first."""
    worker: Any = getattr(sys.modules.get("ray._private.worker"), "global_worker", None)
    try:
        manager = worker.function_actor_manager
        counts = {manager._function_execution_info[key].function_name: n for key, n in _counted(manager)}
    except Exception:  # noqa: BLE001 - Ray keeps this for itself: another version may have it elsewhere
        return {}
    named = {str(name).rpartition(".")[2]: int(n) for name, n in counts.items() if n}
    others = sorted(((name, n) for name, n in named.items() if name != own), key=lambda each: -each[1])
    return dict(others[:MOST])


def _counted(manager: Any) -> list[tuple[Any, Any]]:
    known = manager._function_execution_info
    return [(key, n) for key, n in dict(manager._num_task_executions).items() if key in known and isinstance(n, int)]


def called_in_vain(error: BaseException) -> str:
    """`os.rename`: the name that the line calls and that is None, where that is the error; else empty."""
    if type(error) is not TypeError or str(error) != _NOT_CALLABLE or error.__traceback__ is None:
        return ""
    place = error.__traceback__
    while place.tb_next is not None:
        place = place.tb_next
    frame, line = place.tb_frame, place.tb_lineno
    if not is_users(frame.f_code.co_filename):
        return ""
    _, tree = tree_of(frame.f_code.co_filename)
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call)) if tree else ()
    at_line = (node.func for node in calls if node.lineno <= line <= (node.end_lineno or node.lineno))
    return next((ast.unparse(func) for func in at_line if _is_none(func, frame)), "")


def _is_none(node: ast.expr, frame: FrameType) -> bool:
    return any(value is None for value in _values(node, frame))


def _values(node: ast.expr, frame: FrameType) -> Iterator[Any]:
    """Of what a program calls, a module's function among it."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute):
        owner = next(_values(node.value, frame), look)
        if isinstance(owner, ModuleType):
            yield ModuleType.__getattribute__(owner, "__dict__").get(node.attr, look)
            return
    yield look(node, frame)


__all__ = ["called_in_vain", "ran"]
