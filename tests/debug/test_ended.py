"""What a background task has failed by, where that was raised in another process."""

from __future__ import annotations

import asyncio

from ray.exceptions import RayTaskError

from devkit.debug.inworker import ended


def test_an_error_of_another_process_is_said_to_be_awaited_here() -> None:
    """The line is that of the `await`, and not of what has failed."""
    passed = RayTaskError("Engine.generate", "trace", ValueError("prompt of 34 tokens")).as_instanceof_cause()

    async def awaits() -> None:
        raise passed

    async def fails() -> None:
        raise ValueError("own")

    async def both() -> list[str]:
        tasks = [asyncio.create_task(awaits()), asyncio.create_task(fails())]
        await asyncio.wait(tasks)
        said = sorted(str(each["said"]) for each in ended.ended() if each["kind"] == "task")
        assert all(each.exception() for each in tasks)
        return said

    assert asyncio.run(both()) == ["ValueError: own", "ValueError: prompt of 34 tokens, awaited"]


class Pipeline:
    def __init__(self) -> None:
        self.events: asyncio.Queue[int] = asyncio.Queue()

    async def dispatch(self) -> None:
        await self.handle()
        self.events.task_done()

    async def handle(self) -> None:
        raise KeyError("answer")

    async def idles(self) -> None:
        await asyncio.sleep(600)

    def start(self) -> list[asyncio.Task[None]]:
        consumer = asyncio.create_task(self.idles())
        return [consumer, asyncio.create_task(self.dispatch())]


def test_a_task_that_was_cancelled_is_known_with_where_it_was_made() -> None:
    async def main() -> list[ended.Document]:
        tasks = Pipeline().start()
        await asyncio.sleep(0)
        tasks[0].cancel()
        await asyncio.wait(tasks)
        found = ended.ended()
        assert tasks[1].exception()
        return found

    found = {each["name"]: each for each in asyncio.run(main()) if each["name"].startswith("Pipeline")}
    code = Pipeline.start.__code__
    cancelled, failed = found["Pipeline.idles"], found["Pipeline.dispatch"]
    assert (cancelled["kind"], cancelled["open"], cancelled["at"]["line"]) == ("cancelled", 0, code.co_firstlineno + 1)
    assert failed["kind"] == "task" and {"dispatch", "handle"} <= set(failed["reaches"]["names"])
    assert "idles" not in failed["reaches"]["names"] and failed["reaches"]["file"] == code.co_filename
