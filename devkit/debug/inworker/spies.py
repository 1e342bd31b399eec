"""Programs that look at a process for us, such as py-spy: what they cost is no work of the program that starts them."""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import suppress
from types import TracebackType

from . import costs

_PAUSE = 0.005  # seconds


class Spy(subprocess.Popen[bytes]):
    """Within it, the program is our child. The kernel adds what an ended child has read and written to its parent."""

    def __enter__(self) -> Spy:
        costs.add_child(self.pid)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            super().__exit__(kind, error, traceback)
        finally:
            costs.remove_child(self.pid)

    def wait(self, timeout: float | None = None) -> int:
        """As it is, and notes before it is buried what it has read and written. Raises TimeoutExpired."""
        if self.returncode is None and hasattr(os, "waitid"):
            end = None if timeout is None else time.monotonic() + timeout
            with suppress(ChildProcessError):  # somebody else has buried it
                while os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
                    if end is not None and time.monotonic() >= end:
                        raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
                    time.sleep(_PAUSE)
                costs.add_bytes(costs.bytes_in(f"/proc/{self.pid}/io"))
        return super().wait(timeout)
