"""Functions of the debugger around others leave no frame in the traceback of what passes them: the user reads that."""

from __future__ import annotations

import sys


def unframed(error: BaseException) -> None:
    """Takes the caller's frame out of the traceback of what it handles, and is about to raise again by a bare `raise`.

    Nothing else of the exception changes. Its attribute is not set by its name: a class may refuse that, as a frozen
    dataclass does.
    """
    trace = error.__traceback__
    if trace is not None and trace.tb_frame is sys._getframe(1):
        BaseException.with_traceback(error, trace.tb_next)


__all__ = ["unframed"]
