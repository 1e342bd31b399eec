"""The stacks of this process: from inside, which always works, and by py-spy, which also sees native frames."""

from __future__ import annotations

import gc
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from .lastwords import last_words
from .sources import is_users

__all__ = [
    "PySpyError",
    "Thread",
    "all_threads",
    "asyncio_tasks",
    "awaiting",
    "describe",
    "is_ours",
    "last_words",
    "py_spy",
    "statements_of",
    "unwrapped",
    "users_lines",
    "with_statements",
]

OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
STOPS = OURS + "stops.py"
HOLDS = "_hold"  # the function there that holds a thread; its variable `stop` is the stop
OUR_THREADS = "devkit"  # our threads' names start with it
DEPTH = 200  # frames of a thread, the innermost ones
STATEMENTS, VARIABLES = 3, 8  # lines of a thread, and variables of each, where py-spy looks
TASKS = 100  # asyncio tasks that are listed
PTRACE_HINT = "py-spy lacks permission for this process (it needs SYS_PTRACE)"
_PR_SET_PTRACER = 0x59616D61
_QUOTED = re.compile(r"""\"([^"'\\]*)\"""")  # as Python has it: in other quotes
_OBJECT = re.compile(r"<([\w.]+)(?: object)? at 0x[0-9a-fA-F]+>")

Thread = dict[str, Any]  # a `documents.ThreadStack`


def users_lines(frame: FrameType | None) -> Iterator[dict[str, Any]]:
    """{"file", "line", "function"} of a stack's frames that are the program's own, innermost first."""
    while frame is not None:
        code = frame.f_code
        if is_users(code.co_filename) and not code.co_filename.startswith(OURS):
            yield {"file": code.co_filename, "line": frame.f_lineno or 0, "function": code.co_qualname}
        frame = frame.f_back


def all_threads() -> list[Thread]:
    """Every Python thread but our own, and every asyncio task that waits, as a thread named `task NAME`."""
    names = {ident: thread.name for ident, thread in _known_threads().items()}
    threads = [
        _thread(names.get(ident, f"thread {ident}"), frame)
        for ident, frame in sys._current_frames().items()
        if not names.get(ident, "").startswith(OUR_THREADS)
    ]
    return sorted(threads, key=lambda thread: str(thread["name"] != "MainThread")) + list(_waiting_tasks())


def _thread(name: str, frame: FrameType) -> Thread:
    program, stop = _program_frame(frame)
    places = [*_unwound(stop), *_walk(program)][:DEPTH]
    return {"name": name, "frames": [describe(*place) for place in places], "stopped": program is not frame}


def describe(frame: FrameType, line: int) -> dict[str, Any]:
    code = frame.f_code
    return {"file": code.co_filename, "line": line, "function": code.co_qualname}


def is_ours(filename: str) -> bool:
    """Whether the code is the debugger's, which nobody wants to see in a stack."""
    return filename.startswith(OURS)


def _known_threads() -> dict[int, threading.Thread]:
    """Without `threading.enumerate`'s lock: a thread may be stopped while it holds it."""
    return dict(getattr(threading, "_active", {}))


def _walk(frame: FrameType | None) -> Iterator[tuple[FrameType, int]]:
    count = 0
    while frame is not None and count < DEPTH:
        if not is_ours(frame.f_code.co_filename):
            count += 1
            yield frame, frame.f_lineno or 0
        frame = frame.f_back


def _program_frame(frame: FrameType | None) -> tuple[FrameType | None, Any]:
    """Where the program is: below what a stopped thread does while it waits, which may be its whole event loop.

    And the stop, if it is in one.
    """
    start, each, stop = frame, frame, None
    while each is not None:
        if each.f_code.co_filename == STOPS:
            start = each.f_back
            stop = each.f_locals.get("stop") if each.f_code.co_name == HOLDS else stop
        each = each.f_back
    return start, stop


def _unwound(stop: Any) -> Iterator[tuple[FrameType, int]]:
    """The frames that an exception has left already when a thread stops at it, innermost first."""
    traceback = getattr(stop, "traceback", None) if getattr(stop, "exception", None) is not None else None
    places: list[tuple[FrameType, int]] = []
    while traceback is not None:
        if not is_ours(traceback.tb_frame.f_code.co_filename):
            places.append((traceback.tb_frame, traceback.tb_lineno))
        traceback = traceback.tb_next
    yield from reversed(places[-DEPTH:])


