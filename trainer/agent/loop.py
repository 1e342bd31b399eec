"""Conversations of many trajectories at once: each goes on as soon as its environment, or its engine, has answered.

The engine `hf` computes a batch at a time, and a batch ends with its longest turn. So what is ready is asked of it
together, and it is waited for the others GATHER_S at most: quick environments make the same batches in every run, and
a slow one delays nobody for longer. An engine that `Talks` is asked at once, and answers each turn when it is done.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from trainer.agent.batches import Batches
from trainer.agent.contract import Observed
from trainer.agent.episode import FAILED, LENGTH, TERMINATED, TRUNCATED, TURNS, Episode, Failure
from trainer.agent.homes import Broken, Home, answered
from trainer.agent.laying import Laid, Said, lay, left_padded, rollout_of
from trainer.agent.messages import Messages, Past, digest
from trainer.agent.speech import Speech
from trainer.interfaces import Engine, Request, Sampling, Talk, Talks
from trainer.records import Prompts, Rollout, Row
from trainer.rollout.server import Answer

Options = Callable[[Row], Mapping[str, Any] | None]  # what an environment is reset with, beside its seed
GATHER_S = 0.25  # for which trajectories that are ready wait for others
SEED = "seed"  # of a row's `extra_info`: its environment's


@dataclass(frozen=True)
class Limits:
    """What a trajectory may take. Seconds; None: no limit."""

    turns: int
    turn_tokens: int
    prompt_tokens: int  # of the first observation
    response_tokens: int  # of all that follows upon it
    turn_s: float | None  # of one answer of the environment
    trajectory_s: float | None
    at_once: int  # environments
    context_tokens: int | None = None  # of prompt, turns and observations, with which a turn may still begin
    stop: tuple[str, ...] = ()  # texts that end a turn
    first_s: float = 0.0  # beyond turn_s, of a first answer: its process may have a file to load
    turnwise: bool = False  # each turn has a prompt of its own, and the response is one turn's


@dataclass(eq=False)
class _Trajectory:
    """One row on its way; `home` while it has an environment."""

    number: int  # of the row
    row: Row
    uid: int
    sample: int
    home: Home | None = None
    began: float = 0.0  # monotonic seconds
    asked: float = 0.0
    seconds: float = 0.0
    observation: str = ""  # the first
    instruction: str = ""  # before it
    state: str = ""  # a digest of what the next turn is taken in
    prompt: list[int] = field(default_factory=list)
    said: list[Said] = field(default_factory=list)
    numbers: dict[str, float] = field(default_factory=dict)
    ended: str = ""
    failure: Failure | None = None

    def context(self, limits: Limits) -> list[int]:
        if limits.turnwise and self.said:
            return list(self.said[-1].answered)
        return self.prompt + lay(self.said).ids

    @property
    def past(self) -> list[Past]:
        """Its turns so far."""
        seen = [self.observation, *(turn.observation for turn in self.said)]
        return [Past(text, turn.action, turn.reward) for text, turn in zip(seen, self.said, strict=False)]

    @property
    def label(self) -> str:
        turn = f", turn {len(self.said)}" if self.said else ""
        return f"{self.row.label}{f', sample {self.sample}' if self.sample else ''}{turn}"

    def deadline(self, limits: Limits) -> tuple[float, str]:
        """When its environment's answer comes too late, and of what kind of failure that is."""
        more = 0.0 if self.said else limits.first_s
        of_call = self.asked + limits.turn_s + more if limits.turn_s is not None else float("inf")
        of_all = self.began + limits.trajectory_s if limits.trajectory_s is not None else float("inf")
        return (of_call, "hung") if of_call <= of_all else (of_all, "late")

    def episode(self) -> Episode:
        return Episode(lay(self.said).turns, self.ended, self.seconds, self.numbers, self.failure, self.observation)


