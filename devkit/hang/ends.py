"""Who is at the other end of a TCP connection that a process waits on, where that is a process of the job. Pure."""

from __future__ import annotations

import re

from devkit.hang import words
from devkit.hang.case import Case
from devkit.hang.states import ACCEPTS, State

_TCP = re.compile(r"TCP (?P<local>\S+) to (?P<remote>\S+)")
_ANYWHERE = ("0.0.0.0", "[::]", "::")
_OF_THE_NODE = re.compile(r"127\.|\[?::1\]?$|\[?::ffff:127\.")  # the same address is another place on each node
_LISTENS = re.compile(r"TCP \S+ to (0\.0\.0\.0|\[?::\]?):0\b")


def is_server(state: State) -> bool:
    """Whether it waits for others to connect, which is a server's rest and seldom a cause."""
    return state.doing == "io" and (state.about.startswith(ACCEPTS) or bool(_LISTENS.search(state.about)))


def other_end(case: Case, state: State) -> str:
    """Whose the address is from which it waits for data, as the rest of a sentence; empty where that is not known."""
    found = _TCP.search(state.about) if state.doing == "io" and not is_server(state) else None
    if found is None:
        return ""
    remote = found["remote"]
    for other in case.states:
        if other is not state and _is_near(remote, state, other) and _has(other, remote):
            return f"; {remote} is {words.name(other)}'s"
    return ""


def _is_near(address: str, state: State, other: State) -> bool:
    """Whether both mean the same place by an address."""
    return state.facts.node_ip == other.facts.node_ip or not _OF_THE_NODE.match(address)


def _has(owner: State, address: str) -> bool:
    """Whether one of its threads waits on a socket at this address: its own, or at all addresses of its node."""
    return any(_is_at(thread.target, address, owner.facts.node_ip) for thread in owner.facts.threads)


def _is_at(target: str, address: str, node_ip: str) -> bool:
    found = _TCP.search(target)
    if found is None:
        return False
    host, _, port = found["local"].rpartition(":")
    wanted, _, number = address.rpartition(":")
    here = host == wanted or (host in _ANYWHERE and (wanted == node_ip or bool(_OF_THE_NODE.match(wanted))))
    return port == number and here