def _waiting_tasks() -> Iterator[Thread]:
    """What an async actor's other calls wait for: their stacks are in no thread."""
    found = 0
    for task in asyncio_tasks():
        if found >= TASKS:
            return
        try:
            frames = [] if task.done() else [describe(*place) for place in awaiting(task.get_coro())]
            name = f"task {task.get_name()}"
        except Exception as error:  # noqa: BLE001 - a task of somebody's own make: the other stacks are still wanted
            frames, name = [], f"task ({error!r})"
        if frames:
            found += 1
            yield {"name": name, "frames": frames, "stopped": False}  # its thread may be


def asyncio_tasks() -> list[Any]:
    """All tasks of all loops. The module's public way needs the loops, which it keeps for each thread by itself."""
    tasks = sys.modules.get("asyncio.tasks")
    found: list[Any] = []
    for name in ("_all_tasks", "_scheduled_tasks", "_eager_tasks"):  # Python 3.11, then two of 3.12
        for _ in range(10):
            try:
                found.extend(getattr(tasks, name, None) or ())
                break
            except RuntimeError:  # the set grew meanwhile, in its own thread
                continue
    unique = {id(task): task for task in found}
    return sorted(unique.values(), key=_age)


def _age(task: Any) -> tuple[int, str]:
    """The oldest first, as far as names tell: asyncio numbers the tasks that nobody has named."""
    try:
        name = str(task.get_name())
    except Exception:  # noqa: BLE001 - a task of somebody's own make
        name = ""
    number = name.removeprefix("Task-")
    return (int(number) if number.isdecimal() else sys.maxsize), name


_WRAPPERS = frozenset({"coroutine_wrapper", "async_generator_asend", "async_generator_athrow"})


def awaiting(coroutine: Any) -> list[tuple[FrameType, int]]:
    """From the task's own coroutine to the innermost one that it awaits; none for the task that runs just now."""
    places: list[tuple[FrameType, int]] = []
    while coroutine is not None and len(places) < DEPTH:
        prefix = next((prefix for prefix in ("cr", "gi", "ag") if hasattr(coroutine, f"{prefix}_frame")), None)
        if prefix is None:
            break
        if prefix != "ag" and getattr(coroutine, f"{prefix}_running"):  # of an async generator also while it awaits
            return []
        frame = getattr(coroutine, f"{prefix}_frame")
        if frame is not None and not is_ours(frame.f_code.co_filename):
            places.append((frame, frame.f_lineno or 0))
        coroutine = unwrapped(getattr(coroutine, "gi_yieldfrom" if prefix == "gi" else f"{prefix}_await"))
    return places[::-1]


def unwrapped(awaited: Any) -> Any:
    """What is behind a wrapper that has no attribute for it.

    Ray's own coroutines, which are compiled, await one; so does who asks an async generator for its next value, as
    `async with` does of an `asynccontextmanager`.
    """
    if type(awaited).__name__ not in _WRAPPERS:
        return awaited
    behind = (each for each in gc.get_referents(awaited) if hasattr(each, "cr_frame") or hasattr(each, "ag_frame"))
    return next(behind, None)


class PySpyError(RuntimeError):
    """Why py-spy could not look."""


class NoPySpyError(PySpyError):
    """There is none."""


def py_spy(pid: int, native: bool = False, timeout: float = 10.0) -> list[Thread]:
    """The same by py-spy, which also sees a process that holds Python's lock, and native frames. Raises PySpyError."""
    return threads_of(_dumped(pid, ["--native"] if native else [], timeout))


def with_statements(pid: int, timeout: float = 10.0) -> tuple[list[Thread], list[dict[str, Any]]]:
    """The same, and where each thread stands in the program, as `statements.describe` says it: the line, and the
    variables of its function, as far as they are plain data. Raises PySpyError.
    """
    output = _dumped(pid, ["--locals"], timeout)
    return threads_of(output), statements_of(output)


def _dumped(pid: int, options: list[str], timeout: float) -> bytes:
    import subprocess

    from .spies import Spy

    program = _find_py_spy()
    if program is None:
        raise NoPySpyError("py-spy is not installed with this Python, nor on PATH")
    command = [program, "dump", "--json", "--pid", str(pid), *options]
    pipe = subprocess.PIPE
    with Spy(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe) as child:
        _let_trace(pid, child.pid)
        try:
            output, errors = child.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            raise PySpyError(f"py-spy did not answer within {timeout:g} s") from None
        finally:
            child.kill()
    if child.returncode != 0:
        raise PySpyError(_reason(errors))
    return output


