"""Loops that train and have no round: a run that resumes behind its last step ends at once, and well.

start = checkpoint["step"]  # 800
for step in range(start, 800):
    trainer.update_actor(batch)

A loop over a loader counts where it had no round the first time: an epoch was left out. Any other, which may have
nothing to do at first, counts where it had none at all.
"""

from __future__ import annotations

import ast
import os
import socket
import sys
from collections.abc import Iterable
from contextlib import suppress
from types import CodeType, FrameType
from typing import Any, NamedTuple

from . import core, finding, line_warnings, noticeboard
from .expressions import known, look, own_text, short, tree_of, values
from .sources import is_users
from .stacks import OURS
from .training_loops import LOADER, NAMED, WHILE, Loop, bounds, is_computed, loops_of, may, names_of
from .words import warn

KIND = "rounds"  # of notes
LINES = 5
VALUES, TEXT = 4, 100

_loops: dict[str, dict[tuple[str, int], list[Loop]]] = {}  # by file


class Began:
    """A loop that had no round the first time that it was begun in this process, and what has come of it."""

    def __init__(self, code: CodeType, line: int, note: noticeboard.Document) -> None:
        self.note = note
        self.times = 1  # that it had none, before its first round
        self.has_rounds = False
        self._key = f"{os.path.basename(code.co_filename)}-{line}"

    def round(self) -> None:
        if not self.has_rounds:
            self.has_rounds = True
            _changed(self, at_once=True)

    def ended(self) -> bool:
        """Without a round, or behind some: whether it is to be told of the next time."""
        if not self.has_rounds:
            self.times += 1
            _changed(self, at_once=self.times == 2)
        return not self.has_rounds

    def told(self) -> noticeboard.Document:
        """As it stands."""
        return {**self.note, "times": self.times, "rounds": self.has_rounds, "driver": _state.is_drivers}

    @property
    def key(self) -> str:
        return f"{os.getpid()}-{socket.gethostname()}-{self._key}"


class _State:
    def __init__(self) -> None:
        self.began: dict[int, Began] = {}  # by the id of its syntax, which `_loops` keeps
        self.fine: set[int] = set()  # ids of others, of which nothing is to be said
        self.news: dict[str, Began] = {}
        self.soon = noticeboard.Soon(self.tell, "devkit-rounds")
        self.is_drivers = False

    def tell(self) -> bool:
        try:
            while self.news:
                key, news = self.news.popitem()
                noticeboard.put(KIND, key, news.told())
        except Exception:  # noqa: BLE001 - a GCS that is gone, or another Ray's: then nobody hears of it
            return False
        return True


_state = _State()


def watch(*, driver: bool) -> None:
    """Notes loops of the program that train, and have no round."""
    _state.is_drivers = driver
    if not noticeboard.is_connected():
        return
    with suppress(Exception):  # a file of which nothing can be read
        _leave_out_what_goes_round()
    if sys.version_info >= (3, 12):
        from . import rounds_monitored

        rounds_monitored.watch()
    else:
        from . import rounds_of_loaders

        rounds_of_loaders.watch()


def _leave_out_what_goes_round() -> None:
    """Of a loop that is under way by now, what is seen first may be its end."""
    for _, frame in finding.stacks():
        code, line = frame.f_code, frame.f_lineno or 0
        for loop in in_code(code) if may(names_in(code)) else ():
            if loop.node.lineno <= line <= (loop.node.end_lineno or 0):
                _state.fine.add(id(loop.node))


def names_in(code: CodeType) -> set[str]:
    """What `may` asks for."""
    return {*code.co_names, *code.co_varnames, *code.co_freevars}


def in_code(code: CodeType) -> list[Loop]:
    """The loops of a code of the program's that train."""
    name = code.co_filename
    if name not in _loops:
        if not is_users(name) or name.startswith(OURS):
            return []
        _, tree = tree_of(name)
        _loops[name] = loops_of(tree) if tree is not None else {}
    return _loops[name].get((code.co_name, code.co_firstlineno), [])


def came_round(loop: Loop) -> None:
    """A loop has a round. It need not be told of the next one."""
    began = _state.began.get(id(loop.node))
    if began is None:
        _state.fine.add(id(loop.node))
    else:
        began.round()


