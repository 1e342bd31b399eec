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
