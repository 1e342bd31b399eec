"""The user's own reward function. Its source is read on the driver and travels as text: workers need no copy."""

from __future__ import annotations

import inspect
import os
import types
from typing import TYPE_CHECKING, Any, cast

from trainer import user_file
from trainer.errors import ConfigError, RewardError
from trainer.rewards import blame
from trainer.rewards.scorer import Scorer

if TYPE_CHECKING:
    from trainer.config.schema import RewardFunctionConfig

MODULE = "custom_reward_function"
_ARGUMENTS = ("data_source", "solution_str", "ground_truth", "extra_info")


def read_source(config: RewardFunctionConfig) -> str | None:
    """The text of `custom_reward_function.path`; None if it isn't set.

    Raises ConfigError if the file can't be read.
    """
    if config.path is None:
        return None
    return user_file.read(config.path, f"custom_reward_function.path={config.path}")


def load_function(source_text: str, path: str, name: str) -> Scorer:
    """The function `name` of the module in `source_text`, which came from the file `path`.

    Raises RewardError if the module raises while it is loaded, ConfigError if it has no such function or if that
    function can't be called as a reward function is.
    """
    module = _load_module(source_text, os.path.abspath(os.path.expanduser(path)), path)
    function = getattr(module, name, None)
    if not callable(function):
        own = [n for n, value in vars(module).items() if inspect.isfunction(value) and value.__module__ == MODULE]
        raise ConfigError(
            f"{path} has no function {name}",
            hint=f"custom_reward_function.name=... is one of: {', '.join(own)}" if own else f"define {name} in it",
        )
    _check_signature(function, path, name)
    return cast(Scorer, function)


def _load_module(source_text: str, filename: str, shown: str) -> types.ModuleType:
    try:
        return user_file.load(source_text, filename, MODULE)
    except Exception as exc:  # the user's code may raise anything; it is reported, with its cause
        raise RewardError(
            f"{shown} raised while it was loaded: {blame.what(exc)}{_where(exc, filename)}",
            hint=f"it must load on its own: python {shown}",
        ) from exc


def _where(exc: Exception, filename: str) -> str:
    """` (line N)`: the last line of the user's file on the way to the exception."""
    line = exc.lineno if isinstance(exc, SyntaxError) and exc.filename == filename else None
    trace = exc.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == filename:
            line = trace.tb_lineno
        trace = trace.tb_next
    return f" (line {line})" if line and f"line {line}" not in str(exc) else ""


def _check_signature(function: Any, path: str, name: str) -> None:
    hint = f"def {name}({', '.join(_ARGUMENTS[:3])}, extra_info=None) -> float"
    if inspect.iscoroutinefunction(function):
        raise ConfigError(f"{name} in {path} is async; a reward function must not be", hint=hint)
    try:
        signature = inspect.signature(function)
    except ValueError:  # some built-in callables have none to look at
        return
    try:
        signature.bind(**dict.fromkeys(_ARGUMENTS))
    except TypeError as exc:
        raise ConfigError(f"{name}{signature} in {path} is not a reward function: {exc}", hint=hint) from exc
