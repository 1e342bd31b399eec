"""What a process may have from before the call that failed: Ray runs the tasks of a job in the same few processes.

So what one task changes in its process (a module's function, the working directory, a seed) stays for the next one.
"""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterator
from types import FrameType, ModuleType
from typing import Any

from . import begun, executed, hits
from .executed import Function
from .expressions import look, nodes_of, own_text, tree_of
from .identity import task_id
from .passing import unframed
from .sources import is_users

KIND = "begun"
MOST = 4  # functions that are named
_NOT_CALLABLE = "'NoneType' object is not callable"


def watch() -> None:
    """In a worker: looks at what there is already as each task begins."""
    executed.watch(KIND, lambda function, name, _kinds: covered(function, name))


def covered(function: Any, name: str) -> Function:
    """A task's function, with a look before each call; what Ray has around a method as it is."""
    if getattr(function, "method", None) is not None:
        return function  # type: ignore[no-any-return]
    own = name.rpartition(".")[2]

    @functools.wraps(function)
    def begins(*arguments: Any, **named: Any) -> Any:
        begun.begins(own, task_id())
        try:
            return function(*arguments, **named)
        except BaseException as error:
            unframed(error)
            raise

    return hits.calls_the_programs(begins)  # type: ignore[no-any-return]


def group() -> str:
    """That there was a process group of torch.distributed before this task began; empty: there was none."""
    if begun.left_group() is None:
        return ""
    distributed: Any = sys.modules["torch.distributed"]
    rank, size = distributed.get_rank(), distributed.get_world_size()
    return (
        "this process had a default process group of torch.distributed before this task began, and has it still: "
        f"it is rank {rank} of {size} in that"
    )


def ran(own: str) -> list[str]:
    """The names of remote functions of which this process has run other tasks: Ray loads one when it is called; of its
    `own` it has had another task.

    Where it has a handle of an actor, Ray keeps that class' methods at the same place, each in a function of Ray's.
    """
    worker: Any = getattr(sys.modules.get("ray._private.worker"), "global_worker", None)
    try:
        known = list(worker.function_actor_manager._function_execution_info.values())
        programs = [each for each in known if not str(getattr(each.function, "__module__", "")).startswith("ray.")]
        names = [str(each.function_name).rpartition(".")[2] for each in programs]
    except Exception:  # noqa: BLE001 - Ray keeps this for itself: another version may have it elsewhere
        return []
    others = dict.fromkeys(name for name in names if name != own)
    return [*([own] if begun.has_run(own, task_id()) else []), *others][:MOST]


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
    calls = nodes_of(tree, ast.Call) if tree else ()
    at_line = (node.func for node in calls if node.lineno <= line <= (node.end_lineno or node.lineno))
    return next((own_text(func, frame.f_code.co_filename) for func in at_line if _is_none(func, frame)), "")


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


__all__ = ["called_in_vain", "group", "ran", "watch"]
