"""Calls that block, from the hub's loop: of Ray's GCS most of all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from . import threads
from .words import Complaints

GCS_RETRY_SECONDS, MOST_RETRY_SECONDS = 0.1, 2.0


async def in_thread(call: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a call that blocks. In a daemon thread: those of an executor would hold up the process's end."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Any] = loop.create_future()

    def tell(result: Any, error: BaseException | None) -> None:
        if answer.done():
            return
        if error is None:
            answer.set_result(result)
        else:
            answer.set_exception(error)

    def run() -> None:
        result, failure = None, None
        try:
            result = call(*arguments)
        except Exception as error:  # noqa: BLE001 - passed on to who asked
            failure = error
        with suppress(RuntimeError):  # the loop may be closed by now
            loop.call_soon_threadsafe(tell, result, failure)

    threads.start(run, "devkit-call")
    return await answer


async def until_done(call: Callable[[], Any]) -> Any:
    """What a call to Ray's GCS gives, which is made again until it succeeds: on a busy machine it is late, not gone."""
    complaints, wait = Complaints(), GCS_RETRY_SECONDS
    while True:
        try:
            return await in_thread(call)
        except Exception as error:  # noqa: BLE001 - Ray has many
            complaints.tell("the hub waits for Ray's GCS", error)
        await asyncio.sleep(wait)
        wait = min(2 * wait, MOST_RETRY_SECONDS)
