"""How a run ends that somebody else ends: Ctrl-C, or SIGTERM of a batch system, `timeout`, `ray job stop`, Kubernetes.

Two things at once. The main thread leaves what it does (`Leaving`), at once or, with `trainer.grace_period`, once the
step in progress is done and saved. And a thread of its own (`Word`) sees to it that the run's last word is said within
WORD_S and the process gone within GONE_S, with all that it has started, whatever the main thread hangs in: where the
signal went to the whole process group, Ray is dead before the run knows, and each of its calls would wait for it.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

import psutil

from trainer.commands import report_error
from trainer.descendants import descendants, end_descendants
from trainer.errors import Interrupted

WORD_S = 3.0  # from the signal, or the end of the grace period, to the last word
GONE_S = 10.0  # and to the end: Ray's own shutdown takes two to five
ONE_SIGNAL_S = 1.0  # SIGTERM twice within it is one: to the process group, and passed on by who has started the run
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Leaving:
    """What the run's loop knows of it."""

    def __init__(self, grace_s: float = 0.0) -> None:
        """SIGTERM within a `step` gives it `grace_s` to come to its end; a second, later, and Ctrl-C do not wait."""
        self.asked = False  # to leave when the step is done
        self.note: Callable[[str], None] = lambda text: None
        self._grace_s = grace_s
        self._in_step = False
        self._timer: threading.Timer | None = None
        self._asked_at = -math.inf

    def listen(self) -> None:
        """SIGTERM becomes a KeyboardInterrupt of the main thread, as Ctrl-C is; so does SIGHUP, the end of a terminal.

        One that `nohup` ignores stays ignored. Nothing happens in another thread.
        """
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._on_sigterm)
            if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
                signal.signal(signal.SIGHUP, signal.default_int_handler)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around a step that is worth finishing, and its checkpoint. Raises KeyboardInterrupt at its end if asked."""
        self._in_step = True
        try:
            yield
        finally:
            self._in_step = False
            if self._timer is not None:
                self._timer.cancel()
                self._timer.join()
        if self.asked:
            raise KeyboardInterrupt

    def _on_sigterm(self, _number: int, _frame: FrameType | None) -> None:
        if self.asked and time.monotonic() - self._asked_at < ONE_SIGNAL_S:
            return
        if self._grace_s <= 0 or not self._in_step or self.asked:
            raise KeyboardInterrupt
        self.asked, self._asked_at = True, time.monotonic()
        self._timer = threading.Timer(self._grace_s, self._end_grace)
        self._timer.daemon = True
        self._timer.start()
        self.note(f"SIGTERM: finishing and saving the step in progress within {self._grace_s:.0f} s, then this ends")

    def _end_grace(self) -> None:
        self._asked_at = -math.inf
        os.kill(os.getpid(), signal.SIGTERM)


class Word:
    """The last word of a run that is interrupted: said once, by its main thread or, if that hangs, in time."""

    def __init__(self, way_on: Callable[[], str], grace_s: float) -> None:
        """`way_on` says what the same command continues from."""
        self.signals = 0  # that have come
        self._way_on, self._grace_s = way_on, grace_s
        self._lock, self._is_said = threading.Lock(), False
        self._started: set[psutil.Process] = set()  # once their parents are dead nothing says whose they were

    def say(self) -> Interrupted:
        """The error that it is, which nobody has to report."""
        error = Interrupted("interrupted", hint=self._way_on())
        with self._lock:
            if not self._is_said:
                report_error(error)
            self._is_said = error.is_told = True
        return error

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Within it the thread runs. Another thread than the main one gets no signals, and needs none."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        reader, writer = socket.socketpair()
        writer.setblocking(False)
        before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)  # written in C, whatever Python does
        threading.Thread(target=self._watch, args=(reader,), name="last-word", daemon=True).start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            writer.close()  # which ends the thread

    def _watch(self, reader: socket.socket) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # they are the main thread's
        with reader:
            if not self._deadline_comes(reader):
                return
            self.say()
            forget_stderr()
            gone = time.monotonic() + GONE_S - WORD_S
            while (left := gone - time.monotonic()) > 0:
                reader.settimeout(left)
                if _came(reader) == b"":
                    return
            self._end()

    def _end(self) -> NoReturn:
        """Of Ray's processes, too, and of an engine's, which may hold a GPU and have not heard of the signal."""
        end_descendants(also=self._started)
        os._exit(Interrupted.exit_code)

    def _deadline_comes(self, reader: socket.socket) -> bool:
        """False if the run comes to its end before."""
        deadline, first = math.inf, -math.inf
        while (left := deadline - time.monotonic()) > 0:
            reader.settimeout(None if left == math.inf else left)
            came = _came(reader)
            if came == b"":
                return False
            for number in came or b"":
                now = time.monotonic()
                if number not in SIGNALS or (number == signal.SIGTERM and now - first < ONE_SIGNAL_S):
                    continue
                waits = 0.0
                if number == signal.SIGTERM and not self.signals:
                    waits, first = self._grace_s, now
                self._started |= descendants()
                self.signals += 1
                deadline = min(deadline, now + waits + WORD_S)
        return True


def _came(reader: socket.socket) -> bytes | None:
    """Numbers of signals; None after the time limit, nothing when the run has come to its end."""
    try:
        return reader.recv(64)
    except TimeoutError:
        return None


def forget_stderr() -> None:
    """After the last word: what Ray's own code has to say of its end is no news."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
