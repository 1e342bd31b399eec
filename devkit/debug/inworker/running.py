"""Breakpoints in frames that run already, and don't see the code that was swapped: a training loop that never returns.

On Python 3.12 and later `sys.monitoring` gives the lines of one code object. On 3.11 the threads that are in such
frames are traced until they have left them.
"""

from __future__ import annotations

import opcode
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from .conditions import Condition
from .finding import Suspendable, frame_of, stacks
from .places import Site

HitCallback = Callable[[tuple[str, ...], FrameType], None]
_EXTENDED_ARG, _RESUME, _YIELD_VALUE = (opcode.opmap[name] for name in ("EXTENDED_ARG", "RESUME", "YIELD_VALUE"))
_TOOLS = (4, 3, 5)  # ids without a name of their own; one that is taken stays with whom it belongs to


@dataclass(frozen=True)
class Target:
    """A code object that may run, in which a breakpoint stands that isn't compiled into it."""

    code: CodeType
    sites: tuple[Site, ...]
    maker: CodeType | None = None  # the code around it, if that is what runs and will make functions of this one

    @property
    def is_exact(self) -> bool:
        """Whether its places are inside of lines, which are looked at instruction by instruction."""
        return any(site.is_element for site in self.sites)


@dataclass(frozen=True)
class _Watch:
    id: str
    condition: Condition | None
    target: Target
    offsets: frozenset[int]


def entries(target: Target) -> frozenset[int]:
    """The offsets of the instructions with which its places begin."""
    return frozenset(at for site in target.sites for at in _entries(target.code, site))


