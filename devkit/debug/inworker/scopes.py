"""Evaluates in a frame as if the text stood there: sees and sets its variables, in comprehensions and lambdas too."""

from __future__ import annotations

import ast
import builtins
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from types import CodeType, FrameType
from typing import Any

from .conditions import mangle, with_outer_names

_FILE = "<devkit>"
_WRITES_THROUGH = sys.version_info >= (3, 13)  # PEP 667: `f_locals` is the frame, not a copy of it
_OPTIMIZED = 0x01  # a flag of code: its variables are not in a dictionary
_OWN_SCOPE = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class Scope(dict[str, Any]):
    """The names that a text sees: the frame's variables, its globals, what the debugger adds.

    It is given as globals and as locals, so that nested scopes find the frame's variables too: for a subclass of dict,
    CPython asks `__getitem__` in both places. A plain name is stored through `__setitem__`, and is the frame's. Three
    things pass this class by, and use the dictionary that it is itself: a `global` name is stored there, and so is one
    that `:=` sets in a comprehension; and the body of a class looks names up there.
    """

    def __init__(self, frame: FrameType, text: _Text | None = None, extra: Mapping[str, Any] | None = None) -> None:
        self._frame, self._globals = frame, frame.f_globals
        is_copy = bool(frame.f_code.co_flags & _OPTIMIZED)
        self._around = with_outer_names(frame) if frame.f_code.co_name.endswith(("comp>", "genexpr>")) else {}
        self.names: dict[str, Any] = dict(frame.f_locals) if is_copy else frame.f_locals  # what `locals()` gives
        self._before = dict(self.names) if is_copy else None
        self._text = text or _NO_TEXT
        self._given = {"__builtins__": frame.f_builtins, "__name__": frame.f_globals.get("__name__", "")}
        if self._text.has_class:
            self._given = {**self._globals, **self.names, **self._given}
        self._given |= {name: self._globals[name] for name in self._text.declared if name in self._globals}
        super().__init__(self._given)
        self._extra = {**_of_method(frame, self), **(extra or {})}
        self._extra |= {"locals": self._locals, "vars": self._vars, "globals": lambda: self._globals}

    # ---- how names are looked up and set

    def __getitem__(self, name: str) -> Any:
        if self._is_stored(name):
            return super().__getitem__(name)
        spaces = (
            (self._globals,) if name in self._text.declared else (self.names, self._around, self._globals, self._extra)
        )
        for names in spaces:
            if name in names:
                return names[name]
        if name in self._given:
            return self._given[name]
        raise KeyError(name)

    def _is_stored(self, name: str) -> bool:
        """Whether the text itself has put it into this dictionary."""
        if not dict.__contains__(self, name):
            return False
        return name not in self._given or dict.__getitem__(self, name) is not self._given[name]

    def __setitem__(self, name: str, value: Any) -> None:
        super().pop(name, None)
        self.names[name] = value

    def __delitem__(self, name: str) -> None:
        if super().pop(name, _NOTHING) is _NOTHING or name in self.names:
            del self.names[name]

    # ---- for `dir()`, and for who comes by it as by a frame's `f_locals`

    def keys(self) -> Any:
        return self.names.keys()

    def values(self) -> Any:
        return self.names.values()

    def items(self) -> Any:
        return self.names.items()

    def get(self, name: str, default: Any = None) -> Any:
        try:
            return self[name]
        except KeyError:
            return default

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        return self._is_stored(name) or any(
            name in each for each in (self.names, self._around, self._globals, self._given)
        )

    def __repr__(self) -> str:
        return repr(self.names)

    def _locals(self) -> Any:
        return self._of(sys._getframe(1))

    def _vars(self, *given: Any) -> Any:
        return vars(*given) if given else self._of(sys._getframe(1))

    def _of(self, frame: FrameType) -> Any:
        """A function that the text makes has variables of its own."""
        found = frame.f_locals
        return self.names if found is self else found

    # ---- the end

    def settle(self) -> None:
        """Carries what was set over to the frame. Raises `ValueError` for a variable that can't be deleted."""
        self._carry_globals()
        if self._before is None:
            return
        changed = {
            name: value
            for name, value in self.names.items()
            if name not in self._before or value is not self._before[name]
        }
        removed = self._before.keys() - self.names.keys()
        code = self._frame.f_code
        # Code that was compiled with this variable set may use it without a check.
        kept = removed.intersection(code.co_varnames + code.co_cellvars + code.co_freevars)
        if changed or removed:
            write_locals(self._frame, changed, removed - kept)
        if kept:
            raise ValueError(f"{kept.pop()} is a variable of a running function, and can't be deleted")

    def _carry_globals(self) -> None:
        for name in list(dict.keys(self)):
            if self._is_stored(name):
                is_global = name in self._text.declared or name not in self._text.walrus
                (self._globals if is_global else self.names)[name] = dict.__getitem__(self, name)
        for name in self._given.keys() & self._text.declared:
            if not dict.__contains__(self, name):
                self._globals.pop(name, None)

    def let_go(self) -> None:
        """A function that the text has left in the program keeps the names that it uses alive, and no frame."""
        self.names = {name: self.names[name] for name in self._text.inner_names if name in self.names}
        self._before, self._extra, self._around = None, {}, {}
        self._given = {name: value for name, value in self._given.items() if name in _ALWAYS}
        for name in list(dict.keys(self)):
            if name not in _ALWAYS:
                super().pop(name)
        del self._frame


