"""What is said of a stop beside its place: what a function returned, what a line raised, what is handled there."""

from __future__ import annotations

from types import FrameType
from typing import TYPE_CHECKING

from . import stepping
from .records import Raised

if TYPE_CHECKING:
    from .stops import Stop


def result(stop: Stop) -> None:
    """As pdb has it: the value that a function has returned, behind an arrow, or what the line has raised."""
    returned, error = stepping.result(), stepping.error()
    if isinstance(error, BaseException):
        raised(stop, error)
    elif returned is not None:
        from .redaction import redact
        from .values import summarise

        function, value = returned
        stop.names = {stepping.RETURNED: value}
        stop.note = f"{function}()->{summarise(redact(function.rpartition('.')[2], value))}"


def raised(stop: Stop, error: BaseException) -> None:
    """What the line has raised."""
    from .values import error_line

    stop.raised = error
    stop.names = {stepping.RAISED: error}
    stop.note = error_line(error)


def handled(stop: Stop, frame: FrameType, error: BaseException | None) -> None:
    """Of a stop in an `except`: what came to this frame, and is handled in it, can be asked for."""
    if error is not None and error.__traceback__ is not None and error.__traceback__.tb_frame is frame:
        from .values import error_line

        stop.names = {stepping.RAISED: error}
        stop.note = f"handling {error_line(error)}"


def record(error: BaseException) -> Raised:
    """The exception that a stop is at."""
    from .values import error_line

    kind = type(error).__name__
    return {"type": kind, "message": error_line(error).removeprefix(kind).removeprefix(": ")}


__all__ = ["handled", "raised", "record", "result"]
