"""Catches what leaves the program's code: in Ray's tasks and actors, in its threads, in Ray Train, at `sys.exit`.

Ray's own post-mortem is entered through two functions of `ray.util.rpdb`, which `ray.util.pdb` is another name of.
Ray's core uses the second name, at the time of the failure; Ray Data copies them from the first, to decide how it wraps
errors. So only the second name is changed: Ray Data behaves as ever. Ray Serve's failed requests are not ours.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from types import CodeType, FrameType, ModuleType, TracebackType
from typing import Any

from . import ended, threads
from .imports import on_import
from .words import BY_SIGTERM

OnCrash = Callable[[BaseException, str], object]  # is given the exception and the kind of the crash

_SEEN = "__devkit_seen__"  # on an exception: the process and the task that reported it
_ASYNC_ACTOR_THREAD = "AsyncIO Thread"  # Ray's name for the threads with an async actor's loops


def install_in_driver(on_crash: OnCrash) -> Callable[[], None]:
    """As `install`; gives what is to be called before Ray ends in the driver, while a crash can still be told."""
    report = _Reporter(on_crash)
    _watch_threads(report)
    _watch_driver(report)
    _watch_hard_exits(report, "driver")
    _watch_soft_exits(report)
    return lambda: _on_its_way(report)


def install(on_crash: OnCrash) -> None:
    """`on_crash` may take its time: the thread that failed waits for it. What it raises is reported, not passed on."""
    report = _Reporter(on_crash)
    _watch_threads(report)
    on_import("ray.util", lambda module: _watch_tasks(module, report))
    on_import("asyncio.futures", _keep_tracebacks)
    for name in ("thread_runner", "context"):
        path = "worker_group.thread_runner" if name == "thread_runner" else name
        on_import(f"ray.train.v2._internal.execution.{path}", lambda module: _watch_train(module, report))
    on_import("ray.air._internal.util", lambda module: _watch_runner_threads(module, report))
    _watch_exits(report)
    _watch_hard_exits(report, "exit")


class _Reporter:
    """Reports each exception once, though it passes several of our places on its way."""

    def __init__(self, on_crash: OnCrash) -> None:
        self._on_crash = on_crash
        self._busy = threading.local()

    def __call__(self, error: BaseException | None, kind: str) -> None:
        if error is None or getattr(self._busy, "now", False):
            return
        self._busy.now = True
        try:
            if self._is_new(error):
                self._on_crash(error, kind)
        except Exception as problem:  # noqa: BLE001 - keeps the program's own error on its way, which matters more
            _say(f"the crash could not be reported: {problem!r}")
        finally:
            self._busy.now = False

    def _is_new(self, error: BaseException) -> bool:
        from .identity import task_id

        mark = f"{os.getpid()}:{task_id()}"  # pickled with the exception, it means nothing where that arrives
        try:
            if vars(error).get(_SEEN) == mark:
                return False
            setattr(error, _SEEN, mark)
        except Exception:  # noqa: BLE001 - a class of somebody's own make takes no attribute: then it may be told twice
            pass
        return True


def _say(text: str) -> None:
    print(f"devkit: {text}", file=sys.__stderr__, flush=True)


# ---- Ray's tasks, actors and generators


_QUEUE = os.path.join("util", "queue.py")  # where Ray has its queue, an actor
_ANSWERS = frozenset({"Empty", "Full", "QueueEmpty", "QueueFull"})


class _RayPdb(ModuleType):
    """Stands for `ray.util.rpdb` under its other name, and answers for it but for post-mortems."""

    def __init__(self, real: ModuleType, report: _Reporter) -> None:
        super().__init__(real.__name__)
        self._devkit_real = real
        self._devkit_report = report

    def __getattr__(self, name: str) -> Any:
        return getattr(self._devkit_real, name)

    def _is_ray_debugger_post_mortem_enabled(self) -> bool:
        return not _is_called_by_serve()

    def _post_mortem(self) -> None:
        error = sys.exc_info()[1]
        if error is not None and not is_an_answer(error):
            self._devkit_report(error, _kind_of_task())


def _watch_tasks(util: Any, report: _Reporter) -> None:
    if not isinstance(util.pdb, _RayPdb):
        util.pdb = _RayPdb(util.pdb, report)


def _keep_tracebacks(futures: Any) -> None:
    """asyncio hands a time-out of an async method to Ray's thread as a copy, which would not say where it was from."""
    original = futures._convert_future_exc

    def convert(error: BaseException) -> BaseException:
        copy: BaseException = original(error)
        if copy is not error:
            copy.__cause__, copy.__context__ = error.__cause__, error.__context__
            copy.__suppress_context__ = error.__suppress_context__
            copy.__traceback__ = error.__traceback__
        return copy

    futures._convert_future_exc = convert


