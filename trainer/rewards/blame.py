"""Says in one line what a user's code raised, and where."""

from __future__ import annotations

import sysconfig
import traceback

_LIBRARIES = tuple({sysconfig.get_path(kind) for kind in ("stdlib", "purelib", "platlib")})
_MAX_CHARS = 500


def what(exc: BaseException) -> str:
    """
    >>> what(ValueError("two\\nlines"))
    'ValueError: two lines'
    """
    text = " ".join(str(exc).split())
    return f"{type(exc).__name__}: {text[:_MAX_CHARS]}" if text else type(exc).__name__


def place(exc: BaseException) -> str:
    """`file:line in function` of the innermost frame that is not a library's: the line that its author can change."""
    frames = traceback.extract_tb(exc.__traceback__)
    own = [frame for frame in frames[1:] if not frame.filename.startswith((*_LIBRARIES, "<frozen"))]
    frame = (own or frames)[-1]
    return f"{frame.filename}:{frame.lineno} in {frame.name}"
