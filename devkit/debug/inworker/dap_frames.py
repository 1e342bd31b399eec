"""What a client may ask of a stopped frame: its variables, the value of an expression, what a name may go on with.

All of it is called in the stopped thread, by `Stop.run`.
"""

from __future__ import annotations

import keyword
import re
import traceback
from dataclasses import dataclass
from types import FrameType
from typing import Any

from . import tree
from .as_documents import to_json
from .insides import attributes, type_name
from .redaction import REDACTED, hidden_pairs, is_secret, last_name, scrub, secrets_among, secrets_of_frames, without
from .scopes import assign, evaluate
from .stops import Stop
from .values import LARGE, SMALL, Limits, array_text, cut, error_line, summarise
from .words import plain

Document = dict[str, Any]
MOST_TEXT = 64 * 1024
SHOWN = ("clipboard", "hover", "watch", "variables")  # contexts in which a value is looked at, and nothing is changed
_WHOLE = Limits(text=MOST_TEXT, items=1000, depth=8, total=MOST_TEXT)


@dataclass(frozen=True)
class Node:
    """What a `variablesReference` stands for: the locals or globals of a frame, or a value."""

    stop: Stop
    frame: FrameType
    kind: str  # locals, globals, value
    value: Any = None
    expression: str = ""


class References:
    """The numbers under which one client knows frames and variables. They are good until their stop ends."""

    def __init__(self) -> None:
        self._nodes: dict[int, Any] = {}
        self._frames: dict[tuple[int, int], int] = {}
        self._next = 1

    def add(self, node: Any) -> int:
        number, self._next = self._next, self._next + 1
        self._nodes[number] = node
        return number

    def frame(self, stop: Stop, index: int, frame: FrameType) -> int:
        """The same number each time, as long as the stop stands."""
        key = (id(stop), index)
        if key not in self._frames:
            self._frames[key] = self.add(Node(stop, frame, "frame"))
        return self._frames[key]

    def get(self, number: Any) -> Node:
        node = self._nodes.get(number)
        if node is None:
            raise LookupError("this variable or frame belongs to a pause that has ended")
        found: Node = node
        return found

    def forget(self, stop: Stop) -> None:
        self._nodes = {number: node for number, node in self._nodes.items() if node.stop is not stop}
        self._frames = {key: number for key, number in self._frames.items() if key[0] != id(stop)}


def variables(node: Node, arguments: Document, references: References) -> list[Document]:
    """The children of a node; `filter`, `start` and `count` give a page of them."""
    wanted, start, count = arguments.get("filter"), int(arguments.get("start") or 0), int(arguments.get("count") or 0)
    if node.kind != "value":
        names = _sorted(dict(node.frame.f_locals if node.kind == "locals" else node.frame.f_globals), node.kind)
        hidden = hidden_pairs(names)
        children = [tree.Child(name, value, name, at in hidden) for at, (name, value) in enumerate(names)]
        children = children[start : start + count if count else None] if wanted != "indexed" else []
    else:
        children = tree.named(node.value) if wanted != "indexed" else []
        if wanted != "named":
            children += tree.indexed(node.value, start, count or tree.PAGE)
    shown = [_variable(child, node, references) for child in children]
    return [_without(each, node.frame) for each in shown]


def _without(document: Document, frame: FrameType) -> Document:
    """An answer without what the frame itself has under a secret's name."""
    found: Document = without(document, secrets_among(frame.f_locals))
    return found


def _sorted(names: dict[str, Any], kind: str) -> list[tuple[str, Any]]:
    pairs = [(name, value) for name, value in names.items() if not name.startswith(".") and name != "__builtins__"]
    return pairs if kind == "locals" else sorted(pairs, key=lambda pair: (pair[0].startswith("__"), pair[0]))


def _variable(child: tree.Child, node: Node, references: References) -> Document:
    expression = ""
    if child.access and (node.kind != "value" or node.expression):
        expression = node.expression + child.access
    if child.is_secret:
        return {"name": child.name, "value": REDACTED, "type": type_name(type(child.value)), "variablesReference": 0}
    shown = _shown(child.value, summarise(child.value), node, expression, references)
    shown["value"] = shown.pop("result")
    if expression:
        shown["evaluateName"] = expression
    return {"name": child.name, **shown}


def _shown(value: Any, text: str, node: Node, expression: str, references: References) -> Document:
    named, indexed = tree.counts(value)
    document: Document = {"result": text, "type": type_name(type(value)), "variablesReference": 0}
    if named or indexed:
        child = Node(node.stop, node.frame, "value", value, expression)
        document |= {"variablesReference": references.add(child), "namedVariables": named, "indexedVariables": indexed}
    return document