def _is_called_by_serve() -> bool:
    try:
        return str(sys._getframe(2).f_globals.get("__name__", "")).startswith("ray.serve")
    except ValueError:  # called by Ray's core, in a thread that has no other Python frame
        return False


def _kind_of_task() -> str:
    worker = getattr(sys.modules.get("ray._private.worker"), "global_worker", None)
    actor_id = getattr(worker, "actor_id", None)
    return "task" if actor_id is None or actor_id.is_nil() else "actor"


# ---- threads, Ray Train, the driver


def _watch_threads(report: _Reporter) -> None:
    previous = threading.excepthook

    def hook(arguments: Any) -> None:
        error, thread = arguments.exc_value, arguments.thread
        if threads.is_ours(thread):
            _say(f"the thread {thread.name} ended: {error!r}")
            return
        if not isinstance(error, SystemExit):
            if error is not None and thread is not None:
                ended.note(thread, error)
            if error is not None and not _is_of_ray_alone(error):
                report(error, "thread")
        elif thread is not None and thread.name.startswith(_ASYNC_ACTOR_THREAD):
            report(error, "exit")  # its loop is gone: no call of this actor will ever be answered
        previous(arguments)

    threading.excepthook = hook


def _watch_train(module: Any, report: _Reporter) -> None:
    """Ray Train catches what its worker function raises, and passes it to this function to make a report of it."""
    original = module.construct_user_exception_with_traceback

    def construct(error: BaseException, *arguments: Any, **named: Any) -> Any:
        report(error, "train")
        return original(error, *arguments, **named)

    module.construct_user_exception_with_traceback = construct


def _watch_runner_threads(module: Any, report: _Reporter) -> None:
    """Ray Train's first version, and Ray Tune's functions."""
    original = module.RunnerThread._propagate_exception

    def propagate(self: Any, error: BaseException) -> None:
        report(error, "train")
        original(self, error)

    module.RunnerThread._propagate_exception = propagate


def _watch_driver(report: _Reporter) -> None:
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, entry: Any) -> None:
        if not isinstance(error, KeyboardInterrupt):
            with suppress(KeyboardInterrupt):  # who is impatient sees the program's own error all the same
                report(error, "driver")
        try:
            previous(kind, error, entry)
        except KeyboardInterrupt:  # Ray's own asks its GCS first, and a second Ctrl-C may come while it does
            sys.__excepthook__(kind, error, entry)

    sys.excepthook = hook


def _on_its_way(report: _Reporter) -> None:
    """What makes a driver call `ray.shutdown` in a `finally` or an `except`: it may print two lines of it later, and
    leave with an exit code, when nobody can be told any more.
    """
    error = sys.exc_info()[1]
    if isinstance(error, Exception):
        report(error, "driver")


# ---- sys.exit, os._exit


def _watch_exits(report: _Reporter) -> None:
    """An exit that leaves a task. Ray's core asks for its traceback then, for the timeline; nothing else tells of it.

    With `RAY_enable_timeline=0` it does not ask; such a worker is found gone, with its exit code.
    """
    original_format = traceback.format_exc

    @functools.wraps(original_format)
    def format_exc(*arguments: Any, **named: Any) -> str:
        error = sys.exc_info()[1]
        if isinstance(error, SystemExit) and _is_called_by_core() and _is_unwanted(error):
            report(error, "exit")
        return original_format(*arguments, **named)

    traceback.format_exc = format_exc


