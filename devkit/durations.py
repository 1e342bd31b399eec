"""Durations on the command line, in seconds or with a unit: finite, above zero, not longer than any clock can wait."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import typer

from devkit.errors import UsageError

if TYPE_CHECKING:
    from typer.models import OptionInfo

LEAST = 0.1
MOST = 2_000_000.0  # 23 days; poll(2) counts milliseconds in 31 bits and ends at 24.8
METAVAR = "SECONDS"
UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def duration(*names: str, help: str, least: float = LEAST, never: bool = False) -> OptionInfo:  # noqa: A002 - Typer's own word
    """The option of a duration of at least `least` seconds; with `never`, 0 is one too: without end."""
    check = _check(least, never=never)
    option: OptionInfo = typer.Option(*names, metavar=METAVAR, help=help, callback=check, parser=seconds)
    return option


def seconds(text: str | float) -> float:
    """Raises UsageError.

    >>> seconds("90"), seconds("2m"), seconds("1.5h")
    (90.0, 120.0, 5400.0)
    """
    word = str(text).strip()
    factor = UNITS.get(word[-1:])
    try:
        return float(word) if factor is None else float(word[:-1]) * factor
    except ValueError:
        raise UsageError(
            f"{text!r} is not a duration", hint="a number of seconds, or one with a unit: 2m, 1.5h"
        ) from None


def _check(least: float, *, never: bool) -> Callable[[typer.CallbackParam, Any], Any]:
    def check(param: typer.CallbackParam, value: float | None) -> float | None:
        if value is not None and problem(value, least, never=never):
            hint = f"a number of seconds from {least:g} to {MOST:,.0f}{', or 0 for no limit' if never else ''}"
            raise UsageError(f"{param.opts[0]} is {value:g}", hint=hint)
        return value

    return check


def problem(seconds: float, least: float = LEAST, *, never: bool = False) -> bool:
    """Whether no clock can wait so long, or nothing would be done within it.

    >>> [problem(each) for each in (1.0, 0.0, -1.0, float("nan"), float("inf"), 1e300)]
    [False, True, True, True, True, True]
    >>> problem(0.0, never=True)
    False
    """
    return not (math.isfinite(seconds) and (least <= seconds <= MOST or (never and seconds == 0)))
