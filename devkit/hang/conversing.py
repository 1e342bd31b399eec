"""What a rank's conversations wait for, as its process has it (`debug/inworker/environments.py`). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Document = Mapping[str, Any]


@dataclass(frozen=True)
class EnvironmentWait:
    """An environment of a conversation that was asked, and has not answered."""

    row: str  # "row 3 of guess.py:Guess"
    sample: int
    turn: int  # 0: of its reset
    what: str  # reset, step
    seconds: float
    pid: int  # of its process; 0: it lives in the rank's own
    limit: float | None  # agent.turn_timeout
    thread: bool = False  # of the rank's process, and another than that of the loop


@dataclass(frozen=True)
class EngineWait:
    """An engine in processes of its own that some conversations wait for."""

    name: str  # "sglang engine 0"
    node_ip: str
    pid: int
    turns: int  # that it is to say
    done: int  # that it has said
    seconds: float  # since it last said one
    limit: float  # engine_timeout
    row: str  # of the turn that has waited longest
    sample: int
    turn: int


@dataclass(frozen=True)
class Search:
    """A request to a retriever that has no answer yet."""

    url: str
    seconds: float
    limit: float  # retriever.timeout
    tries: int
    failure: str  # the exception of the last try; empty: it waits for an answer


def environment(document: Document) -> EnvironmentWait:
    limit = document["limit"]
    return EnvironmentWait(
        str(document["row"]),
        int(document["sample"]),
        int(document["turn"]),
        str(document["what"]),
        float(document["seconds"]),
        int(document["pid"]),
        None if limit is None else float(limit),
        bool(document.get("thread")),
    )


def engine(document: Document | None) -> EngineWait | None:
    if not document:
        return None
    return EngineWait(
        str(document["name"]),
        str(document["node_ip"]),
        int(document["pid"]),
        int(document["turns"]),
        int(document["done"]),
        float(document["seconds"]),
        float(document["limit"]),
        str(document["row"]),
        int(document["sample"]),
        int(document["turn"]),
    )


def search(document: Document) -> Search:
    return Search(
        str(document["url"]),
        float(document["seconds"]),
        float(document["limit"]),
        int(document["tries"]),
        str(document["failure"]),
    )
