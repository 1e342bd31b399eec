"""Evaluates in a frame as if the text stood there: sees and sets its variables, in comprehensions and lambdas too."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

_FILE = "<devkit>"
_WRITES_THROUGH = sys.version_info >= (3, 13)  # PEP 667: `f_locals` is the frame, not a copy of it


class _Scope(dict[str, Any]):
    """The names that a text sees: what it set itself, the frame's variables, its globals.

    It is given as globals and as locals, so that nested scopes find the frame's variables too: for a subclass of dict,
    CPython asks `__getitem__` in both places. A plain name is stored through `__setitem__`, and is the frame's; a
    `global` one is stored in the dictionary itself, past this class.
    """

    def __init__(self, frame: FrameType, extra: dict[str, Any]) -> None:
        super().__init__(__builtins__=frame.f_builtins)
        self._frame = frame
        self._locals = frame.f_locals
        self._extra = extra
        self.assigned: dict[str, Any] = {}
        self.removed: set[str] = set()

    def __missing__(self, name: str) -> Any:
        for names in (self._locals, self._frame.f_globals, self._extra):
            if name in names and name not in self.removed:
                return names[name]
        raise KeyError(name)

    def __setitem__(self, name: str, value: Any) -> None:
        self.assigned[name] = value
        self.removed.discard(name)
        super().__setitem__(name, value)

    def __delitem__(self, name: str) -> None:
        self[name]
        self.removed.add(name)
        self.assigned.pop(name, None)
        super().pop(name, None)

    def settle(self) -> None:
        """Carries what was set over to the frame."""
        for name in list(dict.keys(self)):
            value = dict.__getitem__(self, name)
            if name not in self.assigned and name != "__builtins__":
                self._frame.f_globals[name] = value
        code = self._frame.f_code
        # Code that was compiled with this variable set may use it without a check.
        kept = self.removed.intersection(code.co_varnames + code.co_cellvars + code.co_freevars)
        if self.assigned or self.removed:
            write_locals(self._frame, self.assigned, self.removed - kept)
        if kept:
            raise ValueError(f"{kept.pop()} is a variable of a running function, and can't be deleted")


def evaluate(expression: str, frame: FrameType, *, printed: Callable[[str], None] | None = None) -> Any:
    """The value of an expression, or None after a statement; assignments stay in the frame.

    The last line of several gives the value. What the text itself prints goes to `printed`, where that is given.

    >>> import sys
    >>> scale = 3
    >>> evaluate("[scale * k for k in range(3)]", sys._getframe())
    [0, 3, 6]
    """
    body, last = _compiled(textwrap.dedent(expression).strip())
    extra = {} if printed is None else {"print": _printer(printed)}
    scope = _Scope(frame, extra)
    try:
        if body is not None:
            exec(body, scope, scope)
        return None if last is None else eval(last, scope, scope)
    finally:
        scope.settle()


def _compiled(text: str) -> tuple[CodeType | None, CodeType | None]:
    """The statements, and the expression at the end, if there is one."""
    try:
        return None, compile(text, _FILE, "eval", dont_inherit=True)
    except SyntaxError:
        pass
    import ast

    tree = ast.parse(text, _FILE)
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = compile(ast.Expression(tree.body.pop().value), _FILE, "eval", dont_inherit=True)  # type: ignore[attr-defined]
    return (compile(tree, _FILE, "exec", dont_inherit=True) if tree.body else None), last


def _printer(printed: Callable[[str], None]) -> Callable[..., None]:
    def show(*values: Any, sep: str = " ", end: str = "\n", file: Any = None, flush: bool = False) -> None:
        if file is None:
            printed((sep or "").join(str(value) for value in values) + (end or ""))
        else:
            print(*values, sep=sep, end=end, file=file, flush=flush)

    return show


def assign(target: str, value: Any, frame: FrameType) -> None:
    """Sets what `target` names (a variable, attribute or item) to a value."""
    code = compile(f"{target} = __devkit_value__", _FILE, "exec", dont_inherit=True)
    scope = _Scope(frame, {"__devkit_value__": value})
    exec(code, scope, scope)
    scope.settle()


def write_locals(frame: FrameType, values: dict[str, Any], removed: set[str] | None = None) -> None:
    """Sets variables of a frame, so that its code sees them."""
    names = frame.f_locals
    # A name that the code doesn't know is kept by `f_locals` itself, until the frame ends.
    names.update(values)
    for name in removed or ():
        names.pop(name, None)
    if not _WRITES_THROUGH and names is not frame.f_globals:
        import ctypes

        # Now: whoever asks for `f_locals` again has them read from the frame again.
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
