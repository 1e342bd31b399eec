"""Interfaces that the environment names for NCCL and gloo, looked at before anything waits for them.

With a name that does not exist NCCL says "no socket interface found" and gloo "unable to find interface", each
somewhere in a rendezvous that the other ranks wait for.
"""

from __future__ import annotations

from collections.abc import Mapping

import psutil

from trainer.errors import ConfigError

GLOO, NCCL = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"


def require_interfaces(environment: Mapping[str, str], where: str, *, nccl: bool) -> None:
    """Raises ConfigError if what is set for gloo, or with `nccl` for NCCL, names no interface of this node."""
    up = {name: stats.isup for name, stats in psutil.net_if_stats().items()}
    for variable in (GLOO, NCCL) if nccl else (GLOO,):
        if value := environment.get(variable):
            missing = gloo_misses(value, up) if variable == GLOO else nccl_misses(value, up)
            if missing:
                known = ", ".join(name if is_up else f"{name} (down)" for name, is_up in sorted(up.items()))
                raise ConfigError(
                    f"{variable}={value}: {missing} on {where}, which has {known}",
                    hint=f"set {variable} to an interface that every node has and the others reach, or leave it unset; "
                    "workers take it from the environment of `ray start`, or from the runtime environment",
                )


def gloo_misses(value: str, up: Mapping[str, bool]) -> str:
    """What is wrong with GLOO_SOCKET_IFNAME, a list of names; empty if nothing is.

    >>> gloo_misses("eth0,ib7", {"eth0": True})
    'there is no interface ib7'
    """
    for name in value.split(","):
        if name not in up:
            return f"there is no interface {name}"
        if not up[name]:
            return f"the interface {name} is down"
    return ""


def nccl_misses(value: str, up: Mapping[str, bool]) -> str:
    """What is wrong with NCCL_SOCKET_IFNAME; empty if nothing is.

    A list of prefixes, or of whole names after `=`, one of which must fit; after `^` a list of what not to use (NCCL's
    user guide, environment variables).

    >>> nccl_misses("ib", {"eth0": True, "lo": True})
    'there is no interface that begins with ib'
    """
    avoid, listed = value.startswith("^"), value.removeprefix("^")
    exact, names = listed.startswith("="), listed.removeprefix("=").split(",")

    def named(interface: str) -> bool:
        return any(interface == name if exact else interface.startswith(name) for name in names)

    fitting = [interface for interface in up if named(interface) != avoid]
    kind = ("is not called" if exact else "does not begin with") if avoid else ("is called" if exact else "begins with")
    if not fitting:
        return f"there is no interface that {kind} {' or '.join(names)}"
    if not any(up[interface] for interface in fitting):
        return f"the interface {' or '.join(fitting)} is down"
    return ""