def ended(loop: Loop, frame: FrameType) -> bool:
    """A loop has ended, or had no round; whether it is to be told of the next time."""
    began = _state.began.get(id(loop.node))
    if began is not None:
        return began.ended()
    if id(loop.node) in _state.fine:
        return False
    began = _first(loop, frame)
    if began is None:
        _state.fine.add(id(loop.node))
        return False
    _state.began[id(loop.node)] = began
    _changed(began)
    return True


def _first(loop: Loop, frame: FrameType) -> Began | None:
    """It had no round the first time; None: that may be."""
    found = _meaning(loop, frame)
    code, node = frame.f_code, loop.node
    if found is None or line_warnings.is_told(code.co_filename, node.lineno, "no batch"):  # with the reason
        return None
    around = [] if loop.around is None else _values(loop.around, frame)
    return Began(
        code,
        node.lineno,
        {
            "file": code.co_filename,
            "line": node.lineno,
            "who": code.co_qualname,
            "text": _head(node, code.co_filename),
            "trains": loop.trains,
            "at": loop.at,
            "first": found.is_first,
            "values": found.values,
            "around": "" if loop.around is None else _head(loop.around, code.co_filename),
            "around_values": around,
        },
    )


def _changed(began: Began, *, at_once: bool = False) -> None:
    """`at_once`: what was told is not so any more, and the driver may end as soon as this call has."""
    if _state.is_drivers:
        return
    _state.news[began.key] = began
    if not at_once:
        _state.soon.wake()
        return
    with core.asking() as is_open:
        if is_open:
            _state.tell()


# ---- whether it means something


class _Meaning(NamedTuple):
    is_first: bool  # whether one time without a round is enough
    values: list[tuple[str, str]]


def _meaning(loop: Loop, frame: FrameType) -> _Meaning | None:
    kind, over = loop.kind, loop.over
    if kind == LOADER:
        return None if _is_empty_list(over, frame) else _Meaning(True, [])
    if kind == NAMED:
        return _of_value(look(over, frame), ast.unparse(over))
    start, stop = bounds(over)
    shown = [*values([over.left, *over.comparators] if isinstance(over, ast.Compare) else _parts(over), frame, VALUES)]
    if kind == WHILE:
        counter, bound = _number(start, frame), _number(stop, frame)
        is_behind = counter is not None and bound is not None and counter > 0 and bound > 0
        return _Meaning(False, shown) if is_behind and loop.around is None else None
    if start is not None and not _is_of_loop(start, loop.around) and _number(start, frame) != 0:
        bound = _number(stop, frame)
        return _Meaning(False, shown) if bound is None or bound > 0 else None
    _, tree = tree_of(frame.f_code.co_filename)
    is_wish = tree is None or not is_computed(stop, tree) or _has_empty(stop, frame)
    return None if is_wish or loop.around is not None else _Meaning(False, shown)


def _parts(over: ast.expr) -> list[ast.expr]:
    if isinstance(over, ast.BoolOp):
        return over.values
    assert isinstance(over, ast.Call)
    return over.args


def _of_value(value: Any, name: str) -> _Meaning | None:
    """Of a variable: a range that begins behind its end, or a loader."""
    if "tqdm" in {each.__name__ for each in type(value).__mro__} and known(value):
        value = vars(value).get("iterable")
    if type(value) is range:
        is_behind = value.step > 0 and value.start > 0 and value.stop > 0
        return _Meaning(False, [(name, repr(value))]) if is_behind else None
    is_loader = any(each.__name__.endswith("DataLoader") for each in type(value).__mro__)
    return _Meaning(True, []) if is_loader else None


def _is_empty_list(over: ast.expr, frame: FrameType) -> bool:
    return type(look(over, frame)) in (list, tuple, dict) and isinstance(over, ast.Name | ast.Attribute)


def _number(node: ast.expr | None, frame: FrameType) -> int | None:
    value = look(node, frame) if node is not None else None
    return value if type(value) is int else None


def _is_of_loop(start: ast.expr, around: Any) -> bool:
    """Whether it counts from what a loop around it has come to: `range(i + 1, n)`."""
    return isinstance(around, ast.For) and not names_of(around.target).isdisjoint(names_of(start))


