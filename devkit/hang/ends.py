"""Who is at the other end of a TCP connection that a process waits on, where that is a process of the job. Pure."""

from __future__ import annotations

import re

from devkit.hang import words
from devkit.hang.case import Case
from devkit.hang.states import ACCEPTS, State

_TCP = re.compile(r"TCP (?P<local>\S+) to (?P<remote>\S+)")
_ANYWHERE = ("0.0.0.0", "[::]", "::")


def is_server(state: State) -> bool:
    """Whether it waits for others to connect, which is a server's rest and seldom a cause."""
    return state.doing == "io" and state.about.startswith(ACCEPTS)


def other_end(case: Case, state: State) -> str:
    """Whose the address is from which it waits for data, as the rest of a sentence; empty where that is not known."""
    found = _TCP.search(state.about) if state.doing == "io" and not is_server(state) else None
    if found is None:
        return ""
    remote = found["remote"]
    for other in case.states:
        if other is not state and any(_is_at(target, remote, other) for target in _targets(other)):
            return f"; {remote} is {words.name(other)}'s"
    return ""


def _targets(state: State) -> list[str]:
    return [thread.target for thread in state.facts.threads]


def _is_at(target: str, address: str, owner: State) -> bool:
    """Whether a thread waits on a socket at this address: its own, or at all addresses of its node."""
    found = _TCP.search(target)
    if found is None:
        return False
    host, _, port = found["local"].rpartition(":")
    wanted, _, number = address.rpartition(":")
    here = host == wanted or (host in _ANYWHERE and wanted in ("127.0.0.1", owner.facts.node_ip))
    return port == number and here
