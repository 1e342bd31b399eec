"""Exceptions that this process has raised and then caught, counted by the line that raised them.

A reward function that answers 0 for whatever fails, or a loop that tries again for ever, says so nowhere else.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FrameType, TracebackType
from typing import Any, NamedTuple

from . import swallowing
from .redaction import LONGEST_SECRET, scrub_start
from .sources import is_users, source_of

MOST_PLACES = 200  # of which a process keeps count
MOST_LISTED = 5
LOOKED_AT = 3  # times: of what came so often, how it was caught is looked at
_COROUTINE = 0x80  # `inspect.CO_COROUTINE`, without loading that
_FUTURES = "/concurrent/futures/thread.py"
_RAYS_WRAPPER = "/ray/util/tracing/tracing_helper.py"
TEXT = 160  # characters of a message
_GUESSES = (
    ". This could because "  # in Ray's words, of an actor that is not found: what follows is too long to be shown
)
TASK = "Task"  # of asyncio, as a place
MOST_KEPT = 1000  # exceptions that Futures have
MOST_TEXT = TEXT + LONGEST_SECRET  # that are kept: each exception that is raised comes here, and few are ever shown
# Which Python itself uses to end a loop or a generator.
FLOW: tuple[type[BaseException], ...] = (StopIteration, StopAsyncIteration, GeneratorExit)

Document = dict[str, Any]


class Place(NamedTuple):
    file: str
    line: int
    function: str

    def to_json(self) -> Document:
        return self._asdict()


class Flight(NamedTuple):
    """An exception on its way: what it is, where the program raised it, and how far it has come."""

    kind: str
    text: str
    at: Place
    by: Place

    @property
    def key(self) -> tuple[str, Place, Place]:
        return self.kind, self.at, self.by


def places(trace: TracebackType | None) -> Iterator[Place]:
    """Those of the program's own lines, outermost first."""
    while trace is not None:
        code = trace.tb_frame.f_code
        if is_users(source_of(trace.tb_frame)):
            yield Place(code.co_filename, trace.tb_lineno, code.co_qualname)
        trace = trace.tb_next


def flight(error: BaseException, trace: TracebackType | None) -> Flight | None:
    """None for one that has come through no line of the program, or that is no error."""
    if isinstance(error, FLOW):
        return None
    passed = list(places(trace))
    return Flight(type(error).__name__, _text(error), passed[-1], passed[0]) if passed else None


def handled() -> dict[int, Document]:
    """{"said", "at"} of the exception in whose handler a thread is, by thread: `except ...: time.sleep(1)`, say."""
    found = {}
    for ident, kept in sys._current_exceptions().items():
        error: Any = kept[1] if isinstance(kept, tuple) else kept  # up to Python 3.11 with its type and its frames
        known = flight(error, error.__traceback__) if isinstance(error, BaseException) else None
        if known is not None:
            text = scrub_start(known.text, TEXT)
            found[ident] = {"said": f"{known.kind}: {text}" if text else known.kind, "at": known.at.to_json()}
    return found


def kept_at(frame: FrameType) -> Place | None:
    """Where a Future keeps what leaves this frame as an exception: nobody hears of it who does not ask that Future."""
    if frame.f_code.co_flags & _COROUTINE and is_tasks(frame):
        return task_place()
    outer = frame.f_back
    while outer is not None and is_rays_wrapper(outer):
        outer = outer.f_back
    if outer is None or not is_pools(outer):
        return None
    return Place(outer.f_code.co_filename, outer.f_lineno or 0, outer.f_code.co_qualname)


def is_tasks(frame: FrameType) -> bool:
    """Whether it is the program's outermost of a task of asyncio: what leaves it is kept there, as for `gather`."""
    asyncio: Any = sys.modules.get("asyncio")
    try:
        outermost = asyncio.current_task().get_coro().cr_frame
    except (AttributeError, RuntimeError):  # no loop runs here, or none of asyncio's; or Ray's own calls the program
        return False
    each: FrameType | None = frame
    while each is not None and each is not outermost:
        each = each.f_back if is_rays_wrapper(each.f_back) else None
    return each is not None


def task_place() -> Place:
    return Place(str(sys.modules["asyncio"].__file__), 0, TASK)


def is_rays_wrapper(frame: FrameType | None) -> bool:
    """Ray has one around each method of an actor, also where the actor itself calls that."""
    return frame is not None and frame.f_code.co_filename.endswith(_RAYS_WRAPPER)


def is_pools(frame: FrameType | None) -> bool:
    """Whether a thread of a pool runs what it was given there."""
    return frame is not None and frame.f_code.co_filename.endswith(_FUTURES) and frame.f_code.co_name == "run"


def is_again(frame: FrameType, trace: TracebackType | None) -> bool:
    """Whether an exception is raised in a frame that it has come through already: `raise error` in its handler."""
    inner = trace.tb_next if trace is not None else None
    return inner is not None and inner.tb_frame is frame


