"""Which loops of a file train, by their text: what is called in them, and what they go through."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

from .expressions import counts, nodes_of
from .read_behind import inside

RANGE, LOADER, NAMED, WHILE = (
    "range",
    "loader",
    "named",
    "while",
)  # kinds of loops; of NAMED its value tells which it is

Loops = ast.For | ast.While
Function = ast.FunctionDef | ast.AsyncFunctionDef
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

_SURE = frozenset(
    {"backward", "manual_backward", "learn", "fit", "optimize", "minimize", "apply_gradient", "apply_gradients"}
)
_STEP = re.compile(r"^(optim\w*|ppo|grpo|policy|actor|critic|learner|gradient|grad)_step$")
_UPDATE = re.compile(
    r"^update_(actor|critic|polic(y|ies)|models?|weights?|param(eter)?s?|networks?|agent|learner|minibatch|mini_batch)$"
)
_LEARNER = re.compile(
    r"(agent|policy|actor|critic|learner|model|trainer|algo|algorithm|ppo|engine|_wg)$", re.IGNORECASE
)
_STEPPER = re.compile(r"(optim\w*|opt|engine|learner|trainer)$", re.IGNORECASE)
_OWNED = {"step": _STEPPER, "update": _LEARNER, "train": re.compile("")}  # that train only what is called like this
_ASKING = frozenset({"get", "is", "has", "log", "print", "load", "make", "build", "set", "init", "save", "create"})
_NOT_TRAINING = frozenset(
    {"loader", "dataloader", "data", "dataset", "test", "split", "size", "mode", "config", "args", "metrics", "log"}
    | {"logs", "logger", "state", "start", "end", "done", "finished"}
)
_LOADER = re.compile(r"(data_?)?loaders?$|dataset$|train_data$", re.IGNORECASE)
_NO_LOADER = re.compile(r"(^|_)(val|valid|validation|eval|evaluation|test|dev)(_|$)", re.IGNORECASE)
_BATCHES = re.compile(r"^iter_\w*batch|^iter_rows$")
_AROUND = frozenset({"enumerate", "tqdm", "iter", "islice", "zip", "track", "cycle"})
_RANGES = frozenset({"range", "trange"})
_STEPS = re.compile(r"(^|_)(step|update|iteration|epoch|train|optimize|advance)($|_)")
_STARTED = re.compile(r"step|epoch|iter|round|episode|start|resume|done|current", re.IGNORECASE)
_TOTAL = re.compile(r"total|max_|num_|n_|steps$|epochs$|iterations$|rounds$|stop|end$", re.IGNORECASE)
_COUNTER = re.compile(r"step|epoch|iter|round|update|episode", re.IGNORECASE)


class Loop(NamedTuple):
    """One that trains."""

    node: Loops
    kind: str
    over: ast.expr  # the range, loader or name that it goes through; a condition
    trains: str  # the text of what is called, `trainer.update_actor`
    at: int  # its line
    around: Loops | None  # the loop in the same function that it is in


def loops_of(tree: ast.Module) -> dict[tuple[str, int], list[Loop]]:
    """By the function that they are in: its name and first line, as its code has them."""
    nodes = nodes_of(tree, ast.Call, *_FUNCTIONS)
    calls = [each for each in nodes if isinstance(each, ast.Call)]
    lines = {each.lineno for each in calls if _trains(each)}
    functions = [each for each in nodes if isinstance(each, _FUNCTIONS)]
    trains = {each.name for each in functions if _has(each, lines)}
    lines |= {each.lineno for each in calls if _is_of(each, trains) or _may_train(each)}
    found = {}
    scopes: list[Function | ast.Module] = [tree, *(each for each in functions if _has(each, lines))]
    for scope in scopes:
        inner = [each for each in _loops_in(scope.body, None) if _has(each[0], lines)]
        if loops := [loop for node, around in inner if (loop := _loop(node, around, trains))]:
            found[("<module>", 1) if isinstance(scope, ast.Module) else (scope.name, _first_line(scope))] = loops
    return found


def _has(node: ast.stmt, lines: set[int]) -> bool:
    return any(node.lineno <= each <= (node.end_lineno or 0) for each in lines)


def _first_line(function: Function) -> int:
    return min([function.lineno, *(each.lineno for each in function.decorator_list)])


def _loops_in(body: list[ast.stmt], around: Loops | None) -> Iterator[tuple[Loops, Loops | None]]:
    for each in body:
        if isinstance(each, (*_FUNCTIONS, ast.ClassDef)):
            continue
        if isinstance(each, ast.For | ast.While):
            yield each, around
        inner = each if isinstance(each, ast.For | ast.While | ast.AsyncFor) else None
        for name in ("body", "orelse", "finalbody"):
            is_inside = inner is not None and name == "body" and not isinstance(inner, ast.AsyncFor)
            yield from _loops_in(getattr(each, name, []), inner if is_inside else around)  # type: ignore[arg-type]
        for one in (*getattr(each, "handlers", []), *getattr(each, "cases", [])):
            yield from _loops_in(one.body, around)


def _loop(node: Loops, around: Loops | None, trains: set[str]) -> Loop | None:
    calls = [each for each in _inside_body(node) if isinstance(each, ast.Call)]
    kind, over = (WHILE, node.test) if isinstance(node, ast.While) else _over(node.iter)
    sure = [each for each in calls if _trains(each) or _is_of(each, trains)]
    if not sure and around is None and over is not None and _counts_steps(node, kind, over):
        sure = [each for each in calls if _may_train(each)]
    first = min(sure, key=_place, default=None)
    if first is None or over is None or (kind == WHILE and not _counts_up(over)):
        return None
    return Loop(node, kind, over, _text(first), first.lineno, around)


def _place(node: ast.Call) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _inside_body(node: Loops) -> Iterator[ast.AST]:
    return inside(ast.Module(node.body, []))


# ---- what trains


def may(names: Collection[str]) -> bool:
    """Whether code that uses these names may train something: if none does, its file need not be read.

    >>> may(["range", "loss", "backward"]), may(["optimizer", "step"]), may(["model", "train_step"])
    (True, True, True)
    >>> may(["env", "step", "metrics", "update"]), may(["train_loader", "trainer"]), may([])
    (False, False, False)
    """
    for name in names:
        if _is_training(name):
            return True
        if name in _OWNED and any(_OWNED[name].search(each) for each in names if each != name):
            return True
    is_counted = any(map(_STARTED.search, names)) and any(map(_TOTAL.search, names))
    return is_counted and any(name == "remote" or _STEPS.search(name) for name in names)


def _is_training(name: str) -> bool:
    """Whether what is called like this trains, whosever it is."""
    if name in _SURE or _STEP.match(name) or _UPDATE.match(name):
        return True
    words = name.strip("_").split("_")
    is_named = len(words) > 1 and ("train" in words or "training" in words)
    return is_named and words[0] not in _ASKING and _NOT_TRAINING.isdisjoint(words)


def _trains(node: ast.AST) -> bool:
    """Whether it is a call that changes weights, by its name.

    >>> def said(text): return _trains(ast.parse(text, mode="eval").body)
    >>> said("loss.backward()"), said("self.optim.step()"), said("wg.update_actor(b)"), said("a.train_step.remote()")
    (True, True, True, True)
    >>> said("env.step(action)"), said("metrics.update(new)"), said("model.train()"), said("get_train_batch()")
    (False, False, False, False)
    >>> said("trainer.train()"), said("train(model, rows)"), said("model.train(True)"), said("scheduler.step()")
    (True, True, False, False)
    """
    if not isinstance(node, ast.Call):
        return False
    name, owner = _called(node)
    if name == "train":
        is_mode = not node.args or isinstance(node.args[0], ast.Constant)
        return (
            not owner or not is_mode or _is_remote(node) or bool(re.search("trainer|learner|agent|algo", owner, re.I))
        )
    return bool(_OWNED[name].search(owner)) if name in _OWNED else _is_training(name)


def _may_train(node: ast.Call) -> bool:
    """Whether a loop that counts steps may do this to train; a call of another process may be anything."""
    return _is_remote(node) or bool(_STEPS.search(_called(node)[0]))


def _counts_steps(node: Loops, kind: str, over: ast.expr) -> bool:
    """Whether it counts steps or epochs from where another run has come to."""
    if kind == RANGE and isinstance(node, ast.For):
        start, _ = bounds(over)
        return start is not None and any(_COUNTER.search(each) for each in (*names_of(node.target), *names_of(start)))
    return kind == WHILE


def _is_of(node: ast.Call, names: set[str]) -> bool:
    """Whether it calls one of the file's own functions."""
    name, owner = _called(node)
    return name in names and owner in ("", "self", "cls")


