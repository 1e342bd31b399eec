"""Rules about interfaces, addresses, names and services of each node."""

from __future__ import annotations

import re
from collections.abc import Iterator

from devkit.doctor.onnode.facts import Interface, NodeFacts
from devkit.doctor.records import Finding
from devkit.doctor.scene import Scene, names

BRIDGES = re.compile(r"docker\d+|br-[0-9a-f]{6,}|virbr\d+|podman\d+|cni\d+|lxcbr\d+|lxdbr\d+")
SLOW_LOOKUP_S = 1.0


def check(scene: Scene) -> Iterator[Finding]:
    for name, facts in scene.seen:
        for variable in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
            yield from _interface(scene, name, facts, variable)
    yield from _bridges(scene)
    yield from _hostname(scene)
    yield from _lookups(scene)
    yield from _services(scene)


def _interface(scene: Scene, name: str, facts: NodeFacts, variable: str) -> Iterator[Finding]:
    value = facts.environment.get(variable, "")
    if not value or not facts.network.interfaces:
        return
    meant = matching(value, facts.network.interfaces, exact=variable == "GLOO_SOCKET_IFNAME")
    has = names(_shown(each) for each in facts.network.interfaces)
    evidence = (f"{variable}={value}", f"{name} has {has}")
    usable = [each.name for each in facts.network.interfaces if each.up and not each.loopback and each.addresses]
    fix = f"export {variable}={usable[0] if usable else 'NAME'} before `ray start` there; `ip -br addr` lists them"
    if not meant:
        what = f"{variable} is {value} on {name}, which has no such interface"
        yield Finding("interface-missing", (name,), what, _FAILS[variable], fix, evidence)
    elif not any(each.up and each.addresses for each in meant):
        what = f"{variable} is {value} on {name}, and {meant[0].name} there is {_state(meant[0])}"
        yield Finding("interface-down", (name,), what, _FAILS[variable], fix, evidence)
    elif scene.machines > 1 and all(each.loopback for each in meant if each.up):
        what = f"{variable} is {value} on {name}, which other nodes can't reach"
        yield Finding("interface-loopback", (name,), what, _FAILS[variable], fix, evidence)


_FAILS = {
    "NCCL_SOCKET_IFNAME": "NCCL cannot reach the other ranks: 'Bootstrap : no socket interface found', or a hang",
    "GLOO_SOCKET_IFNAME": "gloo stops in init_process_group: 'Unable to find address for' that interface, or hangs",
}


def matching(value: str, interfaces: tuple[Interface, ...], *, exact: bool) -> list[Interface]:
    """The interfaces that a variable means: NCCL takes prefixes, `=` before exact names, `^` before those it avoids.

    >>> a, b = Interface("eth0", True, False, ("10.0.0.1",)), Interface("eth1", True, False, ("10.0.1.1",))
    >>> [each.name for each in matching("eth", (a, b), exact=False)], matching("eth", (a, b), exact=True)
    (['eth0', 'eth1'], [])
    >>> [each.name for each in matching("^eth1", (a, b), exact=False)]
    ['eth0']
    """
    if not exact and value.startswith("^"):
        avoided = value[1:].lstrip("=").split(",")
        return [each for each in interfaces if not each.name.startswith(tuple(avoided)) and not each.loopback]
    is_exact = exact or value.startswith("=")
    wanted = [word.strip() for word in value.lstrip("=").split(",") if word.strip()]
    return [
        each
        for each in interfaces
        for word in wanted
        if (each.name == word if is_exact else each.name.startswith(word))
    ]


def _shown(interface: Interface) -> str:
    return f"{interface.name} ({_state(interface)})"


def _state(interface: Interface) -> str:
    if not interface.up:
        return "down"
    return f"up, {interface.addresses[0]}" if interface.addresses else "up, without an address"


def _bridge_of(facts: NodeFacts, address: str) -> str:
    for interface in facts.network.interfaces:
        if address in interface.addresses and BRIDGES.fullmatch(interface.name):
            return interface.name
    return ""


def _bridges(scene: Scene) -> Iterator[Finding]:
    for node in scene.nodes:
        if node.facts is None:
            continue
        name, network = scene.name(node.node_id), node.facts.network
        resolved = network.hostname_addresses[0] if network.hostname_addresses else ""
        for address, whose in ((node.ip, "Ray knows it by"), (resolved, f"its name {network.hostname} resolves to")):
            bridge = _bridge_of(node.facts, address)
            if bridge:
                others = [a for i in network.interfaces if i.up and not i.loopback for a in i.addresses if a != address]
                better = others[0] if others else "ADDRESS"
                yield Finding(
                    "docker-address",
                    (name,),
                    f"{name} is known by {address}, the address of {bridge}",
                    "every machine with Docker has its own such network: other nodes would reach themselves",
                    f"on that node: ray start --node-ip-address={better}, and GLOO_SOCKET_IFNAME",
                    (f"{whose} {address}", f"{bridge} on {name} has {address}"),
                )
                break


def _hostname(scene: Scene) -> Iterator[Finding]:
    if scene.machines < 2:
        return
    for name, facts in scene.seen:
        found = facts.network.hostname_addresses
        if found and all(address.startswith("127.") or address == "::1" for address in found):
            if facts.environment.get("GLOO_SOCKET_IFNAME"):
                continue
            host = facts.network.hostname
            yield Finding(
                "hostname-loopback",
                (name,),
                f"the name {host} of {name} resolves to {names(found)} there",
                "gloo binds to the address the host name resolves to, so other nodes can't connect to this one",
                f"on that node: give {host} its real address in /etc/hosts, or export GLOO_SOCKET_IFNAME",
                (f"getaddrinfo({host!r}) on {name}: {names(found)}",),
            )


def _lookups(scene: Scene) -> Iterator[Finding]:
    slow = [
        (name, lookup)
        for name, facts in scene.seen
        for lookup in facts.network.lookups
        if lookup.seconds >= SLOW_LOOKUP_S
    ]
    if slow:
        where = tuple(dict.fromkeys(name for name, _ in slow))
        worst = max((lookup for _, lookup in slow), key=lambda lookup: (not lookup.finished, lookup.seconds))
        over = "" if worst.finished else "over "
        yield Finding(
            "slow-lookup",
            where,
            f"reverse DNS lookups take {over}{worst.seconds:.1f} s on {names(where)}",
            "torch looks up each peer's name: every rank waits that long in init_process_group",
            "on that node: set a working DNS server in /etc/resolv.conf, or add `options timeout:1 attempts:1` to it",
            tuple(
                f"{name}: {lookup.address} took {'' if lookup.finished else 'over '}{lookup.seconds:.1f} s, "
                + (f"{lookup.name}" if lookup.name else "no name")
                for name, lookup in slow[:6]
            ),
        )


def _services(scene: Scene) -> Iterator[Finding]:
    for service in sorted({service for _, facts in scene.seen for service in facts.network.reached}):
        cut = [(n, f.network.reached[service]) for n, f in scene.seen if f.network.reached.get(service)]
        if cut:
            where = tuple(name for name, _ in cut)
            yield Finding(
                "service-unreachable",
                where,
                f"{service} can't be reached from {names(where)}",
                "workers and the debugger need it",
                f"open that port on the head for {names(where)}",
                tuple(f"from {name}: {why}" for name, why in cut),
                "error" if "GCS" in service else None,
            )
