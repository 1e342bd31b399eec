"""What an environment is: gymnasium's `reset`, `step` and `close` over text, and how its answers are checked.

    reset(*, seed) -> (observation, info)
    step(action)   -> (observation, reward, terminated, truncated, info)
    close()        where there is something to close

`observation` and `action` are text. Of `info`, `success` (a number or True, False) and `metrics` (numbers by name) are
reported; `env_instruction`, a text, stands before the first observation, and `state`, a text, names what the same
actions are compared in; `messages`, a list of `{"role": ..., "content": ...}`, stand in place of the observation in a
chat template; `prefix` and `suffix`, texts, stand around it, as GEM has them. The rest is the environment's own. This
module runs in an environment's process: standard library only.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

LARGEST = 3.4e38  # of fp32, in which rewards go on
MOST_CHARACTERS = 4_000_000  # of an observation: no context is that long
STEP_FORM = "(observation, reward, terminated, truncated, info)"
_HERE = os.path.dirname(__file__)  # where environments are called
_SHOWN = 300  # characters of an error's text
_COLOURS = re.compile("\x1b\\[[0-9;]*m")  # some libraries write their errors for a terminal
_NAME = re.compile(r"[A-Za-z_][\w.-]*(?:/[\w.-]+)*", re.ASCII)  # of a metric
# What the trainer itself writes beside an environment's numbers: into metrics, and into the samples.
RESERVED = frozenset(
    {
        *("turns", "sampled_tokens", "observed_tokens", "env_seconds", "ended", "failed", "dropped", "kept"),
        *("step", "row", "sample", "seed", "data_source", "ground_truth", "prompt", "response", "score", "reward"),
        *("seconds", "observation", "environment", "asked"),
    }
)


class Unfit(Exception):
    """An answer that is none: of another type, or not to be written as text."""


class Away(Exception):
    """Of an environment on a server: what came in place of an answer, of the kind `kind` of `episode.Failure`."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class Observed:
    """An environment's answer, checked."""

    text: str
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    numbers: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0  # that it took
    instruction: str = ""  # of reset: what stands before the first observation
    state: str = ""  # equal where the same could be done; the observation, unless the environment says better
    messages: Sequence[Mapping[str, str]] = ()  # in place of the text, for a chat template


def reset(environment: Any, seed: int, options: Mapping[str, Any] | None = None) -> Observed:
    """A new episode, wholly determined by `seed` and `options`. Raises Unfit, and what the environment raises."""
    began = time.monotonic()
    answer = environment.reset(seed=seed) if options is None else environment.reset(seed=seed, options=options)
    seconds = time.monotonic() - began
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise Unfit(f"reset gave {_kind(answer)}, and not (observation, info)")
    try:
        text, info = _text("reset", answer[0]), answer[1]
    except Unfit as error:
        raise Unfit(f"{error}{_spaces(environment)}") from None
    numbers, state = _numbers("reset", info), _said("reset", info, "state") or text
    instruction, text = _said("reset", info, "env_instruction"), _framed("reset", text, info)
    return Observed(text, numbers=numbers, seconds=seconds, instruction=instruction, state=state)


def step(environment: Any, action: str) -> Observed:
    """The answer to `action`. Raises Unfit, and what the environment raises."""
    began = time.monotonic()
    answer = environment.step(action)
    seconds = time.monotonic() - began
    if not isinstance(answer, tuple) or len(answer) != 5:
        raise Unfit(f"step gave {_kind(answer)}, and not {STEP_FORM}")
    observation, reward, terminated, truncated, info = answer
    number = _number("the reward of step", reward)
    ended, cut = _truth("terminated", terminated), _truth("truncated", truncated)
    text, numbers = _text("step", observation), _numbers("step", info)
    messages, state = _messages(info.get("messages", ())), _said("step", info, "state") or text
    text = _framed("step", text, info)
    return Observed(text, number, ended, cut, numbers, seconds, state=state, messages=messages)


def _said(where: str, info: Mapping[str, Any], name: str) -> str:
    """A text of `info`; something else under its name is the environment's own."""
    value = info.get(name)
    return _text(where, value) if isinstance(value, str) else ""


def _framed(where: str, text: str, info: Mapping[str, Any]) -> str:
    """With GEM's `prefix` and `suffix`, as its `ObservationWrapper` puts them; where it has done so, it stays.

    >>> _framed("step", "No.", {"suffix": "Guess again."}), _framed("step", "No. Guess again.", {"suffix": "again."})
    ('No.\\nGuess again.', 'No. Guess again.')
    """
    before, behind = _said(where, info, "prefix"), _said(where, info, "suffix")
    if behind and not text.endswith(behind):
        text = f"{text}{chr(10) if text and not text.endswith(chr(10)) else ''}{behind}"
    return text if text.startswith(before) else before + text


