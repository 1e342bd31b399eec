"""How long a command waits for the answers of a cluster: as long as its user says, else as fits the question."""

from __future__ import annotations

_PART = 0.8  # a hub that hardly gets to run is late with its own answer, too

_given: float | None = None  # by the command line; None when it says nothing


def seconds(usual: float) -> float:
    """What the user has given, else `usual`."""
    return usual if _given is None else _given


def of_hub(usual: float) -> float:
    """How long the hub may take to collect answers, so that what it has by then is here in the user's time."""
    return usual if _given is None else _PART * _given


def give(value: float | None) -> None:
    """What the command line says. A verb below another one that says nothing leaves what that said."""
    global _given
    if value is not None:
        _given = value


def forget() -> None:
    """Another command line begins."""
    global _given
    _given = None
