"""What Futures keep, where exceptions are not counted as they are raised: of thread pools, and of `asyncio.gather`.

Nobody hears of one whose Future nobody asks, and whoever waits for what it should have done waits for ever.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from .imports import on_import

if TYPE_CHECKING:
    from .caught import Flight

_watched = False


def watch(tell: Callable[[Flight], object]) -> None:
    """`tell` is called in the pool's thread with each of them, from now on."""
    global _watched
    from concurrent.futures import Future

    if _watched:
        return
    on_import("asyncio", lambda module: _watch_gather(module, tell))
    _watched, original = True, Future.set_exception

    def set_exception(self: Future[Any], exception: BaseException | None) -> None:
        try:
            if (found := kept(exception)) is not None:
                tell(found)
        except Exception:  # noqa: BLE001 - keeps the program's pool going; the exception is the Future's
            pass
        original(self, exception)

    Future.set_exception = set_exception  # type: ignore[method-assign]


def _watch_gather(asyncio: Any, tell: Callable[[Flight], object]) -> None:
    original = asyncio.gather

    @functools.wraps(original)
    def gather(*awaited: Any, return_exceptions: bool = False) -> Any:
        future = original(*awaited, return_exceptions=return_exceptions)
        if return_exceptions:
            future.add_done_callback(lambda done: _given(done, tell))
        return future

    asyncio.gather = asyncio.tasks.gather = gather


def _given(done: Any, tell: Callable[[Flight], object]) -> None:
    """Exceptions among results, which the program may pass over."""
    from .caught import flight, task_place
    from .swallowing import USUAL

    with suppress(Exception):  # keeps the program's loop going; the results are its own
        for each in () if done.cancelled() else done.result():
            if (
                isinstance(each, BaseException)
                and type(each).__name__ not in USUAL
                and (found := flight(each, each.__traceback__)) is not None
            ):
                tell(found._replace(by=task_place()))


def kept(error: BaseException | None) -> Flight | None:
    """What a pool's thread has caught of the program; None of what was raised elsewhere."""
    from .caught import Place, flight, is_pools  # loaded when there is something to keep: that takes time

    trace = error.__traceback__ if error is not None else None
    if error is None or trace is None or not is_pools(trace.tb_frame):
        return None
    found, code = flight(error, trace), trace.tb_frame.f_code
    return found and found._replace(by=Place(code.co_filename, trace.tb_lineno, code.co_qualname))


__all__ = ["kept", "watch"]
