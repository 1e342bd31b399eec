"""Which results of calls are wanted, as their names and types tell."""

from __future__ import annotations

import re
from typing import Any

# Calls that are made for what they do, whatever they return; and what is only looked at now and then.
_DOING = frozenset(
    {"update", "train", "training", "set", "save", "load", "step", "log", "sync", "push", "put", "add", "append"}
    | {"insert", "init", "initialize", "reset", "close", "stop", "shutdown", "start", "setup", "wait", "barrier"}
    | {"register", "notify", "send", "broadcast", "write", "record", "report", "flush", "clear", "delete", "remove"}
    | {"sleep", "warm", "warmup", "connect", "configure", "fit", "learn", "finish", "exit", "kill", "store", "wake"}
    | {"publish", "checkpoint", "apply", "release", "offload", "onload", "prepare", "touch", "tick", "increment"}
)
_LOOKING = frozenset(
    {"status", "stats", "metrics", "info", "health", "healthy", "heartbeat", "alive", "ping", "poll", "progress"}
    | {"state", "ready", "size", "count", "version", "name", "address", "port", "ip", "id", "pid", "node", "rank"}
)
_NO_DATA = ("NoneType", "bool", "int", "str", "bytes")
_WORDS = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+")


def is_for_result(name: str) -> bool:
    """Whether a call of this name is made for what it returns.

    >>> [is_for_result(each) for each in ("Runner.sample", "score", "Actor.get_batch", "Worker.generate_sequences")]
    [True, True, True, True]
    >>> [is_for_result(each) for each in ("Learner.update_actor", "Env.step", "Worker.get_stats", "ping", "Log.add")]
    [False, False, False, False, False]
    """
    words = [each.lower() for each in _WORDS.findall(name.rpartition(".")[2])]
    return bool(words) and words[0] not in _DOING and _LOOKING.isdisjoint(words)


def is_data(result: Any) -> bool:
    """Whether it is something that it would be a pity to lose."""
    if type(result).__name__ in _NO_DATA or isinstance(result, BaseException):
        return False
    return type(result) not in (list, tuple, dict, set) or len(result) > 0


__all__ = ["is_data", "is_for_result"]
