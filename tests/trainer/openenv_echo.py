"""Servers of an echo: `python tests/trainer/openenv_echo.py openenv|ours SESSIONS` prints the port that it listens on.

`openenv` is made with openenv-core's own classes, `ours` says the same over aiohttp where that package is not
installed. Both take a message of up to 20 characters and end with the third. What is said may be a wish: `raise`,
`hang`, `leave`.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import sys
import threading
from typing import Any

MOST = 20
ENDS = 3


class Game:
    """What both play."""

    def __init__(self) -> None:
        self.dice, self.done = random.Random(0), 0

    def reset(self, seed: int | None) -> str:
        self.dice, self.done = random.Random(seed), 0
        return f"Say {self.dice.randint(1, 9999)}"

    def step(self, message: str) -> tuple[str, float, bool]:
        """Echo, reward, whether it is done."""
        self.done += 1
        if message == "raise":
            raise ValueError("no such word")
        if message == "leave":
            os._exit(3)
        return message, len(message) / 10, self.done >= ENDS


def openenv(sessions: int) -> Any:
    """A FastAPI app of openenv-core."""
    from openenv.core.env_server.http_server import create_fastapi_app
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import Action, Observation, State
    from pydantic import Field

    class EchoAction(Action):
        message: str = Field(..., max_length=MOST)

    class EchoObservation(Observation):
        echoed_message: str = ""
        message_length: int = 0

    class Echo(Environment):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            super().__init__()
            self.game = Game()

        def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Any:
            return EchoObservation(echoed_message=self.game.reset(seed))

        def step(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Any:
            if action.message == "hang":
                threading.Event().wait()
            echo, reward, done = self.game.step(action.message)
            return EchoObservation(echoed_message=echo, message_length=len(echo), reward=reward, done=done)

        @property
        def state(self) -> Any:
            return State(step_count=self.game.done)

    return create_fastapi_app(Echo, EchoAction, EchoObservation, max_concurrent_envs=sessions)


def ours(sessions: int) -> Any:
    """The same as an aiohttp application."""
    from aiohttp import web

    text, number = {"type": "string", "default": ""}, {"type": "integer", "default": 0}
    schema = {
        "action": {"properties": {"metadata": {}, "message": {"type": "string"}}, "required": ["message"]},
        "observation": {
            "properties": {"done": {}, "reward": {}, "metadata": {}, "echoed_message": text, "message_length": number}
        },
    }
    open_now: list[Any] = []

    def error(code: str, **more: Any) -> dict[str, Any]:
        return {"type": "error", "data": {"code": code, **more}}

    def observed(echo: str, reward: float | None, done: bool, length: int = 0) -> dict[str, Any]:
        record = {"echoed_message": echo, "message_length": length}
        return {"type": "observation", "data": {"observation": record, "reward": reward, "done": done}}

    async def answer(game: Game, message: dict[str, Any]) -> dict[str, Any]:
        if message["type"] == "reset":
            return observed(game.reset(message["data"].get("seed")), None, False)
        said = message["data"]["message"]
        if len(said) > MOST:
            why = {"type": "string_too_long", "loc": ["message"], "msg": "String should have at most 20 characters"}
            return error("VALIDATION_ERROR", message="Invalid message", errors=[why])
        if said == "hang":
            await asyncio.Event().wait()
        try:
            echo, reward, done = game.step(said)
        except ValueError as raised:
            return error("EXECUTION_ERROR", message=str(raised))
        return observed(echo, reward, done, len(echo))

    async def session(request: Any) -> Any:
        line = web.WebSocketResponse()
        await line.prepare(request)
        if len(open_now) >= sessions:
            message = f"Server at capacity: {len(open_now)}/{sessions} sessions active"
            await line.send_json(error("CAPACITY_REACHED", message=message))
            await line.close()
            return line
        game = Game()
        open_now.append(game)
        try:
            async for message in line:
                if message.json()["type"] == "close":
                    break
                await line.send_json(await answer(game, message.json()))
        finally:
            open_now.remove(game)
        return line

    async def schemas(request: Any) -> Any:
        return web.json_response(schema)

    app = web.Application()
    app.add_routes([web.get("/ws", session), web.get("/schema", schemas)])
    return app


def main() -> None:
    kind, sessions = sys.argv[1], int(sys.argv[2])
    listening = socket.create_server(("127.0.0.1", 0))
    if kind == "ours":
        from aiohttp import web

        app = ours(sessions)
        print(listening.getsockname()[1], flush=True)
        web.run_app(app, sock=listening, print=None)
        return
    import uvicorn

    app = openenv(sessions)
    print(listening.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])


if __name__ == "__main__":
    main()
