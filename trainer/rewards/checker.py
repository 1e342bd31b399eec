"""Mathematical equality in a child process, so that it works in any thread and always ends.

math-verify bounds its time with SIGALRM, which only a main thread may use, and which can't interrupt one long C call
(`10**10**10`). So one child per process does the work: the kernel ends it when a comparison has used `CPU_SECONDS` of
processor time or `MEMORY_BYTES` of memory, and the next comparison starts another. Processor time and not wall time, so
that a busy machine scores as an idle one does. A comparison that ended its child counts as "not equal".
"""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import threading
from typing import IO

from trainer.errors import RewardError

CPU_SECONDS = 3.0  # of one comparison; all that MATH needs take under 0.5
WALL_SECONDS = 60.0  # a child that neither answers nor uses the processor
EXIT_SECONDS = 5.0  # that a child may take to leave
MEMORY_BYTES = 4 << 30

_PROGRAM = "from trainer.rewards.checker import serve; serve()"
_OUT_OF_BOUNDS = {-signal.SIGPROF, -signal.SIGKILL, -signal.SIGSEGV}  # time, memory (OOM killer), recursion in C


class Checker:
    """A child process that compares, started on first use; one comparison at a time."""

    def __init__(self, cpu_seconds: float = CPU_SECONDS, wall_seconds: float = WALL_SECONDS) -> None:
        self._cpu_seconds = cpu_seconds
        self._wall_seconds = wall_seconds
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None

    def equal(self, gold: str, answer: str) -> bool:
        """Whether math-verify finds `answer` equal to `gold`; False if that can't be told within the bounds.

        Raises RewardError if the child can't do its work at all.
        """
        with self._lock:
            if self._child is not None and self._child.poll() is not None:  # ended while idle: no comparison's fault
                _end(self._child)
                self._child = None
            self._child = self._child or self._start()
            reply = self._ask(self._child, json.dumps([gold, answer]).encode() + b"\n")
            if not reply:
                self._bury(self._child)
            return reply == b"1\n"

    def close(self) -> None:
        with self._lock:
            if self._child is not None:
                _pipes(self._child)[0].close()  # it leaves by itself if it can
                _end(self._child)
            self._child = None

    def _start(self) -> subprocess.Popen[bytes]:
        if importlib.util.find_spec("math_verify") is None:
            raise RewardError("the math reward needs math-verify", hint="pip install math-verify")
        # sys.path and not the environment's: Ray and pytest add to it while running.
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        return subprocess.Popen(
            [sys.executable, "-P", "-W", "ignore", "-c", _PROGRAM, str(self._cpu_seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,  # Ctrl-C is for the parent; this one ends with its stdin
        )

    def _ask(self, child: subprocess.Popen[bytes], question: bytes) -> bytes:
        """The child's answer; empty if it ended or is stuck."""
        stdin, stdout = _pipes(child)
        try:
            stdin.write(question)
        except BrokenPipeError:
            return b""
        waiting = select.poll()  # not select(): a Ray worker has file descriptors above 1023
        waiting.register(stdout, select.POLLIN)
        if not waiting.poll(self._wall_seconds * 1000):
            child.kill()
        return stdout.readline()

    def _bury(self, child: subprocess.Popen[bytes]) -> None:
        self._child = None
        code = _end(child)
        if code not in _OUT_OF_BOUNDS:
            raise RewardError(
                f"the math checker process ended with exit code {code}",
                hint="its stderr says why; try: python -c 'import math_verify'",
            )

    def forget(self) -> None:
        """Lets go of a child that belongs to the process we were forked from, without ending it."""
        self._lock = threading.Lock()
        if self._child is not None:
            for pipe in _pipes(self._child):
                pipe.close()
            self._child.returncode = 0  # not ours to wait for
        self._child = None


def _pipes(child: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    assert child.stdin is not None and child.stdout is not None
    return child.stdin, child.stdout


def _end(child: subprocess.Popen[bytes]) -> int:
    """Ends the child if it hasn't ended, and gives its exit code."""
    stdin, stdout = _pipes(child)
    try:
        code = child.wait(timeout=EXIT_SECONDS)  # it is on its way out, with a code that says why
    except subprocess.TimeoutExpired:
        child.kill()
        code = child.wait()
    stdin.close()
    stdout.close()
    return code


CHECKER = Checker()
atexit.register(CHECKER.close)
os.register_at_fork(after_in_child=CHECKER.forget)


def serve() -> None:
    """The child: JSON pairs on stdin, a line with 1 or 0 for each on stdout, until stdin ends."""
    import logging
    import resource

    limit = float(sys.argv[1])
    if sys.platform == "linux":  # macOS refuses it
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints must not look like an answer
    logging.disable(logging.CRITICAL)  # math-verify warns that its time-outs are off: ours are not

    from math_verify import LatexExtractionConfig, parse, verify

    boxed = [LatexExtractionConfig(boxed_match_priority=0)]
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, limit)
        gold, answer = (parse(f"\\boxed{{{text}}}", boxed, parsing_timeout=None) for text in json.loads(line))
        equal = verify(gold, answer, timeout_seconds=None)
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(int(equal), file=replies, flush=True)