def _entries(of: CodeType, site: Site) -> frozenset[int]:
    """Of one place; several if it was compiled more than once."""
    code, positions = of.co_code, list(of.co_positions())
    begin = next((at for at in range(0, len(code), 2) if code[at] == _RESUME), -2) + 2
    within = (at for at in range(begin, len(code), 2) if _is_within(positions[at // 2], site))
    first = next(within, None)
    if first is None:
        return frozenset()
    # In each copy the same instruction comes from the same place in the text.
    copies = {at for at in within if code[at] == code[first] and positions[at // 2] == positions[first // 2]}
    found = copies | {first}
    return frozenset(found | {after for at in found for after in _after_prefixes(code, at)})


def _is_within(position: tuple[int | None, ...], site: Site) -> bool:
    line, end, column, end_column = position
    if site.expression is None or (column is None and not site.is_element):  # Python may keep no columns
        return site.line <= (line or 0) <= site.last
    if line is None or end is None or column is None or end_column is None:
        return False
    first, last, begin, over = site.expression
    return (first, begin) <= (line, column) and (end, end_column) <= (last, over)


def _after_prefixes(code: bytes, start: int) -> Iterator[int]:
    """Where the instruction itself is, if it begins with prefixes."""
    while code[start] == _EXTENDED_ARG:
        start += 2
        yield start


class Running:
    """Watches old code objects. `watch` and `unwatch` are for one thread at a time."""

    def __init__(self, on_hit: HitCallback, on_failed: Callable[[str, BaseException], None]) -> None:
        self._on_hit = on_hit
        self._on_failed = on_failed
        self._watches: dict[int, tuple[_Watch, ...]] = {}  # by the id of the code, which the watch keeps alive
        self._engine: _Monitoring | _Tracing | None = None

    def watch(
        self, name: str, targets: Sequence[Target], condition: Condition | None, suspended: Iterable[Suspendable] = ()
    ) -> str:
        """Hits of `targets` are reported from now on. Gives the reason why not, or ""."""
        for target in targets:
            watch = _Watch(name, condition, target, entries(target))
            others = tuple(each for each in self._watches.get(id(target.code), ()) if each.id != name)
            self._watches = {**self._watches, id(target.code): (*others, watch)}
        try:
            if self._engine is None:
                self._engine = _Monitoring(self) if sys.version_info >= (3, 12) else _Tracing(self)
            problem = self._engine.update(list(suspended))
        except (RuntimeError, AttributeError) as error:  # the latter: the interpreter doesn't export what we need
            problem = f"frames that run already can't be watched: {error}"
        if problem:
            self.unwatch(name)
        return problem

    def unwatch(self, name: str) -> None:
        kept = {code: tuple(each for each in watches if each.id != name) for code, watches in self._watches.items()}
        if kept != self._watches:
            self._watches = {code: watches for code, watches in kept.items() if watches}
            if self._engine is not None:
                self._engine.update([])

    def rewatch(self) -> None:
        """For after another trace function was set and cleared in a thread: on 3.11 it took the place of ours."""
        if self._watches and isinstance(self._engine, _Tracing):
            self._engine.update([])

    def close(self) -> None:
        """Nothing is watched any more, and what that needed is given back."""
        for watches in self._watches.values():
            for watch in watches:
                self.unwatch(watch.id)
        if isinstance(self._engine, _Monitoring):
            self._engine.close()
        self._engine = None

    def is_watching(self, name: str) -> bool:
        return any(watch.id == name for watches in self._watches.values() for watch in watches)

    def targets(self) -> list[Target]:
        return [watch.target for watches in self._watches.values() for watch in watches]

    def is_watched(self, code: CodeType) -> bool:
        return id(code) in self._watches

    def is_exact(self, code: CodeType) -> bool:
        """Whether each instruction of a code object is to be looked at."""
        return any(watch.target.is_exact for watch in self._watches.get(id(code), ()))

    def at_line(self, frame: FrameType, *, exact: bool = False) -> bool:
        """A line, or with `exact` an instruction, begins in a frame; whether something that is watched begins there."""
        watches = self._watches.get(id(frame.f_code), ())
        here = [each for each in watches if frame.f_lasti in each.offsets and each.target.is_exact is exact]
        held = tuple(each.id for each in here if self._holds(each, frame))
        if held:
            self._on_hit(held, frame)
        return bool(here)

    def _holds(self, watch: _Watch, frame: FrameType) -> bool:
        try:
            return watch.condition is None or watch.condition.holds(frame)
        except Exception as error:  # noqa: BLE001 - keeps the program running: a condition that raises is reported
            self._on_failed(watch.id, error)
            return False


class _Monitoring:
    """Python 3.12 and later: events for the lines of the watched code objects only."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self._codes: dict[int, CodeType] = {}
        self._monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
        self._line, self._instruction = self._monitoring.events.LINE, self._monitoring.events.INSTRUCTION
        for tool in _TOOLS:
            try:
                self._monitoring.use_tool_id(tool, "devkit")
            except ValueError:
                continue
            self._tool = tool
            self._monitoring.register_callback(tool, self._line, self._at_line)
            self._monitoring.register_callback(tool, self._instruction, self._at_instruction)
            return
        raise RuntimeError("other tools use all sys.monitoring ids")

    def update(self, _suspended: list[Suspendable]) -> str:
        wanted = {id(target.code): target.code for target in self._running.targets()}
        for key in self._codes.keys() - wanted.keys():
            self._monitoring.set_local_events(self._tool, self._codes[key], 0)
        for code in wanted.values():
            events = self._line | (self._instruction if self._running.is_exact(code) else 0)
            self._monitoring.set_local_events(self._tool, code, events)
        if wanted:
            self._monitoring.restart_events()  # a line that nobody wanted before may be wanted now
        self._codes = wanted
        return ""

    def close(self) -> None:
        for event in (self._line, self._instruction):
            self._monitoring.register_callback(self._tool, event, None)
        self._monitoring.free_tool_id(self._tool)

    def _at_line(self, _code: CodeType, _line: int) -> object:
        return None if self._running.at_line(sys._getframe(1)) else self._monitoring.DISABLE

    def _at_instruction(self, _code: CodeType, _offset: int) -> object:
        return None if self._running.at_line(sys._getframe(1), exact=True) else self._monitoring.DISABLE


class _Tracing:
    """Python 3.11: a trace function in those threads that are in a watched frame, or may resume a watched generator."""

    def __init__(self, running: Running) -> None:
        from .threadtrace import NOTHING, ThreadTrace, gives_way

        self._running = running
        self._threads, self._gives_way = ThreadTrace(), gives_way
        # Each one object, to be compared: a bound method is made anew at each look.
        self._local, self._call, self._nothing = self._in_frame, self._at_call, NOTHING
        self._codes: frozenset[int] = frozenset()  # ids of the codes whose frames have our trace function
        self._suspended: list[weakref.ref[Any]] = []
        self._raising: set[int] = set()  # ids of frames

    def update(self, suspended: list[Suspendable], left: FrameType | None = None) -> str:
        """Makes the threads and their frames fit what is watched now; `left` is a frame that is about to end."""
        targets = self._running.targets()
        makers = {id(target.maker) for target in targets if target.maker is not None}
        self._codes = frozenset(makers | {id(target.code) for target in targets})
        self._remember(suspended)
        traced = self._threads.traced()
        foreign = {thread for thread, tracer in traced.items() if tracer not in (0, id(self._nothing), id(self._call))}
        wanted, problems = self._wanted(makers, left), set()
        for thread, frame in stacks():
            if thread not in foreign:
                self._mark(frame)
            elif id(frame.f_code) in self._codes:
                problems.add(thread)
        self._apply(wanted, traced)
        # Some may have left those frames before they were traced.
        self._apply({}, wanted.keys() - self._wanted(makers, left).keys())
        if problems and not wanted.keys() - foreign:
            return "another tool traces the thread that runs this"
        return ""

    def _wanted(self, makers: set[int], left: FrameType | None) -> dict[int, Any]:
        """The trace function for each thread; the slower one, told of each call, only where functions are made anew."""
        wanted: dict[int, Any] = {}
        alive = self._is_any_suspended(but=left)
        for thread, frame in stacks():
            if frame is left:
                continue
            if id(frame.f_code) in makers:
                wanted[thread] = self._call
            elif id(frame.f_code) in self._codes or alive:
                wanted.setdefault(thread, self._nothing)
        return wanted

    def _apply(self, wanted: dict[int, Any], threads: Iterable[int]) -> None:
        for tracer in (self._nothing, self._call):
            self._threads.clear([thread for thread in threads if wanted.get(thread) is not tracer], tracer)
            self._threads.trace([thread for thread in wanted if wanted[thread] is tracer], tracer)

    def _mark(self, frame: FrameType) -> None:
        if id(frame.f_code) in self._codes:
            if frame.f_trace is None or self._gives_way(frame.f_trace):
                frame.f_trace, frame.f_trace_lines = self._local, True
            if frame.f_trace is self._local:
                frame.f_trace_opcodes = self._running.is_exact(frame.f_code)
        elif frame.f_trace is self._local:
            frame.f_trace = None

    def _remember(self, suspended: list[Suspendable]) -> None:
        for each in suspended:
            frame = frame_of(each)
            if frame is not None and id(frame.f_code) in self._codes:
                self._suspended.append(weakref.ref(each, self._forget))
        self._suspended = [each for each in self._suspended if each() is not None]
        for ref in self._suspended:
            generator = ref()
            frame = None if generator is None else frame_of(generator)
            if frame is not None:
                self._mark(frame)

    def _is_any_suspended(self, but: FrameType | None = None) -> bool:
        frames = (frame_of(each) for ref in self._suspended if (each := ref()) is not None)
        return any(frame is not None and frame is not but and id(frame.f_code) in self._codes for frame in frames)

    def _forget(self, gone: weakref.ref[Any]) -> None:
        """A generator was dropped; if it never began, no trace function was told."""
        self._suspended = [each for each in self._suspended if each is not gone]
        if not self._is_any_suspended():
            self.update([])

    # ---- in the traced thread

    def _at_call(self, frame: FrameType, _event: str, _argument: object) -> Any:
        if not self._running.is_watched(frame.f_code):
            return None
        frame.f_trace_opcodes = self._running.is_exact(frame.f_code)
        return self._local

    def _in_frame(self, frame: FrameType, event: str, _argument: object) -> None:
        # Nothing is returned: what traces this frame stays, even if a stop has put a stepping function in our place.
        if event == "line":
            self._raising.discard(id(frame))
            self._running.at_line(frame)
        elif event == "opcode":
            self._running.at_line(frame, exact=True)
        elif event == "exception":
            self._raising.add(id(frame))
        elif event == "return" and not self._is_yield(frame):
            self._left(frame)

    def _is_yield(self, frame: FrameType) -> bool:
        was_raising = id(frame) in self._raising
        self._raising.discard(id(frame))
        return frame.f_code.co_code[frame.f_lasti] == _YIELD_VALUE and not was_raising

    def _left(self, frame: FrameType) -> None:
        """A watched frame is done: the thread is free again, unless it is in another one."""
        outer = frame.f_back
        while outer is not None:
            if id(outer.f_code) in self._codes:
                return
            outer = outer.f_back
        if self._is_any_suspended(but=frame):
            return
        if sys.gettrace() in (self._nothing, self._call):
            sys.settrace(None)
        if self._suspended:
            self._suspended = []
            self.update([], left=frame)