def _has_empty(stop: ast.expr, frame: FrameType) -> bool:
    """Whether it is of the length of something that is empty: then there is nothing to be trained with."""
    return any(
        isinstance(each, ast.Call)
        and isinstance(each.func, ast.Name)
        and each.func.id == "len"
        and len(each.args) == 1
        and not _has_items(look(each.args[0], frame))
        for each in ast.walk(stop)
    )


def _has_items(value: Any) -> bool:
    return type(value) not in (list, tuple, dict, set) or len(value) > 0


def _head(node: Any, file: str) -> str:
    return short(own_text(node, file).removesuffix(":").rstrip(), TEXT)


def _values(loop: Any, frame: FrameType) -> list[tuple[str, str]]:
    return [*values([loop.test if isinstance(loop, ast.While) else loop.iter], frame, VALUES)]


# ---- in the driver


def tell() -> None:
    """At the driver's end: warns of what has had no round, here and in the workers."""
    with suppress(Exception):  # a GCS that is gone: the program ends all the same
        notes = [each.told() for each in list(_state.began.values())]
        _state.fine |= _state.began.keys()  # a program may begin anew, and end once more
        _state.began.clear()
        if noticeboard.is_connected():
            notes += noticeboard.every(KIND)
        for each in without_rounds(notes)[:LINES]:
            warn(*each)
        if noticeboard.is_connected():
            noticeboard.forget(KIND)


def without_rounds(notes: list[noticeboard.Document]) -> list[tuple[str, int, str]]:
    """(file, line, sentence) of each loop of which that means something."""
    groups: dict[tuple[Any, ...], list[noticeboard.Document]] = {}
    for note in notes:
        if note["first"] or not note["rounds"]:
            given = (_given(note["values"]), _given(note["around_values"]))
            groups.setdefault((note["file"], note["line"], note["rounds"], note["driver"], *given), []).append(note)
    return [(str(file), int(line), _sentence(group)) for (file, line, *_), group in groups.items()]


def _sentence(group: list[noticeboard.Document]) -> str:
    note = group[0]
    given = f", with {_given(note['values'])}" if note["values"] else ""
    around = ""
    if note["around"]:
        given_there = f" with {_given(note['around_values'])}" if note["around_values"] else ""
        around = f", inside of `{note['around']}`{given_there}"
    who = "" if note["who"] == "<module>" else f" in {note['who']}"
    not_called = "was not called" if note["driver"] or note["rounds"] else "was never called"
    return (
        f"`{note['text']}`{who} had no round{_times(group)}{given}{around}: {note['trains']}, which it calls at line "
        f"{note['at']}, {not_called} {'then' if note['rounds'] else 'there'}{_where(group)}"
    )


def _times(group: list[noticeboard.Document]) -> str:
    """
    >>> def said(*times, rounds=False, driver=False):
    ...     return _times([{"rounds": rounds, "driver": driver, "times": each} for each in times])
    >>> said(1, 1), said(3, 4)
    (' the only time it was begun', ' any of the at least 3 times it was begun')
    >>> said(1, rounds=True), said(2, rounds=True, driver=True)
    (' the first time it was begun', ' the first 2 times it was begun since ray.init')
    """
    times = [each["times"] for each in group]
    since = " it was begun since ray.init" if group[0]["driver"] else " it was begun"
    if group[0]["rounds"]:
        return f" the first time{since}" if max(times) == 1 else f" the first {min(times)} times{since}"
    if max(times) == 1:
        return f" the only time{since}"
    least = "" if group[0]["driver"] else "at least "  # a worker tells later than it counts
    return f" any of the {least}{min(times)} times{since}"


def _where(group: list[noticeboard.Document]) -> str:
    """Other processes may have had rounds, and have told of nothing then."""
    if group[0]["driver"]:
        return ""
    return f" (so it was in {len(group)} processes)" if len(group) > 1 else " (so it was in one process)"


def _given(found: Iterable[Iterable[str]]) -> str:
    return ", ".join(f"{name}={value}" for name, value in found)


__all__ = ["KIND", "Began", "came_round", "ended", "in_code", "tell", "watch", "without_rounds"]