def _text(error: BaseException) -> str:
    """Its message where that is plain data: no code of the program's is run."""
    first = error.args[0] if len(error.args) == 1 else None
    if isinstance(error, OSError) and type(error).__str__ is OSError.__str__:
        return str(error)[:MOST_TEXT]
    is_pythons = type(error).__str__ in (BaseException.__str__, KeyError.__str__) or type(error) in (
        AttributeError,
        NameError,
    )
    if type(first) not in (str, int, float) or not is_pythons:
        return ""
    text = repr(first) if isinstance(error, KeyError) else str(first)
    return text.partition(_GUESSES)[0][:MOST_TEXT]


class _Row:
    def __init__(self, found: Flight, now: float) -> None:
        self.flight, self.count, self.first, self.last = found, 0, now, now
        self._how: str | None = None

    def how(self, count: int, *, follows: bool) -> str:
        """As `swallowing` has it; nothing of what is rare, or of what somebody may have asked a Future for."""
        kind, by = self.flight.kind, self.flight.by
        is_kept = not is_users(by.file)
        if count < LOOKED_AT or (is_kept and not follows and by.function != TASK):
            return swallowing.UNKNOWN
        if self._how is None:
            self._how = swallowing.KEPT if is_kept else swallowing.handler(by.file, by.line, kind)
        return self._how


class Caught:
    """Written by the program's threads, without a lock: a count that misses one now and then is right enough."""

    def __init__(self, on_new: Callable[[], object] = lambda: None) -> None:
        """`on_new` is called when something is caught that was not before: the process may end soon."""
        self._on_new = on_new
        self._rows: dict[tuple[str, Place, Place], _Row] = {}
        self.follows = False  # whether it would be told if somebody asked for what a Future keeps
        self.kept: dict[int, tuple[Flight, CodeType]] = {}  # by the exception's id: what somebody may still ask for

    def add(self, found: Flight) -> None:
        now = time.time()
        row = self._rows.get(found.key)
        if row is None:
            if len(self._rows) >= MOST_PLACES:
                return
            row = self._rows.setdefault(found.key, _Row(found, now))
        row.flight, row.count, row.last = found, row.count + 1, now
        if row.count == 1:
            self._on_new()

    def keep(self, error: int, found: Flight, keeper: Place, frame: FrameType) -> None:
        """It has left the program's outermost frame, and is in a Future. `error` is its id."""
        found = found._replace(by=keeper)
        self.add(found)
        if len(self.kept) >= MOST_KEPT:
            self.kept.clear()
        self.kept[error] = found, frame.f_code

    def asked_for(self, error: BaseException, trace: TracebackType | None) -> None:
        """It is raised once more: if a Future had it, somebody has asked that."""
        self._ask(error, trace.tb_next if trace else None)
        if isinstance(error, BaseExceptionGroup):  # of a group of tasks
            for each in error.exceptions:
                self._ask(each, each.__traceback__)

    def _ask(self, error: BaseException, trace: TracebackType | None) -> None:
        known = self.kept.pop(id(error), None)
        while known and trace is not None:  # addresses are used again: a new one has not come out of that frame
            if trace.tb_frame.f_code is known[1]:
                self.take_back(known[0])
                return
            trace = trace.tb_next

    def take_back(self, found: Flight) -> None:
        """It was raised again where it seemed to be caught."""
        row = self._rows.get(found.key)
        if row is not None:
            row.count -= 1

    def listed(self, handling: Iterable[Flight] = ()) -> list[Document]:
        """[{"kind", "text", "at", "by", "count", "seconds", "ago", "how"}], the most frequent first; then rarer that
        were caught by a handler of whatever comes.

        `seconds` is from the first to the last time, `ago` from the last time to now; `how` is of `swallowing`.
        `handling`: what has just been caught, and is not counted yet.
        """
        now = time.time()
        more = Counter(each.key for each in handling)
        fresh = {each.key: _Row(each, now) for each in handling if each.key not in self._rows}
        every = [(row, row.count + more[key]) for key, row in {**fresh, **self._rows}.items()]
        rows = sorted(((row, count) for row, count in every if count > 0), key=lambda each: -each[1])
        told = [(row, count, row.how(count, follows=self.follows)) for row, count in rows]
        swallowed = [each for each in told[MOST_LISTED:] if each[2] in (swallowing.ANY, swallowing.KEPT)]
        return [
            {
                "kind": row.flight.kind,
                "text": scrub_start(row.flight.text, TEXT),
                "at": row.flight.at.to_json(),
                "by": row.flight.by.to_json(),
                "count": count,
                "seconds": row.last - row.first,
                "ago": max(0.0, now - row.last),
                "how": how,
            }
            for row, count, how in told[:MOST_LISTED] + swallowed[:MOST_LISTED]
        ]


__all__ = ["FLOW", "Caught", "Flight", "Place", "flight", "handled", "is_again", "places"]