def _is_remote(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Attribute) and node.func.attr == "remote"


def _called(node: ast.Call) -> tuple[str, str]:
    """The last name of what is called, and the last one of whose it is: ("step", "optimizer")."""
    function = node.func
    if _is_remote(node) and isinstance(function, ast.Attribute):
        function = function.value
        while isinstance(function, ast.Call) and isinstance(function.func, ast.Attribute):  # `.options(...)`
            function = function.func.value
    if isinstance(function, ast.Attribute):
        return function.attr, _last(function.value)
    return (function.id, "") if isinstance(function, ast.Name) else ("", "")


def _last(node: ast.expr) -> str:
    if isinstance(node, ast.Subscript):
        return _last(node.value)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else "?"


def _text(call: ast.Call) -> str:
    return ast.unparse(call.func) if len(ast.unparse(call.func)) <= 60 else _called(call)[0]


# ---- what it goes through


def _over(node: ast.expr) -> tuple[str, ast.expr | None]:
    """
    >>> def said(text): return _over(ast.parse(text, mode="eval").body)[0]
    >>> said("enumerate(self.train_dataloader)"), said("tqdm(range(start, total))"), said("steps"), said("left.pop()")
    ('loader', 'range', 'named', '')
    >>> said("shard.iter_torch_batches(batch_size=8)"), said("val_loader"), said("get_loader()"), said("groups")
    ('loader', '', 'loader', 'named')
    """
    if isinstance(node, ast.Name | ast.Attribute):
        name = _last(node)
        if _NO_LOADER.search(name):
            return "", None
        return LOADER if _LOADER.search(name) else NAMED, node
    if not isinstance(node, ast.Call):
        return "", None
    name, _ = _called(node)
    if name in _RANGES and node.args:
        return RANGE, node
    if name in _AROUND:
        inner = [_over(each) for each in node.args]
        return next((each for kind in (LOADER, RANGE, NAMED) for each in inner if each[0] == kind), ("", None))
    is_loader = _BATCHES.match(name) or (_LOADER.search(name) and not _NO_LOADER.search(name))
    return (LOADER, node) if is_loader else ("", None)


