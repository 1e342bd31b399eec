"""Python 3.11 only: `sys.settrace` for another thread.

Python 3.12 has `sys.monitoring`, and 3.11 has no public way to trace a thread that runs already. The interpreter
exports what is needed, `_PyEval_SetTrace(tstate, func, arg)`. Three things make it safe:

* The layout of a thread's state is tried out on a thread of our own before anything is done to another one.
* `func` is the interpreter's own, the one that `sys.settrace` uses; nothing of ours is called from C.
* The states are walked, compared and changed within one call into C (`list` over iterators that are written in C). So
  no other thread runs in between, and none of the states can go away.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, chain, compress, repeat, takewhile, tee
from operator import attrgetter
from typing import Any

from . import threads

NOTHING: Any = memoryview(
    b""
).__exit__  # a function in C that takes anything and gives None: the cheapest trace function


class _ThreadState(ctypes.Structure):
    """The beginning of PyThreadState in 3.11 (cpython/pystate.h)."""

    _fields_ = (
        ("prev", ctypes.c_void_p),
        ("next", ctypes.c_void_p),
        ("interp", ctypes.c_void_p),
        ("numbers", ctypes.c_int * 7),  # _initialized, _static, 3 of recursion, tracing, tracing_what
        ("cframe", ctypes.c_void_p),
        ("c_profilefunc", ctypes.c_void_p),
        ("c_tracefunc", ctypes.c_void_p),
        ("c_profileobj", ctypes.c_void_p),
        ("c_traceobj", ctypes.c_void_p),
        ("curexc", ctypes.c_void_p * 3),
        ("exc_info", ctypes.c_void_p),
        ("dict", ctypes.c_void_p),
        ("gilstate_counter", ctypes.c_int),
        ("async_exc", ctypes.c_void_p),
        ("thread_id", ctypes.c_ulong),
    )


_giving_way: list[object] = []


def give_way(tracer: object) -> None:
    """Another one of ours may take the place of this trace function; whose it is sets it again later."""
    _giving_way.append(tracer)


def gives_way(tracer: object) -> bool:
    return any(each is tracer for each in _giving_way)


class ThreadTrace:
    """Sets and clears trace functions of other threads. Raises `RuntimeError` where that can't be done."""

    def __init__(self) -> None:
        if sys.version_info[:2] != (3, 11) or sys.implementation.name != "cpython":
            raise RuntimeError("needs CPython 3.11")
        self._head = _function("PyInterpreterState_ThreadHead", ctypes.c_void_p, ctypes.c_void_p)
        # A second argument that C ignores: `accumulate` gives two.
        self._next = _function("PyThreadState_Next", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        self._set = _function("_PyEval_SetTrace", ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.py_object)
        self._interpreter = _function("PyInterpreterState_Get", ctypes.c_void_p)()
        self._trampoline = self._probe()

    def traced(self) -> dict[int, int]:
        """What traces each thread: thread id -> id of the trace function, 0 for none, or for one that gives way."""
        giving_way = set(map(id, _giving_way))
        return {thread: 0 if tracer in giving_way else tracer for thread, tracer in self.tracers().items()}

    def tracers(self) -> dict[int, int]:
        """The same, with those that give way."""
        rows = self._rows("thread_id", "c_tracefunc", "c_traceobj")
        return {thread: (obj or -1) if func else 0 for thread, func, obj in rows}

    def trace(self, threads: Iterable[int], tracer: object) -> None:
        """Sets `tracer` in those of the threads that have no trace function, or one that gives way."""
        wanted = list(threads)
        for other in _giving_way:
            if other is not tracer:
                self.clear(wanted, other)
        self._change({(thread, None) for thread in wanted}, ("thread_id", "c_tracefunc"), self._trampoline, tracer)

    def clear(self, threads: Iterable[int], tracer: object) -> None:
        """Takes the trace function away from those of the threads whose it is."""
        wanted = {(thread, id(tracer)) for thread in threads}
        self._change(wanted, ("thread_id", "c_traceobj"), None, ctypes.py_object())

    def _change(self, wanted: set[Any], fields: tuple[str, ...], function: int | None, argument: object) -> None:
        with _NoCollection():
            states, others = tee(self._walk())
            chosen = compress(states, map(wanted.__contains__, _read(others, *fields)))
            results = list(map(self._set, chosen, repeat(function), repeat(argument)))
        if any(results):
            raise RuntimeError("the interpreter refused a trace function")

    def _rows(self, *fields: str) -> list[Any]:
        with _NoCollection():
            return list(_read(self._walk(), *fields))

    def _walk(self) -> Iterator[int]:
        """The addresses of all thread states; to be exhausted within one call."""
        return takewhile(bool, accumulate(chain(map(self._head, (self._interpreter,)), repeat(0)), self._next))

    def _probe(self) -> int:
        """The address of the interpreter's own trace function, seen in a thread of ours; also proves the layout."""
        seen: list[tuple[int, int, int]] = []

        def tracer(*_args: object) -> None: ...

        def look() -> None:
            sys.settrace(tracer)
            try:
                rows = self._rows("thread_id", "c_tracefunc", "c_traceobj")
            finally:
                sys.settrace(None)
            seen.extend(row for row in rows if row[0] == threading.get_ident())

        threads.start(look, "devkit-probe").join()
        if len(seen) != 1 or seen[0][2] != id(tracer) or not seen[0][1]:
            raise RuntimeError("this interpreter keeps its threads in another way")
        return seen[0][1]


class _NoCollection:
    """No garbage collection, whose finalizers could let another thread run."""

    def __enter__(self) -> None:
        self._was_enabled = gc.isenabled()
        gc.disable()

    def __exit__(self, *_exception: object) -> None:
        if self._was_enabled:
            gc.enable()


def _read(addresses: Iterator[int], *fields: str) -> Iterator[Any]:
    return map(attrgetter(*fields), map(_ThreadState.from_address, addresses))


def _function(name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    # A prototype of our own: attributes of ctypes.pythonapi are shared with everybody else.
    address = ctypes.cast(getattr(ctypes.PyDLL(None), name), ctypes.c_void_p).value
    assert address is not None
    return ctypes.PYFUNCTYPE(result, *arguments)(address)