class Conversations:
    """Plays the rows of `prompts`; `play` gives what came of them, row by row."""

    def __init__(
        self,
        prompts: Prompts,
        sampling: Sampling,
        *,
        engine: Engine,
        speech: Speech,
        limits: Limits,
        home: Callable[[], Home],
        pad_id: int,
        messages: Messages | None = None,
        options: Options = lambda row: None,
    ) -> None:
        self._prompts, self._pad_id, self._messages = prompts, pad_id, messages or Messages()
        self._speech, self._limits, self._home, self._options = speech, limits, home, options
        sampling = replace(sampling, max_new_tokens=limits.turn_tokens, stop=limits.stop)
        self._talk: Talk = (
            engine.talk(prompts, sampling) if isinstance(engine, Talks) else Batches(engine, sampling, pad_id)
        )
        given = [ids[mask.bool()].tolist() for ids, mask in zip(prompts.ids_BP, prompts.mask_BP, strict=True)]
        samples = enumerate(zip(prompts.rows, prompts.samples, given, strict=True))
        self._all = [_Trajectory(i, row, uid, sample, prompt=ids) for i, (row, (uid, sample), ids) in samples]
        self._queue = deque(self._all)
        self._asked: list[_Trajectory] = []  # of their environments
        self._ready: list[_Trajectory] = []  # for the engine
        self._speaking: dict[int, _Trajectory] = {}  # asked of the engine, by row

    def play(self) -> Rollout:
        """A row of a failed trajectory, or of one whose engine died, has no tokens; the former has a failure."""
        try:
            while self._queue or self._asked or self._ready or self._speaking:
                if self._talk.gone:
                    self._lose()
                    break
                self._gather()
                if self._ready:
                    self._speak()
        finally:
            self._talk.close()
            for trajectory in self._all:  # after an error
                self._leave(trajectory, kill=True)
        failed = [trajectory.failure is not None for trajectory in self._all]
        ids_BP, mask_BP = left_padded([trajectory.prompt for trajectory in self._all], self._pad_id)
        prompts = replace(self._prompts, ids_BP=ids_BP, mask_BP=mask_BP)
        nothing = Laid([], [], [], ())
        laid = [nothing if fails else lay(each.said) for each, fails in zip(self._all, failed, strict=True)]
        return rollout_of(prompts, laid, [trajectory.episode() for trajectory in self._all], self._pad_id)

    # -- environments

    def _admit(self) -> None:
        while self._queue and len(self._asked) + len(self._ready) + len(self._speaking) < self._limits.at_once:
            trajectory = self._queue.popleft()
            trajectory.began = time.monotonic()
            trajectory.home = self._home()
            options = self._options(trajectory.row)
            self._ask(trajectory, "reset", seed_in(trajectory.row), *([] if options is None else [options]))

    def _ask(self, trajectory: _Trajectory, what: str, *arguments: object) -> None:
        assert trajectory.home is not None
        trajectory.asked = time.monotonic()
        trajectory.home.ask(what, *arguments)
        self._asked.append(trajectory)

    def _gather(self) -> None:
        """Takes answers until somebody is ready and nobody else is about to be. Who comes to an end makes room."""
        self._admit()
        while (self._asked or self._speaking) and not self._talk.gone:
            found = answered([_home(each) for each in self._asked], self._patience(), self._talk.lines)
            for trajectory in [self._asked[i] for i in sorted(found)]:
                self._asked.remove(trajectory)
                self._hear(trajectory)
            self._give_up_late()
            for answer in self._talk.take():
                self._said(answer)
            self._admit()
            if self._ready and not self._others_are_about(time.monotonic()):
                return

    def _others_are_about(self, now: float) -> bool:
        """Whether it is worth a moment to make one batch of those that are ready and others."""
        return self._talk.gathers and any(now - each.asked < GATHER_S for each in self._asked)

    def _give_up_late(self) -> None:
        now = time.monotonic()
        for trajectory in [each for each in self._asked if each.deadline(self._limits)[0] <= now]:
            self._asked.remove(trajectory)
            self._give_up(trajectory)
        for trajectory in [each for each in self._speaking.values() if self._end(each) <= now]:
            del self._speaking[trajectory.number]
            self._talk.drop(trajectory.number)
            self._is_late(trajectory)

    def _end(self, trajectory: _Trajectory) -> float:
        """When it takes too long, whoever it waits for."""
        limit = self._limits.trajectory_s
        return float("inf") if limit is None else trajectory.began + limit

    def _patience(self) -> float | None:
        """Seconds until something must be done though nobody has answered; None: nothing must."""
        now = time.monotonic()
        ends = [each.deadline(self._limits)[0] for each in self._asked]
        ends += [self._end(each) for each in self._speaking.values()]
        if (engine := self._talk.patience()) is not None:
            ends.append(now + engine)
        if self._ready:
            ends += [each.asked + GATHER_S for each in self._asked if now - each.asked < GATHER_S] or [now]
        first = min(ends)
        return None if first == float("inf") else max(0.0, first - now)

    def _hear(self, trajectory: _Trajectory) -> None:
        try:
            observed = _home(trajectory).take()
        except Broken as error:
            self._fail(trajectory, error.kind, str(error))
            return
        trajectory.seconds += observed.seconds
        trajectory.numbers |= observed.numbers
        trajectory.state = digest(observed.state)
        if trajectory.said:
            self._answered(trajectory, observed)
        else:
            self._begun(trajectory, observed)

    def _begun(self, trajectory: _Trajectory, observed: Observed) -> None:
        """A row of a data file brings its prompt; another one's is what its environment shows."""
        trajectory.observation, trajectory.instruction = observed.text, observed.instruction
        shown = self._messages.first(observed.text, observed.instruction)
        trajectory.prompt = trajectory.prompt or self._speech.begin(shown, self._messages.system)
        count, limit = len(trajectory.prompt), self._limits.prompt_tokens
        if not 0 < count <= limit:
            said = f"its first observation has {count} tokens; data.max_prompt_length is {limit}"
            self._fail(trajectory, "long" if count else "wrong", said if count else "its first observation is empty")
        else:
            self._ready.append(trajectory)

    def _answered(self, trajectory: _Trajectory, observed: Observed) -> None:
        """The last turn has its reward; then the trajectory is at its end, or the observation follows."""
        turn = replace(trajectory.said[-1], reward=observed.reward, seconds=observed.seconds, observation=observed.text)
        trajectory.said[-1] = turn
        if observed.terminated or observed.truncated:
            trajectory.ended = TERMINATED if observed.terminated else TRUNCATED
        elif len(trajectory.said) >= self._limits.turns:
            trajectory.ended = TURNS
        else:
            answer = self._next(trajectory, observed)
            if not self._fits(trajectory, len(answer)):
                trajectory.ended = LENGTH
            else:
                trajectory.said[-1] = replace(turn, answered=answer)
                self._ready.append(trajectory)
        if trajectory.ended:
            self._leave(trajectory)

    def _next(self, trajectory: _Trajectory, observed: Observed) -> list[int]:
        """What follows upon its last turn, up to the next one."""
        if self._limits.turnwise:
            shown = self._messages.alone(observed.text, trajectory.instruction, trajectory.past)
            return self._speech.begin(shown, self._messages.system)
        shown = self._messages.later(len(trajectory.said), observed.text)
        return self._speech.reply(trajectory.said[-1].sampled, shown, observed.messages)

    def _fits(self, trajectory: _Trajectory, more: int) -> bool:
        """Whether a turn can follow upon `more` tokens of an observation, or of a prompt."""
        if self._limits.turnwise:
            return more <= self._limits.prompt_tokens
        room, limit = self._room(trajectory), self._limits.context_tokens
        context = len(trajectory.prompt) + self._limits.response_tokens - room + more
        return room > more and (limit is None or context <= limit)

    def _room(self, trajectory: _Trajectory) -> int:
        """Columns of its response that are left."""
        if self._limits.turnwise:
            return self._limits.response_tokens
        used = sum(len(turn.sampled) + len(turn.answered) for turn in trajectory.said)
        return self._limits.response_tokens - used

    def _give_up(self, trajectory: _Trajectory) -> None:
        _, kind = trajectory.deadline(self._limits)
        what = "step" if trajectory.said else "reset"
        key, limit = ("turn_timeout", self._limits.turn_s), ("trajectory_timeout", self._limits.trajectory_s)
        name, seconds = key if kind == "hung" else limit
        self._fail(trajectory, kind, f"{what} had not answered after agent.{name}={seconds:g} s")

    def _fail(self, trajectory: _Trajectory, kind: str, said: str) -> None:
        trajectory.failure, trajectory.ended = Failure(kind, f"{trajectory.label}: {said}"), FAILED
        self._leave(trajectory, kill=True)

    def _leave(self, trajectory: _Trajectory, *, kill: bool = False) -> None:
        home, trajectory.home = trajectory.home, None
        if home is not None:
            home.end(kill=kill)

    # -- the engine

    def _speak(self) -> None:
        """A turn of all that are ready."""
        ready, self._ready = self._ready, []
        self._speaking |= {each.number: each for each in ready}
        self._talk.ask([self._request(each) for each in ready])

    def _request(self, trajectory: _Trajectory) -> Request:
        return Request(
            trajectory.number,
            (trajectory.uid, trajectory.sample),
            turn=len(trajectory.said),
            ids=trajectory.context(self._limits),
            most=min(self._room(trajectory), self._limits.turn_tokens),
            of=trajectory.row,
        )

    def _said(self, answer: Answer) -> None:
        """It acts on its environment at once."""
        trajectory = self._speaking.pop(answer.index)
        action = self._speech.action(answer.token_ids)
        trajectory.said.append(Said(answer.token_ids, answer.logprobs, action=action, state=trajectory.state))
        if not self._is_late(trajectory):
            self._ask(trajectory, "step", action)

    def _lose(self) -> None:
        """The engine died: the driver revives it, and asks for the whole rows of all that have no end."""
        for trajectory in (*self._speaking.values(), *self._ready, *self._asked):
            trajectory.said = []
            self._leave(trajectory, kill=True)

    def _is_late(self, trajectory: _Trajectory) -> bool:
        if time.monotonic() < self._end(trajectory):
            return False
        limit = self._limits.trajectory_s
        self._fail(trajectory, "late", f"it was not at its end after agent.trajectory_timeout={limit:g} s")
        return True


def seed_in(row: Row) -> int:
    """What its environment is reset with; a row of a data file has its number.

    >>> seed_in(Row(3, "lake", "lake", None, {"seed": 99})), seed_in(Row(3, "train.parquet", "nq", None))
    (99, 3)
    """
    seed = row.extra_info.get(SEED)
    return seed if isinstance(seed, int) else row.index


def _home(trajectory: _Trajectory) -> Home:
    assert trajectory.home is not None, "it has an environment until its end"
    return trajectory.home
