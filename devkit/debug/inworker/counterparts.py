"""Which lines of a program could end a wait: those that set the event, put into the queue, release the lock, give a
future its result, say that an item is done; under which condition they are, and what that looks at.

Read from the text of the file in which the wait stands, by the name of what is waited for; nothing is run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, NamedTuple

from .expressions import known, look, nodes_of, own_text, short, tree_of, values
from .insides import attributes

MOST = 3  # lines
MOST_KEPT = 200
TEXT = 120  # characters of a condition
VALUES = 4  # of a condition

_FUTURE = "await"
# What waits, what ends that, and how it is said.
_ENDS: dict[str, tuple[frozenset[str], str]] = {
    "wait": (frozenset({"set", "notify", "notify_all"}), "set"),
    "wait_for": (frozenset({"notify", "notify_all"}), "notified"),
    "get": (frozenset({"put", "put_nowait"}), "put into"),
    "put": (frozenset({"get", "get_nowait"}), "taken from"),
    "acquire": (frozenset({"release"}), "released"),
    "join": (frozenset({"task_done"}), "worked off (task_done)"),
    _FUTURE: (frozenset({"set_result", "set_exception"}), "completed"),
}
_UNDOES = {"wait": frozenset({"clear"})}

Document = dict[str, Any]


class _Waited(NamedTuple):
    """`self.idle.wait()`: for what, by the last of its names, and how."""

    text: str
    name: str
    how: str


class _Place(NamedTuple):
    """A call that could end a wait, and the condition that it is under."""

    by: str  # "set"
    line: int
    function: str
    under: ast.expr | None
    owner: str = ""  # "self.idle", as it stands there
    unless: bool = False  # the condition must not hold


_kept: dict[tuple[str, int, str, str], tuple[list[_Place], list[_Place]]] = {}


def of(statement: ast.stmt, frame: FrameType, under_way: Mapping[str, FrameType]) -> Document | None:
    """{"what": "self.idle", "how": "set", "at": [{"line", "function", "under", "unless", "values"}], "undone": [...]}
    of a statement that waits for an object of the program's; None of any other.

    `under` is the condition that it is under, `unless` one that must not hold, as they stand in the file.
    `at` is empty where no line of the file does it; `undone` are the lines that clear an event. `under_way` are frames
    by the names of their functions, in which a condition is looked at; of another function, only what `self` has.
    """
    waited = _waited(statement)
    filename = frame.f_code.co_filename
    size, tree = tree_of(filename)
    if waited is None or tree is None or not _can_be_ended(waited, frame):
        return None
    key = (filename, size, waited.name, waited.how)
    if key not in _kept:
        if len(_kept) >= MOST_KEPT:
            _kept.clear()
        ends, undoes = _ENDS[waited.how][0], _UNDOES.get(waited.how, frozenset())
        _kept[key] = list(_found(tree, waited, ends)), list(_found(tree, waited, undoes))
    places, undone = (_of_this(tree, waited, each, frame) for each in _kept[key])
    if not places and _is_handed_on(tree, waited.name):
        return None
    at = [_document(place, frame, under_way) for place in places[:MOST]]
    return {
        "what": waited.text,
        "how": _how(waited.how, places),
        "at": at,
        "undone": [_document(place, frame, under_way) for place in undone[:MOST]],
    }


def _can_be_ended(waited: _Waited, frame: FrameType) -> bool:
    """Whether the object, if it is known, has one of these methods: nobody sets a barrier, or puts into a result."""
    node = ast.parse(waited.text, mode="eval").body
    value = look(node, frame)
    if waited.how == _FUTURE or not known(value):
        return waited.how != "join"  # a thread's, say
    names = {name for kind in type(value).__mro__ for name in vars(kind)} | {name for name, _ in attributes(value)}
    return not names.isdisjoint(_ENDS[waited.how][0])


def _how(how: str, places: Sequence[_Place]) -> str:
    """An event is set, a condition notified."""
    return "notified" if places and all(place.by.startswith("notify") for place in places) else _ENDS[how][1]


def _document(place: _Place, frame: FrameType, under_way: Mapping[str, FrameType]) -> Document:
    test = place.under
    text = "" if test is None else short(own_text(test, frame.f_code.co_filename), TEXT)
    looked_at = {} if test is None else dict(_looked_at(test, place, frame, under_way))
    how = {"under": "", "unless": text} if place.unless else {"under": text}
    return {"line": place.line, "function": place.function, **how, "values": looked_at}


def _looked_at(
    test: ast.expr, place: _Place, frame: FrameType, under_way: Mapping[str, FrameType]
) -> Iterator[tuple[str, str]]:
    """In the function itself where it is under way, else in one of the same class, which has the same `self`."""
    function = place.function
    own = under_way.get(function)
    if own is not None and _may_come_to(test, place, own):
        yield from values([test], own, VALUES)
    elif "." in function and function.rpartition(".")[0] == frame.f_code.co_qualname.rpartition(".")[0]:
        yield from values([node for node in ast.walk(test) if _is_selfs(node)], frame, VALUES)


def _may_come_to(test: ast.expr, place: _Place, frame: FrameType) -> bool:
    """Whether the call is not past it for good: at another branch it has another call's values."""
    _, tree = tree_of(frame.f_code.co_filename)
    first, line = test.lineno, frame.f_lineno
    if tree is None or line <= (place.line if place.unless else test.end_lineno or first):
        return True
    loops = (*nodes_of(tree, ast.For), *nodes_of(tree, ast.AsyncFor), *nodes_of(tree, ast.While))
    around = ((each.lineno, each.end_lineno or 0) for each in loops if each.lineno >= frame.f_code.co_firstlineno)
    under = ((first, each.body[-1].end_lineno or 0) for each in nodes_of(tree, ast.If) if each.test.lineno == first)
    return any(begin <= first and line <= end for begin, end in (*around, *under))