def _counts_up(test: ast.expr) -> bool:
    """Whether a condition is that a counter of steps is below something: `step < total`."""
    first = test.values[0] if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else test
    if not isinstance(first, ast.Compare) or not counts(first) or not isinstance(first.ops[0], ast.Lt | ast.LtE):
        return False
    is_plain = not any(isinstance(each, ast.Call) for each in ast.walk(first))
    return is_plain and isinstance(first.left, ast.Name | ast.Attribute) and bool(_COUNTER.search(_last(first.left)))


def bounds(node: ast.expr) -> tuple[ast.expr | None, ast.expr]:
    """(start, stop) of a range, and of a condition; a start that is written down as a number is none."""
    if isinstance(node, ast.BoolOp):
        node = node.values[0]
    if isinstance(node, ast.Compare):
        return node.left, node.comparators[0]
    assert isinstance(node, ast.Call)
    if len(node.args) == 1:
        return None, node.args[0]
    return (None if isinstance(node.args[0], ast.Constant) else node.args[0]), node.args[1]


def is_computed(stop: ast.expr, tree: ast.Module) -> bool:
    """Whether a number of rounds is worked out, as `len(rows) // batch`: a 0 is no wish of somebody's then.

    >>> def said(text): tree = ast.parse(text); return is_computed(tree.body[-1].value, tree)
    >>> said("total - done"), said("n = len(rows) // 4; n"), said("n + 1"), said("args.epochs"), said("n = 0; n")
    (True, True, False, False, False)
    """
    if isinstance(stop, ast.BinOp):
        if isinstance(stop.right, ast.Constant) and isinstance(stop.op, ast.Add | ast.Sub):
            return is_computed(stop.left, tree)
        return True
    if not isinstance(stop, ast.Name | ast.Attribute):
        return False
    name = ast.unparse(stop)
    given = [each.value for each in nodes_of(tree, ast.Assign) for one in each.targets if ast.unparse(one) == name]
    return bool(given) and all(
        (isinstance(each, ast.BinOp) and not isinstance(each.right, ast.Constant))
        or any(isinstance(one, ast.BinOp) and isinstance(one.op, ast.FloorDiv) for one in ast.walk(each))
        for each in given
    )


def names_of(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


__all__ = [
    *("LOADER", "Loop", "NAMED", "RANGE", "WHILE", "bounds", "is_computed", "loops_of", "may", "names_of"),
]