def threads_of(output: bytes) -> list[Thread]:
    """What py-spy has printed. Raises PySpyError for anything else."""
    return _read(output, _of_py_spy)


def statements_of(output: bytes) -> list[dict[str, Any]]:
    """The same where py-spy has printed variables, too."""
    return _read(output, _statements)


def _read(output: bytes, reader: Callable[[Any], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    import json

    try:
        return reader(json.loads(output))
    except (ValueError, RecursionError) as error:
        raise PySpyError(f"py-spy answered something else than JSON: {error}") from None
    except (TypeError, AttributeError) as error:
        raise PySpyError(f"py-spy answered something else than stacks: {error}") from None


def _find_py_spy() -> str | None:
    import shutil

    return shutil.which("py-spy", path=os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")]))


def _let_trace(pid: int, tracer: int) -> None:
    """Allows our own child to look at us, where only parents may look at their children (Yama's `ptrace_scope` 1)."""
    if pid != os.getpid() or sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, tracer, 0, 0, 0)  # fails where there is no such rule, which is fine


def _reason(errors: bytes) -> str:
    text = errors.decode(errors="replace").strip()
    lowered = text.lower()
    if "permission" in lowered or "not permitted" in lowered or "ptrace" in lowered:
        return PTRACE_HINT
    return text.splitlines()[-1] if text else "py-spy failed without a message"


def _of_py_spy(document: list[dict[str, Any]]) -> list[Thread]:
    threads = []
    for thread in document:
        name = thread.get("thread_name") or f"thread {thread.get('thread_id')}"
        frames = [
            {"file": frame.get("filename", ""), "line": frame.get("line", 0), "function": frame.get("name", "")}
            for frame in thread.get("frames", ())
        ]
        part = program_part(name, frames)
        threads.append({**part, "gil": True} if part is not None and thread.get("owns_gil") else part)
    return [thread for thread in threads if thread is not None]


def _statements(document: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each thread that runs something of the program's, the innermost lines of that."""
    found = []
    for thread in document:
        frames = [frame for frame in thread.get("frames", ()) if _is_the_programs(str(frame.get("filename", "")))]
        if frames:
            name = thread.get("thread_name") or "MainThread"
            found.append({"thread": str(name), "lines": [_statement(frame) for frame in frames[:STATEMENTS]]})
    return found


def _is_the_programs(file: str) -> bool:
    return bool(file) and is_users(file) and not is_ours(file)


def _statement(frame: dict[str, Any]) -> dict[str, Any]:
    import linecache

    from .redaction import redact, scrub

    file, line = str(frame["filename"]), int(frame.get("line") or 0)
    shown = ((str(each["name"]), _as_said(each.get("repr"))) for each in frame.get("locals") or ())
    known = [(name, text) for name, text in shown if text][:VARIABLES]
    values = {name: scrub(str(redact(name, text))) for name, text in known}
    at = {"file": file, "line": line, "function": str(frame.get("name", ""))}
    return {"at": at, "text": scrub(linecache.getline(file, line).strip()), "values": values}


def _as_said(text: Any) -> str:
    """A value as py-spy has it, which knows no more of most objects than their address; of such a one, and of a list of
    such ones, nothing.

    >>> _as_said("[1, <Pipe at 0x7f00>]"), _as_said("[<Pipe at 0x7f00>]"), _as_said("?"), _as_said(None)
    ('[1, <Pipe>]', '', '', '')
    >>> _as_said('"train"'), _as_said('{"id": 47}')
    ("'train'", "{'id': 47}")
    """
    said = "" if text in (None, "?") else str(text)
    is_all = bool(_OBJECT.search(said)) and not _OBJECT.sub("", said).strip("[](), ")
    return "" if is_all else _QUOTED.sub(r"'\1'", _OBJECT.sub(r"<\1>", said))


def program_part(name: str, frames: list[dict[str, Any]]) -> Thread | None:
    """A thread as somebody else saw it, without what is ours; None for a thread of ours."""
    outer = next((frame["file"] for frame in reversed(frames) if frame["file"] != threading.__file__), "")
    if name.startswith(OUR_THREADS) or is_ours(outer):
        return None
    depth = max((number + 1 for number, frame in enumerate(frames) if frame["file"] == STOPS), default=0)
    program = [frame for frame in frames[depth:] if not is_ours(frame["file"])]
    return {"name": name, "frames": program, "stopped": depth > 0}
