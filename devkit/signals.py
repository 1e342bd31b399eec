"""Signals that end a command, held back where half a job must not be left: of the main thread, else nothing is done.

One that is ignored from the start, as under `nohup`, stays so, for this process and for those that it starts.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
AGAIN_S = 0.05  # until an interruption that was swallowed comes again
Handler = Callable[[int, FrameType | None], Any]


@contextmanager
def undisturbed() -> Iterator[None]:
    """A second Ctrl-C, or the deadline, must not end what ends the processes."""
    with handled((*ENDING, signal.SIGALRM), signal.SIG_IGN):
        yield


@contextmanager
def deferred() -> Iterator[None]:
    """Signals that would end the command take effect at its end."""
    waiting: list[int] = []
    try:
        with handled((*ENDING, signal.SIGALRM), lambda caught, _frame: waiting.append(caught)):
            yield
    finally:
        if waiting:
            signal.raise_signal(waiting[0])


@contextmanager
def interrupting() -> Iterator[None]:
    """SIGTERM, and the end of the terminal, interrupt as Ctrl-C does; once, so that the ending is not disturbed."""
    came: list[int] = []

    def interrupt(caught: int, _frame: FrameType | None) -> NoReturn:
        came.append(caught)
        for number in ENDING:
            if signal.getsignal(number) is interrupt:
                signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    def again() -> None:
        signal.signal(came[-1], interrupt)
        main = threading.main_thread().ident
        assert main is not None
        timer = threading.Timer(AGAIN_S, signal.pthread_kill, (main, came[-1]))
        timer.daemon = True
        timer.start()

    try:
        with handled(ENDING, interrupt), unswallowed(KeyboardInterrupt, again):
            yield
    except Exception as error:
        if came:  # a library has caught it half-way, and met what it had left undone
            raise KeyboardInterrupt from error
        raise


@contextmanager
def unswallowed(kind: type[BaseException], again: Callable[[], object]) -> Iterator[None]:
    """Within it `again` is called when an exception of this kind, raised by a handler, came to nothing.

    Python prints and forgets what is raised in a destructor, or while it forks.
    """
    hook = sys.unraisablehook

    def swallowed(unraisable: Any) -> None:
        if unraisable.exc_type is kind and threading.current_thread() is threading.main_thread():
            again()
        else:
            hook(unraisable)

    sys.unraisablehook = swallowed
    try:
        yield
    finally:
        sys.unraisablehook = hook


@contextmanager
def handled(numbers: tuple[signal.Signals, ...], handler: Handler | signal.Handlers) -> Iterator[None]:
    """Those of the signals that are not ignored have this handler."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in numbers}
    taken = {number: old for number, old in before.items() if old not in (signal.SIG_IGN, None)}
    try:
        for number in taken:
            signal.signal(number, handler)
        yield
    finally:
        for number, old in taken.items():
            signal.signal(number, old)


def as_shell(code: int) -> int:
    """The exit code of a process, as a shell has it; as `subprocess` has it, below zero by a signal.

    >>> as_shell(75), as_shell(-9)
    (75, 137)
    """
    return code if code >= 0 else 128 - code


def how_ended(code: int) -> str:
    """How a process with this exit code has ended; as `subprocess` has it, below zero by a signal.

    >>> how_ended(3), how_ended(-15), how_ended(-40)
    ('ended with exit code 3', 'was ended by SIGTERM', 'was ended by signal 40')
    """
    if code >= 0:
        return f"ended with exit code {code}"
    names = {each.value: each.name for each in signal.Signals}
    return f"was ended by {names.get(-code, f'signal {-code}')}"