def _is_selfs(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


def _waited(statement: ast.stmt) -> _Waited | None:
    for node in ast.walk(statement):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _ENDS:
            name = _last(node.func.value)
            text = node.func.attr == "join" and (node.args or node.keywords)  # a queue's takes nothing
            if name and not text and not _is_of_a_library(node.func):
                return _Waited(ast.unparse(node.func.value), name, node.func.attr)
    futures = (node.value for node in ast.walk(statement) if isinstance(node, ast.Await))
    return next((_Waited(ast.unparse(each), _last(each), _FUTURE) for each in futures if _last(each)), None)


def _is_of_a_library(function: ast.Attribute) -> bool:
    """`ray.get`, `dist.wait`, `asyncio.wait`, `os.environ.get`: functions of modules, and dictionaries."""
    return isinstance(function.value, ast.Name) and function.value.id in ("ray", "asyncio", "dist", "os", "concurrent")


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _found(tree: ast.Module, waited: _Waited, methods: frozenset[str]) -> Iterator[_Place]:
    """A future goes from hand to hand: whatever its name is."""
    for node, function, test in _uses(tree.body, "", _ALWAYS):
        if isinstance(node, ast.Attribute):
            if node.attr in methods and (waited.how == _FUTURE or _last(node.value) == waited.name):
                owner = ast.unparse(node.value)
                yield _Place(node.attr, node.lineno, function or "<module>", test.of, owner, test.unless)
        elif "release" in methods:
            own = [each.context_expr for each in node.items if _last(each.context_expr) == waited.name]
            if own:
                owner = ast.unparse(own[0])  # at its end
                yield _Place("release", node.lineno, function or "<module>", test.of, owner, test.unless)


def _of_this(tree: ast.Module, waited: _Waited, places: Sequence[_Place], frame: FrameType) -> list[_Place]:
    """Without those of `self.idle` in another class, if that makes one of its own: it is another object."""
    own = frame.f_code.co_qualname.rpartition(".")[0].rpartition(".")[2]
    if not waited.text.startswith("self.") or waited.how == _FUTURE or not own:
        return list(places)
    classes = {each.name: each for each in nodes_of(tree, ast.ClassDef)}
    bases = {ast.unparse(base) for each in classes.values() if each.name == own for base in each.bases}
    return [
        each
        for each in places
        if each.owner != waited.text
        or (kind := each.function.rpartition(".")[0].rpartition(".")[2]) in {own, *bases}
        or kind not in classes
        or own in {ast.unparse(base) for base in classes[kind].bases}
        or not _makes(classes[kind], waited.text)
    ]


def _makes(kind: ast.ClassDef, text: str) -> bool:
    """`self.idle = threading.Event()` in one of its methods."""
    return any(
        isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and text in map(ast.unparse, node.targets)
        for node in ast.walk(kind)
    )


def _is_handed_on(tree: ast.Module, name: str) -> bool:
    """Whether it is given to somebody else, who may call it by another name: as an argument, say."""
    own = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    own |= {id(each.context_expr) for node in ast.walk(tree) if isinstance(node, _WITHS) for each in node.items}
    named = (node for node in ast.walk(tree) if isinstance(node, ast.Name | ast.Attribute) and _last(node) == name)
    return any(isinstance(node.ctx, ast.Load) and id(node) not in own for node in named)


_WITHS = (ast.With, ast.AsyncWith)
_Use = ast.Attribute | ast.With | ast.AsyncWith


class _Test(NamedTuple):
    """A condition, and whether it must not hold."""

    of: ast.expr | None
    unless: bool = False


_ALWAYS = _Test(None)


def _uses(body: Sequence[ast.AST], function: str, test: _Test) -> Iterator[tuple[_Use, str, _Test]]:
    """Each method that is called or handed on, as `call_soon_threadsafe(done.set)` does, and each `with`; the function
    that it stands in, as Python names that, and the innermost condition that it is under: of an `if` around it, or of
    one before it that leaves.
    """
    for node in body:
        if isinstance(node, _Use):
            yield node, function, test
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _uses(node.body, f"{function}.{node.name}".lstrip("."), _ALWAYS)
        elif isinstance(node, ast.If):
            yield from _uses([node.test], function, test)
            yield from _uses(node.body, function, _Test(node.test))
            yield from _uses(node.orelse, function, _Test(node.test, unless=True))
            test = _Test(node.test, unless=True) if _leaves(node.body) and not node.orelse else test
        else:
            for part in _parts(node):
                yield from _uses(part, function, test)


def _parts(node: ast.AST) -> Iterator[list[ast.AST]]:
    """What is inside of a node; a block of statements by itself, so that what leaves it holds to its end only."""
    for _, value in ast.iter_fields(node):
        if isinstance(value, ast.AST):
            yield [value]
        elif isinstance(value, list):
            yield [each for each in value if isinstance(each, ast.AST)]


def _leaves(body: Sequence[ast.stmt]) -> bool:
    return isinstance(body[-1], ast.Return | ast.Continue | ast.Break | ast.Raise)


__all__ = ["of"]