def _watch_hard_exits(report: _Reporter, kind: str) -> None:
    """`os._exit`, which leaves no trace; what is handled where it is called is kept as what came before."""
    here = os.getpid()  # a forked child leaves by `os._exit` when it has done its work, and that is no crash
    original = os._exit

    @functools.wraps(original)
    def hard_exit(status: int) -> Any:
        handled = sys.exc_info()[1]
        ours = os.getpid() == here and not _is_rays(sys._getframe(1).f_code.co_filename)
        fails = _is_failure(status, kind) or (kind == "driver" and isinstance(handled, Exception))
        if ours and fails and not isinstance(handled, KeyboardInterrupt):
            report(_raised_here(SystemExit(_left_by(status, handled)), handled), kind)
        original(status)

    os._exit = hard_exit


def _left_by(status: int, handled: BaseException | None) -> str:
    """Nothing else would tell that this was no `sys.exit`, and what it was about."""
    from .values import error_line

    return f"os._exit({status})" + (f" after {error_line(handled)}" if handled is not None else "")


def _watch_soft_exits(report: _Reporter) -> None:
    """`sys.exit` of a driver that says it has failed: what it had found wrong is in its variables, and nowhere else.

    Called while an exception is handled, as Hydra does with each that its program raises, it is about that one.
    """
    original = sys.exit

    @functools.wraps(original)
    def soft_exit(status: Any = None, /) -> Any:
        handled = sys.exc_info()[1]
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and _is_by_signal(sys._getframe(1).f_code):  # whatever is handled at that moment is not why
            report(_raised_here(SystemExit(f"{status}: {BY_SIGTERM}"), None), "driver")
        elif is_main and status not in (0, None) and not isinstance(handled, KeyboardInterrupt | SystemExit):
            report(handled or _raised_here(SystemExit(status), None), "driver")
        original(status)

    sys.exit = soft_exit


def _is_by_signal(code: CodeType) -> bool:
    """Whether it is Ray's handler of SIGTERM that leaves."""
    return code.co_name == "sigterm_handler" and _is_rays(code.co_filename)


def _is_failure(status: object, kind: str) -> bool:
    """Whether somebody loses by it: who waits for a task is told that its worker died, be the status 0."""
    from .identity import task_id

    return isinstance(status, int) and (status != 0 or (kind == "exit" and bool(task_id())))


def _is_called_by_core() -> bool:
    """Whether no Python function called our caller but the loop that runs Ray's tasks."""
    try:
        code = sys._getframe(2).f_code
    except ValueError:  # a thread of Ray's core, which has no other Python frame
        return True
    return code.co_name == "main_loop" and _is_rays(code.co_filename)


def _is_unwanted(error: SystemExit) -> bool:
    """Ray ends workers in this way too, and says why; and an actor may end itself with code 0, by a line of its own."""
    if hasattr(error, "ray_terminate_msg"):
        return False
    return error.code not in (0, None) or _kind_of_task() != "actor" or is_by_given_code(error)


def is_by_given_code(error: SystemExit) -> bool:
    """Whether it was raised by `exit()`, which is for prompts, or in code that was made of a text, as of a candidate
    that is graded: whoever runs that does not mean to end its actor.
    """
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(files) and (os.path.basename(files[-1]) == "_sitebuiltins.py" or files[-1].startswith("<"))


def _is_of_ray_alone(error: BaseException) -> bool:
    """Whether one of Ray's own threads failed at Ray's own work: no crash of the program's."""
    files = {frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)}
    from .sources import is_standard

    return any(map(_is_rays, files)) and all(_is_rays(file) or is_standard(file) for file in files)


def is_an_answer(error: BaseException) -> bool:
    """Whether a queue of Ray's says so that it is empty, or full: who has asked it expects that, and may go on."""
    from .sources import is_standard

    files = (frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__))
    places = [each for each in files if not is_standard(each)]
    return type(error).__name__ in _ANSWERS and bool(places) and _is_rays(places[-1]) and places[-1].endswith(_QUEUE)


def _is_rays(filename: str) -> bool:
    ray = sys.modules.get("ray")
    folder = os.path.dirname(getattr(ray, "__file__", None) or "")
    return bool(folder) and filename.startswith(folder + os.sep)


def _raised_here(error: BaseException, handled: BaseException | None) -> BaseException:
    """The exception with the stack of whoever calls, as if it had come all the way down."""
    error.__context__ = handled
    frame: FrameType | None = sys._getframe(2)
    entry = None
    while frame is not None:
        entry = TracebackType(entry, frame, frame.f_lasti, frame.f_lineno or 0)
        frame = frame.f_back
    return error.with_traceback(entry)
