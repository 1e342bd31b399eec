"""What agents tell the hub, looked at before anybody else is told of it: who has the key may still send anything."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from .records import StopRecord, check_types, is_number
from .who import Identity, Record

Document = dict[str, Any]


def problem(document: Document) -> Exception | None:
    """What is wrong with a message that is not as `agent.py` makes it; of others than these, nothing is known."""
    look = _CHECKS.get(str(document.get("type")))
    try:
        if look:
            look(document)
    except (TypeError, AttributeError, KeyError) as error:
        return error
    return None


def _hello(document: Document) -> None:
    _identity(document["identity"])
    _list(document.get("breakpoints", []), lambda each: None)  # each is looked at where it is learned


def _report(document: Document) -> None:
    _identity(document["identity"])
    _list(document["stops"], lambda each: _record(StopRecord, each))
    for each in document["armed"].values():
        _kinds(each, {"places": int, "note": str, "hits": int, "error": str})
        _need(each, ("places",))
    _list(document.get("caught", []), _caught)
    _list(document.get("ended", []), _end)


def _end(document: Document) -> None:
    _need(_kinds(document, {"id": str, "why": str}), ("id", "why"))
    if "stop" in document:
        _record(StopRecord, document["stop"])


def caught_problem(document: Document) -> Exception | None:
    """The same of an answer with what a process has caught."""
    try:
        _list(document["caught"], _caught)
    except (TypeError, AttributeError, KeyError) as error:
        return error
    return None


def _caught(document: Document) -> None:
    _need(_kinds(document, {"kind": str, "text": str, "count": int, "how": str}), ("kind", "text", "count"))
    for name in ("at", "by"):
        _need(_kinds(document[name], {"file": str, "line": int, "function": str}), ("file", "line", "function"))
    if not all(is_number(document[name]) for name in ("seconds", "ago")):
        raise TypeError("its time is no number")


def _reply(document: Document) -> None:
    if type(document["id"]) is not int:
        raise TypeError("its id is no number")
    if "report" in document:
        _report(document["report"])


def _doing(document: Document) -> None:
    if not is_number(document["time"]):
        raise TypeError("its time is no number")
    kinds = {"file": str, "line": int, "function": str}
    _list(document.get("puts", []), lambda each: _need(_kinds(each, {**kinds, "objects": list}), (*kinds, "objects")))
    killed = {**kinds, "actor": str}
    _list(document.get("kills", []), lambda each: _need(_kinds(each, killed), killed))
    sent = {**kinds, "pid": int, "signal": str, "time": float}
    _list(document.get("signals", []), lambda each: _need(_kinds(each, sent), (*kinds, "pid", "signal")))
    maps = {"file": str, "size": int}
    _list(document.get("maps", []), lambda each: _need(_kinds(each, maps), maps))
    _list(document.get("methods", []), lambda each: _kinds({"name": each}, {"name": str}))
    if "alarm" in document:
        _need(_kinds(document["alarm"], {**kinds, "call": str}), kinds)
        if not is_number(document["alarm"]["due"]):
            raise TypeError("its time is no number")
    if "cpu" in document and not all(is_number(document["cpu"][name]) for name in ("used", "limit")):
        raise TypeError("its CPU time is no number")
    _list(document["frames"], lambda each: _need(_kinds(each, kinds), kinds))
    _kinds(document, {"recursion": int})
    _kinds(document.get("memory", {}), {"own": int, "used": int, "total": int})
    for each in (document[name] for name in ("made", "call") if name in document):
        _need(_kinds(each, {"name": str, "arguments": dict}), ("name", "arguments"))


def _bye(document: Document) -> None:
    _need(_kinds(document, {"reason": str}), ("reason",))


_CHECKS: dict[str, Callable[[Document], None]] = {
    "hello": _hello,
    "report": _report,
    "reply": _reply,
    "doing": _doing,
    "bye": _bye,
    "caught": lambda document: _list(document["caught"], _caught),
}


def _identity(document: Any) -> None:
    _record(Identity, document)
    if not document["worker_id"]:
        raise TypeError("worker_id is empty")


def _record(kind: type[Record], document: Any) -> None:
    record = kind.from_json(document)
    check_types(record)
    raised = getattr(record, "exception", None)
    if raised is not None:
        _need(_kinds(raised, {"type": str, "message": str}), ("type", "message"))


def _list(found: Any, look: Callable[[Any], object]) -> None:
    if not isinstance(found, (list, tuple)):
        raise TypeError("it is no list")
    for each in found:
        look(each)


def _kinds(document: Any, kinds: dict[str, type]) -> Document:
    for name, kind in kinds.items():
        value = document.get(name, kind())
        if type(value) is not kind or (kind is int and not is_number(value)):
            raise TypeError(f"{name} is no {kind.__name__}")
    return document  # type: ignore[no-any-return]


def _need(document: Document, names: Iterable[str]) -> None:
    for name in names:
        document[name]
