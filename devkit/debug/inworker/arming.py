"""Arms breakpoints in this process: puts them into the functions that they name, wherever those live or come from.

A function's code object is swapped for one that was compiled from the same text with the breakpoints inlined. Text that
doesn't compile to what runs is never swapped in. Modules that aren't loaded yet are compiled with their breakpoints;
functions that arrive in a pickle are swapped as they are made; frames that run already are watched (`running.py`).
"""

from __future__ import annotations

import linecache
import os
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from . import finding, hits, loading
from .aims import Aims
from .hits import Ids
from .instrument import FILE, Build, Mark
from .records import Breakpoint
from .running import Running
from .specs import SpecError, check_condition
from .swapping import Swapping

_SUSPENDABLE = 0x20 | 0x80 | 0x100 | 0x200  # co_flags of generators and coroutines
_NOT_LOADED = "module not loaded yet"


@dataclass(frozen=True)
class ArmState:
    """`places`: in how many functions or modules a breakpoint is armed; `note` says why in none, or what is missing."""

    places: int
    note: str


class Arming:
    """One per process. `on_hit` is called in the thread that reached a breakpoint, or several of one place."""

    def __init__(self, on_hit: Callable[[Ids, FrameType], None], on_error: Callable[[str, str], None]) -> None:
        self.on_change: Callable[[], None] = lambda: None  # called when the state of a breakpoint may have changed
        self._on_hit = on_hit
        self._on_error = on_error
        self._aims = Aims()
        self._swapping = Swapping(self._aims)
        self._standing = self._swapping.standing
        self._running = Running(self._reached, self._failed)
        self._reported: set[str] = set()
        self._seen = (0, 0)
        self._cached: dict[str, Any] = {}  # by breakpoint: what `linecache` had of its file
        self._installed = False
        self._lock = threading.RLock()

    def install(self) -> None:
        """From now on breakpoints can be hit, and code that is loaded into this process is looked at."""
        if self._installed:
            return
        self._installed = True
        hits.install(self._reached, self._failed, self._swapping.conditions.get)
        loading.install(self)
        # A text is compiled a second time: what there was to warn of was said the first time.
        warnings.filterwarnings("ignore", module=FILE)
        os.register_at_fork(after_in_child=self._forked)

    def uninstall(self) -> None:
        """Removes all breakpoints. New code isn't looked at any more."""
        for name in list(self._aims.points):
            self.remove(name)
        self._running.close()
        loading.uninstall(self)
        self._installed = False

    def add(self, point: Breakpoint) -> None:
        """Arms a breakpoint in what is here and in what comes. Never raises; `state` tells what came of it."""
        with self._lock:
            try:
                if point.condition:
                    check_condition(point.condition)
                self._aims.add(point)
                self._arm([point.id])
            except SpecError as error:
                self._standing.notes[point.id] = error.message
            except Exception as error:  # noqa: BLE001 - keeps the program running; what happened is told
                self._standing.notes[point.id] = f"could not be armed: {error!r}"
        self.on_change()

    def remove(self, name: str) -> None:
        """Gives the functions their own code back."""
        with self._lock:
            files = self._standing.files(name)
            self._aims.remove(name)
            self._running.unwatch(name)
            self._standing.forget(name)
            self._reported.discard(name)
            if files:
                functions = finding.Functions()
                for filename in files:
                    self._swapping.settle(filename, functions.of(filename), _frames(filename))
            self._swapping.conditions.pop(name, None)
        self.on_change()

    def state(self, name: str) -> ArmState:
        """How a breakpoint stands; also mends what time has changed.

        A breakpoint without a place is looked for again if modules were loaded meanwhile, or texts: of a notebook's
        cell, of code that was made. So is one in a cell that has another text now, though it may be the same. A thread
        that should be traced is traced again if somebody's stepping has ended it.
        """
        if self._running.is_watching(name) and self._lock.acquire(blocking=False):
            try:
                self._running.rewatch()
            finally:
                self._lock.release()
        if name in self._aims.points and self._is_stale(name):
            self.refresh([name])
        return self._state(name)

    def _is_stale(self, name: str) -> bool:
        if name in self._cached and self._cached[name] is not self._text_of(name):
            return True
        return not self._standing.places(name) and self._seen != (len(sys.modules), len(linecache.cache))

    def _text_of(self, name: str) -> Any:
        """What `linecache` has of a breakpoint's file, if that is no file."""
        path = next(iter(self._aims.points[name].paths), "")
        return None if os.path.exists(path) else linecache.cache.get(path)

    def _state(self, name: str) -> ArmState:
        places = self._standing.places(name)
        return ArmState(places, self._standing.notes.get(name, "" if places else _NOT_LOADED))

    def refresh(self, names: Sequence[str] = ()) -> None:
        """Looks again for functions that came in ways that aren't looked at, such as `exec`."""
        with self._lock:
            self._arm(list(names or self._aims.points))

    def rewatch(self) -> None:
        """For a thread that had a trace function of its own for a while, to step, and has it no more."""
        self._running.rewatch()

    # ---- in the agent's thread, with the lock held

    def _arm(self, names: Sequence[str]) -> None:
        self._seen = len(sys.modules), len(linecache.cache)
        self._cached = {each: self._text_of(each) for each in self._aims.points}
        functions = finding.Functions()
        self._swapping.changed()
        self._aims.aim(names, functions)
        files = functions.files | finding.module_files() | {frame.f_code.co_filename for _, frame in finding.stacks()}
        for filename in files:
            here = {mark.id for mark in self._aims.marks(filename)} & set(names)
            if here:
                frames = _frames(filename)
                build = self._swapping.settle(filename, functions.of(filename), frames)
                if build is not None:
                    for name in here & build.sites.keys():
                        self._watch(name, filename, build, frames)
        for name in names:
            if not self._standing.places(name):
                self._standing.notes.setdefault(name, self._aims.problem(name) or _NOT_LOADED)

    def _watch(self, name: str, filename: str, build: Build, frames: Sequence[FrameType]) -> None:
        """Frames that run already, or are suspended, know nothing of the code that was swapped."""
        flags = [pair.plain.co_flags for pair in build.pairs if name in pair.ids]
        suspended = finding.suspended() if any(each & _SUSPENDABLE for each in flags) else []
        waiting = [frame for each in suspended if (frame := finding.frame_of(each)) is not None]
        mine = [frame for frame in waiting if frame.f_code.co_filename == filename]
        targets = list(self._swapping.stale(name, build, [*frames, *mine]))
        if not targets:
            return
        problem = self._running.watch(name, targets, self._swapping.conditions.get(name), suspended)
        if problem:
            self._standing.notes[name] = problem
        else:
            self._standing.armed(name, filename, build.sites[name][-1].function)

    # ---- in the program's threads

    def _reached(self, names: Ids, frame: FrameType) -> None:
        known = tuple(name for name in names if name in self._aims.points)
        if known and not hits.is_own_doing(frame):
            self._on_hit(known, frame)

    def _failed(self, name: str, error: BaseException) -> None:
        """A condition raised: said once, and the program goes on."""
        if name in self._aims.points and name not in self._reported:
            self._reported.add(name)
            self._on_error(name, f"{type(error).__name__}: {error}")

    def original(self, code: CodeType) -> CodeType:
        """The code without breakpoints, for who pickles a function."""
        return self._swapping.ledger.plain(code)

    def unpickled(self, code: CodeType, module: str) -> CodeType:
        """The code for a function that is made from a pickle."""
        marks = self._aims.marks(code.co_filename, module)
        return self._loaded(code, marks, lambda: self._swapping.function(code, marks)) if marks else code

    def imported(self, module: str, code: CodeType, loader: Any) -> CodeType:
        """The code for a module that is about to run for the first time."""
        marks = self._aims.marks(code.co_filename, module)
        if not marks:
            return code
        from importlib.util import decode_source

        def compiled() -> CodeType:
            return self._swapping.module(code, marks, decode_source(loader.get_data(code.co_filename)))

        return self._loaded(code, marks, compiled)

    def _loaded(self, code: CodeType, marks: Sequence[Mark], make: Callable[[], CodeType]) -> CodeType:
        before = [self._state(mark.id) for mark in marks]
        try:
            made = make()
        except Exception as error:  # noqa: BLE001 - keeps the program running: its code comes without breakpoints
            for mark in marks:
                self._standing.notes.setdefault(mark.id, f"could not be armed in {code.co_filename}: {error!r}")
            made = code
        if before != [self._state(mark.id) for mark in marks]:
            self.on_change()
        return made

    def _forked(self) -> None:
        self._lock = threading.RLock()


def _frames(filename: str) -> list[FrameType]:
    return [frame for _, frame in finding.stacks() if frame.f_code.co_filename == filename]
