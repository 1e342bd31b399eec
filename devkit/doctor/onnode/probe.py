"""All facts of this node, gathered at once; a probe that fails or hangs costs its own fact and no other one."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from .devices import devices
from .facts import NodeFacts, RetrieverFacts
from .machine import disks, limits, machine_id, ray_arguments, ray_folder, raylet, shown, token
from .network import interfaces, look_up, own_addresses, reach, taken
from .retriever import ask
from .software import software, tools

GCS_PORT, DASHBOARD_PORT = 6379, 8265
RETRIEVER_S = 8.0


@dataclass(frozen=True)
class Question:
    """What a probe is told of the cluster."""

    seconds: float  # how long it may take
    key: str = ""  # of the tokens' digests
    addresses: tuple[str, ...] = ()  # of all nodes
    services: dict[str, tuple[str, int]] = field(default_factory=dict)  # what every node has to reach
    alone: bool = False  # no cluster runs here: Ray's ports should be free
    retrievers: tuple[tuple[str, int], ...] = ()  # of the command: URL, passages for a query


def gather(question: Question) -> NodeFacts:
    """What can be seen of this node within `question.seconds`."""
    deadline = time.monotonic() + question.seconds
    ray_environ, words = raylet()
    environ = ray_environ or dict(os.environ)
    sessions = ray_folder(words, environ)
    probes: dict[str, Callable[[], Any]] = {
        "software": software,
        "tools": lambda: tools(environ),
        "devices": devices,
        "limits": limits,
        "disks": lambda: disks(environ, sessions),
        "token": lambda: token(environ, question.key),
        "interfaces": interfaces,
        "names": lambda: own_addresses(socket.gethostname()),
        "lookups": lambda: look_up(question.addresses, deadline - 0.2),
        "ports": lambda: taken(_ports(question, environ)),
        "reached": lambda: _reached(question.services),
    }
    if question.retrievers:
        probes["retrievers"] = lambda: _retrievers(question.retrievers, min(RETRIEVER_S, question.seconds - 1.0))
    found, unseen = at_once(probes, deadline)
    facts = NodeFacts(machine_id(), environment=shown(environ), ray_arguments=ray_arguments(words), unseen=unseen)
    network = replace(
        facts.network,
        hostname=socket.gethostname(),
        hostname_addresses=found.get("names", ()),
        **{name: found[name] for name in ("interfaces", "lookups", "ports", "reached") if name in found},
    )
    whole = {
        name: found[name]
        for name in ("software", "tools", "devices", "limits", "disks", "token", "retrievers")
        if name in found
    }
    return replace(facts, network=network, **whole)


def _ports(question: Question, environ: dict[str, str]) -> dict[int, str]:
    """Ports that something of a run will want to listen on."""
    wanted = {GCS_PORT: "Ray's GCS", DASHBOARD_PORT: "Ray's dashboard"} if question.alone else {}
    port = environ.get("MASTER_PORT", "")
    if port.isdecimal() and 0 < int(port) < 65536 and int(port) not in (GCS_PORT, DASHBOARD_PORT):
        wanted[int(port)] = "MASTER_PORT"
    return wanted


def _reached(services: dict[str, tuple[str, int]]) -> dict[str, str]:
    probes = {name: partial(reach, *place) for name, place in services.items()}
    found, unseen = at_once(probes, time.monotonic() + 5.0)
    return {**found, **unseen}


def _retrievers(asked: Sequence[tuple[str, int]], seconds: float) -> tuple[RetrieverFacts, ...]:
    probes = {url: partial(ask, url, topk, seconds) for url, topk in asked}
    found, failed = at_once(probes, time.monotonic() + seconds + 0.5)
    return tuple(found.get(url) or RetrieverFacts(url, failed[url]) for url in probes)


def at_once(probes: Mapping[str, Callable[[], Any]], deadline: float) -> tuple[dict[str, Any], dict[str, str]]:
    """What each gives, and why the others gave nothing. `deadline` is of time.monotonic()."""
    found: dict[str, Any] = {}
    failed: dict[str, str] = {}

    def run(name: str, probe: Callable[[], Any]) -> None:
        try:
            found[name] = probe()
        except Exception as error:  # noqa: BLE001 - one probe must not cost the others; what it met is told
            failed[name] = f"{type(error).__name__}: {error}"[:200]

    threads = {name: threading.Thread(target=run, args=(name, probe), daemon=True) for name, probe in probes.items()}
    for thread in threads.values():
        thread.start()
    for thread in threads.values():
        thread.join(max(0.0, deadline - time.monotonic()))
    missing = {name: "took too long" for name in probes if name not in found and name not in failed}
    return dict(found), {**failed, **missing}