def _spaces(environment: Any) -> str:
    """What gymnasium's space says of an observation that is no text."""
    space = getattr(environment, "observation_space", None)
    return "" if space is None else f"; its observation_space is {_shown(space)}: a wrapper around it can make it text"


def schemas(environment: Any) -> Observed:
    """Of an environment of tools: what a chat template is given of them, as JSON."""
    return Observed(json.dumps(environment.schemas()))


def _messages(value: Any) -> list[dict[str, str]]:
    if not isinstance(value, (list, tuple)):
        raise Unfit(f"info['messages'] of step is no list but {_kind(value)}")
    found = []
    for each in value:
        if not isinstance(each, Mapping) or not isinstance(each.get("role"), str):
            raise Unfit(f"info['messages'] of step has no {{role, content}} but {_kind(each)}")
        found.append({"role": _text("step", each["role"]), "content": _text("step", each.get("content"))})
    return found


def _text(where: str, value: Any) -> str:
    if not isinstance(value, str):
        raise Unfit(f"{where} gave an observation that is no text but {_kind(value)}")
    if len(value) > MOST_CHARACTERS:
        raise Unfit(f"{where} gave an observation of {len(value):,} characters; at most {MOST_CHARACTERS:,} are taken")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Unfit(f"{where} gave an observation with half a character (a lone surrogate)") from None
    return str(value)


def _number(what: str, value: Any) -> float:
    if isinstance(value, (str, bytes)) or not hasattr(value, "__float__"):
        raise Unfit(f"{what} is no number but {_kind(value)}")
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not abs(number) <= LARGEST:
        raise Unfit(f"{what} is not a finite fp32 number: {value!r:.80}")
    return number


def _truth(name: str, value: Any) -> bool:
    numpys = type(value).__name__ == "bool_"
    tensor = str(getattr(value, "dtype", "")) in ("bool", "torch.bool") and getattr(value, "ndim", 1) == 0
    if not (isinstance(value, bool) or numpys or tensor):
        raise Unfit(f"{name} of step is neither True nor False but {_kind(value)}")
    return bool(value)


def _numbers(where: str, info: Any) -> dict[str, float]:
    if not isinstance(info, Mapping):
        raise Unfit(f"{where} gave an info that is no mapping but {_kind(info)}")
    metrics = info.get("metrics", {})
    if not isinstance(metrics, Mapping):
        raise Unfit(f"info['metrics'] of {where} is no mapping but {_kind(metrics)}")
    given = {f"info['metrics']['{name}']": (str(name), value) for name, value in metrics.items()}
    if "success" in info:
        given["info['success']"] = ("success", info["success"])
    for what, (name, _) in given.items():
        if not _NAME.fullmatch(name):
            raise Unfit(f"{what} of {where}: the name of a metric is letters, digits and _ . - /, not {name!r:.40}")
        if name in RESERVED:
            raise Unfit(f"{what} of {where} has a name that the trainer uses itself: {name}")
    return {name: _number(f"{what} of {where}", value) for what, (name, value) in given.items()}


def _kind(value: Any) -> str:
    many = isinstance(value, (tuple, list))
    return f"a {type(value).__name__}{f' of {len(value)}' if many else ''} ({_shown(value)})"


def _shown(value: Any) -> str:
    try:
        return " ".join(repr(value).split())[:60]
    except Exception:  # noqa: BLE001 - a user's `__repr__` may raise anything, and this is the text of an error
        return "its repr raises"


def _message(error: BaseException) -> str:
    try:
        return " ".join(_COLOURS.sub("", str(error)).split())[:_SHOWN]
    except Exception:  # noqa: BLE001 - a user's `__str__` may raise anything, and this is the text of an error
        return "its str raises"


def told(error: BaseException, files: Iterable[str] = ()) -> str:
    """An error in one line, with the innermost place in one of `files`, else of all but what calls an environment."""
    text = _message(error)
    frames = [each for each in traceback.extract_tb(error.__traceback__) if os.path.dirname(each.filename) != _HERE]
    names = set(files)
    own = [frame for frame in frames if frame.filename in names] or frames
    where = f" at {own[-1].filename}:{own[-1].lineno} in {own[-1].name}" if own else ""
    return f"{type(error).__name__}{f': {text}' if text else ''}{where}"
