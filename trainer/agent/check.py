"""An environment looked at without a model: scripted episodes, each played twice, and what they are as tokens.

The second time in other processes and in another order: what an episode takes from a clock, from global random
numbers or from the episode before it shows as a difference. With `agent.isolate=False`, all are played in this process,
as in a run.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, redirect_stdout
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any, Literal

from trainer.agent.contract import Observed
from trainer.agent.homes import Broken, Home, Houses, again_and_again, answered, load_limit
from trainer.agent.messages import Messages
from trainer.agent.source import Source
from trainer.config.schema import Config
from trainer.data.episodes import TRAIN, seed_of

# Without a model nobody knows what it will say: nothing, a word, a tag, several lines of other scripts.
ACTIONS = ("", "yes", "<answer>Right</answer>", "<answer>Down</answer>", "<search>ice</search>", "Ωμέγα\n冰\n" * 3)


@dataclass(frozen=True)
class Told:
    """What one check found."""

    name: str
    status: Literal["pass", "fail", "skip"]
    detail: str
    seconds: float = 0.0


@dataclass(frozen=True)
class Wish:
    """How much is played."""

    episodes: int
    actions: tuple[str, ...]
    turn_s: float | None
    tokenizer: Any = None  # of the model; None: tokens are not looked at
    options: Sequence[Mapping[str, Any]] = ()  # of resets, one after the other: of an environment that takes rows


@dataclass(frozen=True)
class Played:
    """One episode: what was done, and what came of it."""

    seed: int
    actions: tuple[str, ...]  # one less than answers: the first answer is that of reset
    answers: tuple[Observed, ...]

    @property
    def ended(self) -> bool:
        return self.answers[-1].terminated or self.answers[-1].truncated

    @property
    def steps(self) -> tuple[Observed, ...]:
        return self.answers[1:]


class _Failed(Exception):
    """Where an episode came to a bad end."""


def check(source: Source, config: Config, wish: Wish) -> Iterator[Told]:
    """The checks, as they are done; after one that fails, those that rest on it are left out.

    Raises ConfigError for an environment that cannot be loaded.
    """
    began = time.monotonic()
    seeds = [seed_of(config.trainer.seed, TRAIN, i) for i in range(wish.episodes)]
    options = dict(zip(seeds, cycle(wish.options), strict=False))
    try:
        first, houses = _all(source, config, wish, seeds, options)
    except _Failed as error:
        yield Told("episodes", "fail", str(error), time.monotonic() - began)
        return
    steps = sum(len(each.steps) for each in first)
    yield Told("episodes", "pass", f"{len(first)} episodes, {steps} steps", time.monotonic() - began)
    began = time.monotonic()
    try:
        again, houses = _all(source, config, wish, seeds[::-1], options)
        said = next((found for pair in zip(first, again[::-1], strict=True) if (found := difference(*pair))), "")
    except _Failed as error:
        said = f"the second time, {error}"
    status: Literal["pass", "fail"] = "fail" if said else "pass"
    apart = "" if source.built_in or not config.agent.isolate else "in other processes and "
    detail = said or f"each seed gave the same twice, {apart}in another order"
    yield Told("determinism", status, detail, time.monotonic() - began)
    yield _times(first, wish.turn_s, houses)
    yield _ends(first, config.agent.max_turns)
    yield from _tokens(first, config, wish.tokenizer)


def _all(
    source: Source, config: Config, wish: Wish, seeds: Sequence[int], options: Mapping[int, Mapping[str, Any]]
) -> tuple[list[Played], Houses]:
    """What was played, and where: it is closed. What an environment in this process prints is talk."""
    agent = config.agent
    with redirect_stdout(sys.stderr):
        houses = Houses(source, isolate=agent.isolate, limit_s=load_limit(agent.turn_timeout))
        with closing(houses):
            return [_episode(houses, seed, agent.max_turns, wish, options.get(seed)) for seed in seeds], houses


def _episode(houses: Houses, seed: int, turns: int, wish: Wish, options: Mapping[str, Any] | None) -> Played:
    """Raises _Failed."""
    given = (seed,) if options is None else (seed, options)
    home, dice, actions, answers = houses.home(), random.Random(seed), list[str](), list[Observed]()
    try:
        answers.append(_asked(home, "reset", given, wish.turn_s, houses.waits_s))
        while len(actions) < turns and not (answers[-1].terminated or answers[-1].truncated):
            actions.append(dice.choice(wish.actions))
            answers.append(_asked(home, "step", (actions[-1],), wish.turn_s))
    except Broken as error:
        home.end(kill=True)
        done = f", after the action {actions[-1]!r:.60}" if actions else ""
        raise _Failed(f"seed {seed}, turn {len(actions)}{done}: {error}") from None
    home.end()
    return Played(seed, tuple(actions), tuple(answers))


def _asked(home: Home, what: str, arguments: tuple[Any, ...], turn_s: float | None, more_s: float = 0.0) -> Observed:
    home.ask(what, *arguments)
    if not answered([home], None if turn_s is None else turn_s + more_s):
        raise Broken("hung", f"{what} had not answered after {turn_s:g} s")
    return home.take()


def difference(one: Played, other: Played) -> str:
    """What is not the same the second time; empty if all is."""
    for turn, (a, b) in enumerate(zip(one.answers, other.answers, strict=False)):
        for name in ("text", "reward", "terminated", "truncated", "numbers"):
            ours, theirs = getattr(a, name), getattr(b, name)
            if ours != theirs:
                what = {"text": "the observation", "numbers": "info"}.get(name, name)
                return f"seed {one.seed}, turn {turn}: {what} was {_short(ours)} and then {_short(theirs)}"
    return ""


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _times(played: Sequence[Played], turn_s: float | None, houses: Houses) -> Told:
    """A slow one is not at fault: its time limit was kept."""
    resets = [each.answers[0].seconds for each in played]
    steps = [answer.seconds for each in played for answer in each.steps]
    limit = f"agent.turn_timeout is {turn_s:g} s" if turn_s is not None else "there is no agent.turn_timeout"
    limit = limit if houses.isolate else "agent.isolate is False: no time limit"
    slowest = f"the slowest reset took {max(resets):.3f} s, the slowest step {max(steps, default=0.0):.3f} s"
    cost = f"; {again_and_again(houses)}" if houses.missed else ""
    return Told("time", "pass", f"{slowest}; {limit}{cost}")


def _ends(played: Sequence[Played], turns: int) -> Told:
    """With actions that nobody has chosen, it need not end; only then nothing is known of its end."""
    ended = sum(each.ended for each in played)
    rewards = [answer.reward for each in played for answer in each.steps]
    said = f"{ended} of {len(played)} episodes ended by themselves within agent.max_turns={turns}"
    span = f"rewards from {min(rewards, default=0.0):g} to {max(rewards, default=0.0):g}"
    if not ended:
        return Told("ends", "skip", f"{said}, {span}: give actions that lead further with --action")
    if not any(rewards):
        return Told("ends", "skip", f"{said}, and no reward is other than 0: give actions that earn one with --action")
    return Told("ends", "pass", f"{said}, {span}")


def _tokens(played: Sequence[Played], config: Config, tokenizer: Any) -> Iterator[Told]:
    """What is trained, decoded, is what was done; and whether it all fits."""
    if tokenizer is None:
        why = "no tokenizer: give actor_rollout_ref.model.path=MODEL"
        yield from (Told(name, "skip", why) for name in ("mask", "lengths"))
        return
    from trainer.agent.laying import Said, lay  # torch
    from trainer.agent.speech import Speech

    if lost := _lost(played, tokenizer):
        yield Told("mask", "fail", lost)
        return
    speech, end = Speech(tokenizer, [tokenizer.eos_token_id], config.agent.speech), tokenizer.eos_token_id
    shown = Messages.of(config)
    prompts, responses, drifted = [], [], 0
    for each in played:
        first = each.answers[0]
        prompt = speech.begin(shown.first(first.text, first.instruction), shown.system)
        said: list[Said] = []
        for action, answer in zip(each.actions, each.steps, strict=True):
            sampled = [*tokenizer(action, add_special_tokens=False)["input_ids"], end]
            shown_text = shown.later(len(said) + 1, answer.text)
            followed = speech.reply(sampled, shown_text, answer.messages)
            said.append(Said(sampled, [0.0] * len(sampled), answer.reward, answered=followed))
        said[-1] = replace(said[-1], answered=())
        row = lay(said)
        trained = [speech.action(row.ids[turn.start : turn.end]) for turn in row.turns]
        for turn, (found, wanted) in enumerate(zip(trained, each.actions, strict=True), start=1):
            if found != wanted:
                said_so = f"seed {each.seed}, turn {turn}: {_short(wanted)} comes back as {_short(found)}"
                yield Told("mask", "fail", f"{said_so}: the tokenizer does not keep what is said")
                return
        text = tokenizer.decode([*prompt, *row.ids])
        drifted += tokenizer(text, add_special_tokens=False)["input_ids"] != [*prompt, *row.ids]
        prompts.append(len(prompt))
        responses.append(len(row.ids))
    again = f"{drifted} of them would be other tokens if they were encoded again, which the trainer never does"
    yield Told("mask", "pass", f"{speech.style}: what is trained of {len(played)} episodes is what was done; {again}")
    yield _lengths(prompts, responses, config)


def _lost(played: Sequence[Played], tokenizer: Any) -> str:
    """The first observation that is another text once it is tokens; empty where all come back."""
    for each in played:
        for turn, answer in enumerate(each.answers):
            found = tokenizer.decode(tokenizer(answer.text, add_special_tokens=False)["input_ids"])
            if found.strip() != answer.text.strip():
                said = f"{_short(answer.text)} comes back as {_short(found)}"
                return (
                    f"seed {each.seed}, turn {turn}: the observation {said}: the tokenizer loses or changes some of it"
                )
    return ""


def _lengths(prompts: Sequence[int], responses: Sequence[int], config: Config) -> Told:
    most, limit = config.data.max_prompt_length, config.data.max_response_length
    said = f"first observations have up to {max(prompts)} tokens (data.max_prompt_length={most})"
    said += f", all that follows up to {max(responses)} (data.max_response_length={limit})"
    if max(prompts) > most:
        return Told("lengths", "fail", f"{said}: such an episode fails before its first turn")
    over = sum(length > limit for length in responses)
    return Told("lengths", "pass", said + (f": {over} of {len(responses)} would be cut short" if over else ""))