def evaluated(node: Node, arguments: Document, references: References) -> tuple[Document, str]:
    """The answer to `evaluate`, and what the expression itself printed."""
    printed: list[str] = []
    expression, context = str(arguments.get("expression", "")), arguments.get("context", "repl")
    also = getattr(node.stop, "names", {})
    value = evaluate(expression, node.frame, printed=printed.append, expression=context in SHOWN, also=also)
    by_name = is_secret(last_name(expression), value)
    if by_name and context != "repl":
        return {"result": REDACTED, "type": type_name(type(value)), "variablesReference": 0}, "".join(printed)
    if context == "summary":
        text = summarise(value, LARGE)
    elif context in ("hover", "watch", "variables"):
        text = summarise(value)
    else:
        # Nothing to say of a statement.
        text = "" if value is None and context == "repl" else _whole(value)
    document = _shown(value, text, node, expression if _is_path(expression) else "", references)
    if context == "summary":
        document["json"] = to_json(value, LARGE)
    # Whoever types a secret's own name at the debugger's prompt asks for it.
    return document if by_name else _without(document, node.frame), "".join(printed)


def _whole(value: Any) -> str:
    """As the program itself shows it: somebody asked for this value."""
    text = array_text(value)
    if text is not None:
        return text
    if type(value) in (dict, list, tuple, set, frozenset):
        return summarise(value, _WHOLE)
    try:
        return scrub(cut(plain(repr(value)), MOST_TEXT))
    except Exception:  # noqa: BLE001 - keeps the value visible when its own `repr` fails
        return summarise(value, LARGE)


def _is_path(expression: str) -> bool:
    """Whether it names a place, so that `.name` or `[0]` may be written behind it."""
    return re.fullmatch(r"[\w.\[\]'\"]+", expression) is not None


def set_variable(node: Node, name: str, text: str, references: References) -> Document:
    """Sets a child of a node to the value of an expression of its frame."""
    value = evaluate(text, node.frame)
    if node.kind == "locals":
        assign(name, value, node.frame)
    elif node.kind == "globals":
        node.frame.f_globals[name] = value
    else:
        tree.set_child(node.value, name, value)
    shown = _shown(value, summarise(value), node, "", references)
    return {**shown, "value": shown["result"]}


def set_expression(node: Node, target: str, text: str, references: References) -> Document:
    value = evaluate(text, node.frame)
    assign(target, value, node.frame)
    shown = _shown(value, summarise(value), node, target, references)
    return {**shown, "value": shown["result"]}


def completions(frame: FrameType, text: str, column: int) -> list[Document]:
    """What the name before the cursor may be. Nothing is called for it: of `a.b` only names and attributes are read."""
    before = text[: max(column - 1, 0)]
    found = re.search(r"((?:\w+\.)*)(\w*)$", before)
    path, start = (found[1], found[2]) if found else ("", "")
    names = _names_below(frame, path.rstrip(".")) if path else _names_of(frame)
    kept = sorted({name for name in names if name.startswith(start)}, key=lambda name: (name.startswith("_"), name))
    at = len(before) - len(start)
    return [{"label": name, "start": at, "length": len(start)} for name in kept[:200]]


def _names_of(frame: FrameType) -> list[str]:
    return [*frame.f_locals, *frame.f_globals, *frame.f_builtins, *keyword.kwlist]


def _names_below(frame: FrameType, path: str) -> list[str]:
    first, *rest = path.split(".")
    for names in (frame.f_locals, frame.f_globals, frame.f_builtins):
        if first in names:
            value = names[first]
            break
    else:
        return []
    for name in rest:
        own = dict(attributes(value))
        if name not in own:
            return []
        value = own[name]
    kind = value if isinstance(value, type) else type(value)
    return [name for name, _ in attributes(value)] + [name for base in kind.__mro__ for name in vars(base)]


def exception_info(error: BaseException) -> Document:
    """The answer to `exceptionInfo`."""
    kind = type(error)
    module = kind.__module__
    full = kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"
    text = error_line(error)
    document = {
        "exceptionId": full,
        "description": text,
        "breakMode": "unhandled",
        "details": {
            "message": text.removeprefix(f"{kind.__qualname__}: "),
            "typeName": kind.__qualname__,
            "fullTypeName": full,
            "stackTrace": scrub(cut("".join(traceback.format_exception(error)), MOST_TEXT)),
        },
    }
    found: Document = without(document, secrets_of_frames(error))
    return found


__all__ = ["SMALL", "Node", "References", "completions", "evaluated", "exception_info", "variables"]
