"""A call that yields its results, held back by Ray: nothing runs, and its generator stands at a `yield`."""

from __future__ import annotations

from types import FrameType, GeneratorType
from typing import Any

from .finding import instances
from .sources import is_users
from .stacks import describe, is_ours

Document = dict[str, Any]

MAIN = "MainThread"  # in which Ray runs the calls of tasks, and of actors that take one at a time
BY_RAY = "Ray to go on with its generator (as when _generator_backpressure_num_objects results have not been taken yet)"


def frame_of(call: str, main: FrameType | None) -> FrameType | None:
    """Where the generator of a call stands, if the main thread is in no line of the program and it is the only one of
    that function.

    Args:
        call: the name of the call that is under way; "" if none is.
    """
    if not call or any(is_users(each.f_code.co_filename) for each in _outwards(main)):
        return None
    frames = (each.gi_frame for each in instances(GeneratorType) if not each.gi_running)
    found = [each for each in frames if each is not None and each.f_code.co_name == call and each.f_lasti > 0]
    own = [each for each in found if is_users(each.f_code.co_filename) and not is_ours(each.f_code.co_filename)]
    return own[0] if len(own) == 1 else None


def _outwards(frame: FrameType | None) -> list[FrameType]:
    found = []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found


def shown(threads: list[Document], frame: FrameType) -> list[Document]:
    """The stacks, the main thread's with that frame innermost."""
    own = describe(frame, frame.f_lineno or 0)
    return [{**each, "frames": [own, *each["frames"]]} if each["name"] == MAIN else each for each in threads]


def wait_at(frame: FrameType) -> Document:
    """As `primitives.describe` has a wait."""
    at = describe(frame, frame.f_lineno or 0)
    call = frame.f_code.co_qualname
    return {"thread": MAIN, "call": call, "at": at, "what": BY_RAY, "count": 1, "free": False}


__all__ = ["BY_RAY", "MAIN", "frame_of", "shown", "wait_at"]
