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
from .swallowing import Handler

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
    bases: tuple[str, ...] = ()  # the names of its class and of those that it is derived from
    entry: tuple[CodeType, int] | None = None  # the instruction at which the function went on that handles it

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
    bases = tuple(each.__name__ for each in type(error).__mro__)
    return Flight(type(error).__name__, _text(error), passed[-1], passed[0], bases) if passed else None


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
        self.varies = False  # whether they did not all say the same
        self._found: dict[int, Handler] = {}  # by the instruction at which the function went on

    def handler(self, count: int, *, follows: bool) -> Handler:
        """Nothing is known of what is caught rarely, or of what somebody may have asked a Future for."""
        found = self.flight
        if not is_users(found.by.file):
            return Handler(swallowing.KEPT if follows or found.by.function == TASK else swallowing.UNKNOWN, 0)
        if count < LOOKED_AT:
            return swallowing.NONE
        _, offset = found.entry or (None, -1)
        if offset not in self._found:
            entry = _line_of(*found.entry) if found.entry else 0
            known = swallowing.handler(found.by.file, found.by.line, found.kind, found.bases, entry)
            self._found[offset] = known
        return self._found[offset]


def _line_of(code: CodeType, offset: int) -> int:
    return next((line for _, end, line in code.co_lines() if end > offset and line), 0)


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
        row.varies = row.varies or row.flight.text != found.text
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

    def forget(self) -> None:
        """What was caught so far is another process's."""
        self._rows.clear()
        self.kept.clear()

    def listed(self, handling: Iterable[Flight] = ()) -> list[Document]:
        """[{"kind", "text", "at", "by", "count", "seconds", "ago", "how"}], the most frequent first; then rarer that
        were caught by a handler of whatever comes.

        `seconds` is from the first to the last time, `ago` from the last time to now; `how` is of `swallowing`; `by` is
        the handler's line, where that is known, or else the line from which it came to the function that caught it.
        `handling`: what has just been caught, and is not counted yet.
        """
        now = time.time()
        more = Counter(each.key for each in handling)
        fresh = {each.key: _Row(each, now) for each in handling if each.key not in self._rows}
        every = [(row, row.count + more[key]) for key, row in {**fresh, **self._rows}.items()]
        told = _together([(row, count, row.handler(count, follows=self.follows)) for row, count in every if count > 0])
        swallowed = [each for each in told[MOST_LISTED:] if each.how in (swallowing.ANY, swallowing.KEPT)]
        return [
            {
                "kind": each.flight.kind,
                "text": scrub_start(each.flight.text, TEXT),
                "at": each.flight.at.to_json(),
                "by": each.flight.by.to_json(),
                "count": each.times,
                "seconds": each.last - each.first,
                "ago": max(0.0, now - each.last),
                "how": each.how,
            }
            for each in told[:MOST_LISTED] + swallowed[:MOST_LISTED]
        ]


class _Told(NamedTuple):
    flight: Flight  # the last
    how: str
    times: int
    first: float
    last: float


def _together(rows: Iterable[tuple[_Row, int, Handler]]) -> list[_Told]:
    """Those of one handler, from whichever line of its `try` they came, are one; the most frequent first."""
    found: dict[tuple[str, Place, Place], _Told] = {}
    for row, count, handler in rows:
        said = f"{row.flight.text}{swallowing.LAST}" if row.varies else row.flight.text
        flight = row.flight._replace(text=said, by=row.flight.by._replace(line=handler.line or row.flight.by.line))
        new = _Told(flight, handler.how, count, row.first, row.last)
        old = found.setdefault(flight.key, new)
        if old is not new:
            later, first = max(old, new, key=lambda each: each.last), min(old.first, new.first)
            found[flight.key] = later._replace(how=old.how or new.how, times=old.times + count, first=first)
    return sorted(found.values(), key=lambda each: -each.times)


__all__ = ["FLOW", "Caught", "Flight", "Place", "flight", "handled", "is_again", "places"]
