"""A conversation of the trainer's own loop in which a person is the engine, and sees what a model would be given."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from rich.text import Text

from devkit.agent.show import block
from devkit.console import result, talk
from devkit.logs import redact
from devkit.palette import NAME
from devkit.records import AgentPlayRecord
from trainer.agent.contract import Observed
from trainer.agent.homes import Inline
from trainer.agent.loop import Conversations, Limits
from trainer.agent.player import limits_of, read_environment
from trainer.agent.source import SEARCH, NoEnvironment, Source
from trainer.agent.speech import PLAIN, Speech
from trainer.config.agents import constructor
from trainer.config.schema import Config
from trainer.errors import ConfigError
from trainer.interfaces import Request, Sampling
from trainer.records import Prompts, Rollout, Row
from trainer.rollout.server import Answer
from trainer.rollout.stops import Stops

LEFT = "left"  # how a conversation ends that is not played to its end
NO_LIMIT = 10**9
_SAMPLING = Sampling(NO_LIMIT, 1.0, 1.0, -1, do_sample=True, ignore_eos=False, seed=0)


def limits_for(config: Config, *, counted: bool) -> Limits:
    """As in a run, but for time: a person thinks. Without a tokenizer there are no tokens to count."""
    limits = replace(limits_of(config), turn_s=None, trajectory_s=None)
    if counted:
        return limits
    most = dict.fromkeys(("turn_tokens", "prompt_tokens", "response_tokens"), NO_LIMIT)
    return replace(limits, **most, context_tokens=None)  # type: ignore[arg-type]


def loaded(source: Source) -> Any:
    """Its class. Raises ConfigError."""
    try:
        return source.load()
    except NoEnvironment as error:
        raise ConfigError(str(error), hint=error.hint) from error


class Letters:
    """In place of a tokenizer: a character is a token."""

    chat_template = None
    eos_token_id = 0

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [ord(char) + 1 for char in text]}

    def decode(self, ids: Iterable[int], **_: Any) -> str:
        return "".join(chr(i - 1) for i in ids if i)


class Seen(Inline):
    """An environment whose answers are shown."""

    def __init__(self, source: Source, kind: Any, seen: Callable[[Observed], None]) -> None:
        super().__init__(source, kind)
        self._seen = seen

    def take(self) -> Observed:
        observed = super().take()
        self._seen(observed)
        return observed


@dataclass
class _Played:
    """A turn, as far as it has come."""

    sampled_ids: list[int]
    sampled: str
    answered_ids: list[int] = field(default_factory=list)
    observation: str = ""
    reward: float = 0.0
    seconds: float = 0.0


class Game:
    """One conversation. It is the engine that the loop asks, and sees what its environment answers."""

    gathers = False
    lines: Sequence[object] = ()

    def __init__(self, config: Config, seed: int, tokenizer: Any, prompt: str | None, *, quiet: bool) -> None:
        """`tokenizer` None: texts alone. `prompt`: what stands before the first turn, where no environment says it."""
        assert config.agent.env is not None
        self._config, self._seed, self._prompt, self._quiet = config, seed, prompt, quiet
        self._env = config.agent.env
        self._known = tokenizer is not None
        self._tokenizer = tokenizer if self._known else Letters()
        self._page, self._talk = result(), talk()
        self._asks = sys.stdin.isatty()
        self._limits = limits_for(config, counted=self._known)
        self.gone = False
        self._turns: list[_Played] = []
        self._prompt_ids: list[int] = []
        self._first: Observed | None = None
        self._answers: list[Answer] = []

    def play(self) -> AgentPlayRecord:
        """Until the environment, a limit of the run, or the person ends it."""
        source = self._source()
        kind = loaded(source)
        rule = "a line is what the model says, Ctrl-D ends"
        self._show(Text(f"{source.env}, seed {self._seed}, at most {self._limits.turns} turns: {rule}", style="bold"))
        if not self._known:
            self._talk.print("no tokenizer: tokens and masks are not shown; give --tokenizer MODEL", soft_wrap=True)
        agent = self._config.agent
        style = PLAIN if agent.env == SEARCH or not self._known else agent.speech
        rollout = Conversations(
            self._begin(self._prompt),
            _SAMPLING,
            engine=self,  # type: ignore[arg-type]  # of an engine it has what conversations ask
            speech=Speech(self._tokenizer, [self._end], style, agent.max_observation_tokens),
            limits=self._limits,
            home=lambda: Seen(source, kind, self.seen),
            pad_id=0,
        ).play()
        return self._ended(rollout)

    def _source(self) -> Source:
        agent = self._config.agent
        assert agent.env is not None
        return Source(agent.env, read_environment(self._config), constructor(self._config))

    def _begin(self, prompt: str | None) -> Prompts:
        ids = self._tokenizer(prompt, add_special_tokens=False)["input_ids"] if prompt else []
        ids_BP = torch.tensor([ids], dtype=torch.int64)
        row = Row(0, self._env, self._env, None, {"seed": self._seed})
        zero_B = torch.zeros(1, dtype=torch.int64)
        return Prompts(ids_BP, torch.ones_like(ids_BP), zero_B, zero_B, (row,))

    # -- as an engine

    def talk(self, prompts: Prompts, sampling: Sampling) -> Game:
        return self

    def ask(self, requests: Sequence[Request]) -> None:
        """Shows what is new, and reads what is said."""
        (request,) = requests
        if self._turns:
            last = self._turns[-1]
            read = len(self._prompt_ids) + sum(len(each.sampled_ids) + len(each.answered_ids) for each in self._turns)
            last.answered_ids = list(request.ids[read:])
            self._tokens("answered", last.answered_ids, mask=0)
        else:
            self._prompt_ids = list(request.ids)
            if self._prompt:
                self._block("prompt", self._prompt)
            self._tokens("prompt", self._prompt_ids, mask=0)
        said = self._line()
        if said is None:
            self.gone = True
            return
        ids = self._said(said, request.most)
        text = self._tokenizer.decode(ids)
        self._turns.append(_Played(ids, text))
        self._block("model", text, NAME)
        self._tokens("sampled", ids, mask=1)
        self._answers = [Answer(request.row, ids, [0.0] * len(ids))]

    def take(self) -> list[Answer]:
        found, self._answers = self._answers, []
        return found

    def patience(self) -> float | None:
        return 0.0 if self._answers else None

    def drop(self, row: int) -> None: ...

    def close(self) -> None: ...

    def _said(self, text: str, most: int) -> list[int]:
        """As a model would have sampled it: up to the token that completes a text which ends a turn, or with an end."""
        ids = list(self._tokenizer(text, add_special_tokens=False)["input_ids"])
        stops = Stops(self._limits.stop, self._tokenizer.decode, 1) if self._limits.stop else None
        for count, token in enumerate(ids, start=1):
            if stops is not None and stops.after(torch.tensor([token]), torch.tensor([True])).item():
                return ids[:count][:most]
        return [*ids, self._end][:most]

    @property
    def _end(self) -> int:
        return int(self._tokenizer.eos_token_id)

    def _line(self) -> str | None:
        """None at the end of the input."""
        if self._asks:
            sys.stderr.write("you> ")
            sys.stderr.flush()
        line = sys.stdin.readline()
        if self._asks and not line:
            sys.stderr.write("\n")
        return line.removesuffix("\n") if line else None

    # -- what is seen

    def seen(self, observed: Observed) -> None:
        """An answer of the environment."""
        if not self._turns:
            self._first = observed
            if not self._prompt:
                self._block("env", observed.text)
            return
        last = self._turns[-1]
        last.observation, last.reward, last.seconds = observed.text, observed.reward, observed.seconds
        self._block("env", observed.text)
        numbers = "".join(f", {name} {value:g}" for name, value in observed.numbers.items())
        self._show(Text(f"turn {len(self._turns)}: reward {observed.reward:g}{numbers}", style="bold"))

    def _ended(self, rollout: Rollout) -> AgentPlayRecord:
        (episode,) = rollout.episodes or ()
        ended = LEFT if self.gone else episode.ended
        failure = episode.failure.message if episode.failure is not None else None
        score = sum(turn.reward for turn in self._turns)
        count = f"{len(self._turns)} turn{'' if len(self._turns) == 1 else 's'}"
        said = f"failed: {failure}" if failure else f"{ended} after {count}, score {score:g}"
        if self._known and not failure:
            sampled = sum(len(turn.sampled_ids) for turn in self._turns)
            answered = sum(len(turn.answered_ids) for turn in self._turns)
            limit = self._limits.response_tokens
            said += f"; {sampled} tokens sampled and {answered} answered, of data.max_response_length={limit}"
        self._show(Text(redact.text(said), style="bold"))
        return AgentPlayRecord(
            self._env,
            self._seed,
            ended,
            score,
            prompt=self._prompt or (self._first.text if self._first is not None else ""),
            prompt_ids=self._ids(self._prompt_ids),
            turns=tuple(
                {
                    "sampled": turn.sampled,
                    "sampled_ids": self._ids(turn.sampled_ids),
                    "answered_ids": self._ids(turn.answered_ids),
                    "observation": turn.observation,
                    "reward": turn.reward,
                    "seconds": turn.seconds,
                }
                for turn in self._turns
            ),
            failure=failure,
        )

    def _ids(self, ids: Sequence[int]) -> tuple[int, ...] | None:
        return tuple(ids) if self._known else None

    def _tokens(self, what: str, ids: Sequence[int], mask: int) -> None:
        if self._known:
            self._show(Text(f"{what:>8}   {len(ids)} tokens, mask {mask}: {' '.join(map(str, ids))}", style="dim"))

    def _block(self, who: str, text: str, style: str = "") -> None:
        for line in block(who, text, style):
            self._show(line)

    def _show(self, line: Text) -> None:
        if not self._quiet:
            self._page.print(line, soft_wrap=True)