class _Text:
    """A text that was compiled, and what of it concerns the scope it runs in."""

    def __init__(self, text: str, class_name: str, *, expression: bool) -> None:
        tree = _parsed(textwrap.dedent(text).strip(), expression=expression)
        mangle(tree, class_name)
        nodes = list(ast.walk(tree))
        self.has_class = any(isinstance(node, ast.ClassDef) for node in nodes)
        self.declared = {name for node in nodes if isinstance(node, ast.Global) for name in node.names}
        self.walrus = {name for node in nodes if isinstance(node, _OWN_SCOPE) for name in _walrus(node)}
        self.body, self.last = _compiled(tree)
        codes = [code for code in (self.body, self.last) if code is not None]
        self.inner_names = {name for code in codes for inner in _nested(code) for name in inner.co_names}


class _NoText:
    has_class = False
    declared: frozenset[str] = frozenset()
    walrus: frozenset[str] = frozenset()
    inner_names: frozenset[str] = frozenset()


_NO_TEXT: Any = _NoText()
_NOTHING = object()
_ALWAYS = frozenset({"__builtins__", "__name__"})


def evaluate(
    text: str,
    frame: FrameType,
    *,
    printed: Callable[[str], None] | None = None,
    expression: bool = False,
    also: Mapping[str, Any] | None = None,
) -> Any:
    """The value of an expression, or None after a statement; assignments stay in the frame.

    The last line of several gives the value. What the text itself prints goes to `printed`, where that is given. With
    `expression` no statement is taken. `also` are names that the text may use, where the program has none of the kind.

    >>> import sys
    >>> scale = 3
    >>> evaluate("[scale * k for k in range(3)]", sys._getframe())
    [0, 3, 6]
    """
    compiled = _Text(text, class_around(frame.f_code), expression=expression)
    extra = {**(also or {}), **({} if printed is None else {"print": _printer(printed)})}
    scope = Scope(frame, compiled, extra)
    try:
        if compiled.body is not None:
            exec(compiled.body, scope, scope)
        return None if compiled.last is None else eval(compiled.last, scope, scope)
    finally:
        try:
            scope.settle()
        finally:
            scope.let_go()


def _parsed(text: str, *, expression: bool) -> ast.Module | ast.Expression:
    try:
        return ast.parse(text, _FILE, "eval")
    except SyntaxError:
        if expression:
            raise
    return ast.parse(text, _FILE)


def _compiled(tree: ast.Module | ast.Expression) -> tuple[CodeType | None, CodeType | None]:
    """The statements, and the expression at the end, if there is one."""
    if isinstance(tree, ast.Expression):
        return None, compile(tree, _FILE, "eval", dont_inherit=True)
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = compile(ast.Expression(tree.body.pop().value), _FILE, "eval", dont_inherit=True)  # type: ignore[attr-defined]
    return (compile(tree, _FILE, "exec", dont_inherit=True) if tree.body else None), last


def _walrus(node: ast.AST) -> Iterator[str]:
    """What `:=` sets in a comprehension: it is for whoever holds that."""
    for each in ast.walk(node):
        if isinstance(each, ast.NamedExpr) and isinstance(each.target, ast.Name):
            yield each.target.id


def _nested(code: CodeType) -> Iterator[CodeType]:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each
            yield from _nested(each)


def class_around(code: CodeType) -> str:
    """The class whose private names are mangled in a function, by its qualified name.

    >>> class A:
    ...     def f(self): return lambda: 1
    >>> class_around(A.f.__code__), class_around(A().f().__code__), class_around(class_around.__code__)
    ('A', 'A', '')
    """
    parts = code.co_qualname.split(".")
    classes = [part for part, after in pairwise(parts) if "<locals>" not in (part, after)]
    return classes[-1] if classes else ""


def _of_method(frame: FrameType, scope: Scope) -> dict[str, Any]:
    """`__class__`, and a `super()` that needs no arguments, of the method that a frame is of."""
    code = frame.f_code
    if not code.co_argcount or "super" in frame.f_globals:
        return {}
    first = scope.names.get(code.co_varnames[0], _NOTHING)
    name, kind = code.co_qualname.rpartition(".")[0], first if isinstance(first, type) else type(first)
    module = frame.f_globals.get("__name__")
    owners = (each for each in type.mro(kind) if (each.__qualname__, each.__module__) == (name, module))
    owner = scope.names.get("__class__") or next(owners, None)
    if owner is None or first is _NOTHING:
        return {}

    def parent(*given: Any) -> Any:
        caller = sys._getframe(1)
        if given:
            return super(*given)
        if "__class__" in caller.f_code.co_freevars:  # a method of a class that the text makes
            inner = caller.f_locals
            return super(inner["__class__"], inner[caller.f_code.co_varnames[0]])
        return super(owner, first)

    return {"__class__": owner, "super": parent}


def _printer(printed: Callable[[str], None]) -> Callable[..., None]:
    def show(*values: Any, sep: str = " ", end: str = "\n", file: Any = None, flush: bool = False) -> None:
        if file is None:
            printed((sep or "").join(str(value) for value in values) + (end or ""))
        else:
            builtins.print(*values, sep=sep, end=end, file=file, flush=flush)

    return show


def assign(target: str, value: Any, frame: FrameType) -> None:
    """Sets what `target` names (a variable, attribute or item) to a value."""
    code = compile(f"{target} = __devkit_value__", _FILE, "exec", dont_inherit=True)
    scope = Scope(frame, extra={"__devkit_value__": value})
    try:
        exec(code, scope, scope)
        scope.settle()
    finally:
        scope.let_go()


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
