"""An attribute that is said to be missing, and is a property: its own AttributeError was lost in `__getattr__`.

Python asks `__getattr__` where a property raises an AttributeError, and forgets that one. `torch.nn.Module` has such a
method, which then names the property itself.
"""

from __future__ import annotations

import re
from types import FunctionType, TracebackType
from typing import Any

from .insides import type_name

_MISSING = re.compile(r"'(?P<kind>\w+)' object has no attribute '(?P<name>\w+)'")


def said(error: BaseException) -> str:
    """Where the property is; "" where the attribute is missing indeed, or nothing is known of it."""
    found = _MISSING.search(str(error)) if type(error) is AttributeError else None
    owner = _owner(error.__traceback__, found["kind"]) if found else None
    if found is None or owner is None:
        return ""
    kept = next((kind.__dict__[found["name"]] for kind in type(owner).__mro__ if found["name"] in kind.__dict__), None)
    get = kept.fget if type(kept) is property else None
    if type(get) is not FunctionType:
        return ""
    code = get.__code__
    return (
        f"{found['name']} is there: a property of {found['kind']}, at {code.co_filename}:{code.co_firstlineno}; an "
        "AttributeError that it raised is lost, since the class has a __getattr__"
    )


def _owner(trace: TracebackType | None, kind: str) -> Any:
    """The object, in the frame in which the error was raised: of its `__getattr__`."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    owner = trace.tb_frame.f_locals.get("self") if trace is not None else None
    is_asked = trace is not None and trace.tb_frame.f_code.co_name == "__getattr__"
    return owner if is_asked and type_name(type(owner)) == kind else None


__all__ = ["said"]
