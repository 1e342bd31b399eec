"""A recorded conversation once more, without a model: its actions into a fresh environment, answer by answer.

The environment lives in this process, so that a debugger reaches it, and nothing here has a deadline.
"""

from __future__ import annotations

import bdb
import hashlib
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from trainer.agent import contract
from trainer.agent.contract import Away, Observed, Unfit
from trainer.agent.episode import TERMINATED, TRUNCATED
from trainer.agent.source import TOOLS, Source
from trainer.config.absolute import absolute
from trainer.config.agents import constructor
from trainer.config.schema import Config
from trainer.config.tools import default_agent

GOES_ON = "goes on"


@dataclass(frozen=True)
class Recorded:
    """A conversation as its run wrote it: `answers` are those of reset, and of each action."""

    seed: int
    actions: tuple[str, ...]
    observations: tuple[str, ...]  # one more than actions
    rewards: tuple[float, ...]  # one per action
    ended: str  # one of episode.ENDS
    options: Mapping[str, Any] | None = None  # of its reset

    def end(self, turn: int) -> str:
        """What the environment said of the end at `turn`; limits of the run are none of its business."""
        is_last = turn == len(self.actions)
        return self.ended if is_last and self.ended in (TERMINATED, TRUNCATED) else GOES_ON


@dataclass(frozen=True)
class Difference:
    """Where the two part: `what` is observation, reward, end, or error."""

    what: str
    recorded: object
    replayed: object


@dataclass(frozen=True)
class Compared:
    """One answer: of reset for turn 0."""

    turn: int
    seconds: float
    difference: Difference | None


def environment_facts(config: Config, text: str | None) -> Mapping[str, Any]:
    """What a record says of its environment: how it was made, and of which text."""
    known = {"env": config.agent.env, "kwargs": constructor(config), "sha256": digest(text)}
    if config.agent.env != TOOLS:
        return known
    keys = absolute(config).actor_rollout_ref.rollout.multi_turn
    files = {"tool_config_path": keys.tool_config_path, "function_tool_path": keys.function_tool_path}
    return {**known, "files": files, "agent": default_agent(config)}


def digest(text: str | None) -> str | None:
    return None if text is None else hashlib.sha256(text.encode()).hexdigest()


def again(source: Source, recorded: Recorded, last: int) -> Iterator[Compared]:
    """Answers until turn `last`, or the first that differs; an environment's error goes to stderr with its traceback.

    Raises NoEnvironment, and BdbQuit where somebody leaves the debugger.
    """
    kind, made = source.load(), list[Any]()
    try:
        for turn in range(last + 1):
            answer = _answer(source, kind, made, recorded, turn)
            found = answer if isinstance(answer, Difference) else _difference(recorded, turn, answer)
            yield Compared(turn, 0.0 if isinstance(answer, Difference) else answer.seconds, found)
            if found is not None:
                return
    finally:
        for environment in made:
            with suppress(Exception):  # it has done its work; what its end raises is nobody's loss
                environment.close()


def _answer(source: Source, kind: Any, made: list[Any], recorded: Recorded, turn: int) -> Observed | Difference:
    expected = "an answer"
    try:
        if not made:
            made.append(kind(**source.kwargs))
        if turn == 0:
            return contract.reset(made[0], recorded.seed, recorded.options)
        return contract.step(made[0], recorded.actions[turn - 1])
    except bdb.BdbQuit:
        raise
    except (Unfit, Away) as error:
        return Difference("error", expected, str(error))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's code may raise anything; it is shown
        traceback.print_exception(error.with_traceback(_theirs(error, source)), file=sys.stderr)
        return Difference("error", expected, contract.told(error, source.files))


def _theirs(error: BaseException, source: Source) -> Any:
    """The traceback from the environment on; all of it where none of its lines is known."""
    found = error.__traceback__
    while found is not None and found.tb_frame.f_code.co_filename not in source.files:
        found = found.tb_next
    return found or error.__traceback__


def _difference(recorded: Recorded, turn: int, answer: Observed) -> Difference | None:
    pairs: Sequence[tuple[str, object, object]] = [("observation", recorded.observations[turn], answer.text)]
    if turn:
        ended = TERMINATED if answer.terminated else TRUNCATED if answer.truncated else GOES_ON
        pairs = [
            *pairs,
            ("reward", recorded.rewards[turn - 1], answer.reward),
            ("end", recorded.end(turn), ended),
        ]
    return next((Difference(what, before, now) for what, before, now in pairs if before != now), None)
