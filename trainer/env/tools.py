"""A conversation with tools, as verl's `tool_agent` leads it: calls in what the model says, answers as messages.

    model        <tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>
    environment  a message of the role `tool`: 3
    model        It is 3.

What verl answers a model stands here word for word (`_call_tool` of its `tool_agent_loop.py`). Standard library only.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from trainer.agent.contract import Unfit
from trainer.agent.tools.bundle import Loaded
from trainer.agent.tools.calls import Call, calls_in, cut
from trainer.agent.tools.rows import SINGLE, Asked
from trainer.agent.tools.verl import normalize_function_tool_return

CALLS, ERRORS, UNREAD, LEFT_OUT, CUT = (
    f"tools/{name}" for name in ("calls", "errors", "unreadable", "left_out", "shortened")
)


@dataclass(frozen=True)
class Answer:
    """What a call gave."""

    text: str
    reward: float = 0.0
    failed: bool = False
    shortened: bool = False


class Tools:
    """The task is the row's prompt; a turn without a call ends the episode, and a reward function scores it.

    Tools are made anew for each conversation. The last of `turns` calls nothing, since nothing would be read of it;
    None: each does. `parallel` calls of a turn are carried out, side by side, and no more. `most` characters of an
    answer are kept, `side` says of which side the others are cut off.
    """

    def __init__(self, loaded: Loaded, turns: int | None, parallel: int, most: int, side: str) -> None:
        self._loaded, self._turns, self._parallel, self._most, self._side = loaded, turns, parallel, most, side
        self._tools = loaded.make()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked = Asked()
        self._done = 0
        self._counts = dict.fromkeys((CALLS, ERRORS, UNREAD, LEFT_OUT, CUT), 0.0)

    def schemas(self) -> list[Any]:
        """Of all tools, as a chat template is given them."""
        return [tool.tool_schema.model_dump(exclude_unset=True, exclude_none=True) for tool in self._tools.values()]

    def reset(self, *, seed: int, options: Mapping[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Nothing is drawn: what is asked stands in the prompt. `options` is what `rows.options_of` gives."""
        self._asked, self._done = Asked.of(options or {}), 0
        self._counts = dict.fromkeys(self._counts, 0.0)
        return "", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """What the tools answer, as messages; the reward is what they give, which nobody trains on by itself.

        A tool that raises is answered with its error. Raises Unfit for pictures.
        """
        self._done += 1
        calls, unread = ([], 0) if self._asked.agent == SINGLE else calls_in(action)
        self._counts[UNREAD] += unread
        if not calls:
            return "", 0.0, True, False, {"metrics": dict(self._counts)}
        if self._done == self._turns:
            return "", 0.0, False, False, {"metrics": dict(self._counts)}
        made = calls[: self._parallel]
        self._counts[LEFT_OUT] += len(calls) - len(made)
        answers = self._run(self._together(made))
        self._counts[CALLS] += len(made)
        self._counts[ERRORS] += sum(answer.failed for answer in answers)
        self._counts[CUT] += sum(answer.shortened for answer in answers)
        messages = [{"role": "tool", "content": answer.text} for answer in answers]
        text = "\n".join(answer.text for answer in answers)
        reward = sum(answer.reward for answer in answers)
        return text, reward, False, False, {"messages": messages, "metrics": dict(self._counts)}

    def close(self) -> None:
        if self._loop is not None:
            self._loop.close()

    def _run(self, work: Coroutine[Any, Any, list[Answer]]) -> list[Answer]:
        """One loop for all turns: what a tool keeps of one serves it in the next."""
        self._loop = self._loop or asyncio.new_event_loop()
        return self._loop.run_until_complete(work)

    async def _together(self, calls: list[Call]) -> list[Answer]:
        return await asyncio.gather(*(self._answer(call) for call in calls))

    async def _answer(self, call: Call) -> Answer:
        try:
            response, reward, _ = await self._called(call)
        except Exception as error:  # noqa: BLE001 - a tool may raise anything; the model reads it, and it is counted
            return self._answer_of(f"Error when executing tool: {error}", 0.0, failed=True)
        if getattr(response, "image", None) or getattr(response, "video", None):
            raise Unfit(f"the tool {call.name} answered with a picture or a film, and models are text only")
        return self._answer_of(response.text or "", 0.0 if reward is None else float(reward), failed=False)

    async def _called(self, call: Call) -> tuple[Any, Any, Any]:
        tool = {name: each for name, each in self._tools.items() if self._asked.may_use(name)}[call.name]
        if hasattr(tool, "fn"):
            return normalize_function_tool_return(await _given(tool.fn, call.arguments))
        instance = None
        try:
            created = await tool.create(create_kwargs=self._asked.create_kwargs(call.name))
            instance = created[0] if isinstance(created, tuple) else created  # of v0.4: the id alone
            return normalize_function_tool_return(await tool.execute(instance, call.arguments, agent_data=self._asked))
        finally:
            if instance:
                await tool.release(instance)

    def _answer_of(self, text: str, reward: float, *, failed: bool) -> Answer:
        """An error is not cut in verl, which a tool with long ones would notice; here it is."""
        kept = cut(text, self._most, self._side)
        try:
            kept.encode()
        except UnicodeEncodeError:
            said = "Error when executing tool: its answer has half a character (a lone surrogate)"
            return Answer(said, 0.0, failed=True)
        return Answer(kept, reward, failed, len(kept) != len(text) or kept != text)


async def _given(function: Any, arguments: Any) -> Any:
    """What a function gives; in a thread where it does not wait by itself, so that others go on beside it."""
    if inspect.iscoroutinefunction(function):
        return await function(**arguments)
    return await asyncio.to_thread(function, **arguments)
