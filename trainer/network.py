"""Network interfaces that the environment names, against those that this node has."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence

from trainer.errors import ConfigError

VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


def require_interfaces(node: str, environment: Mapping[str, str] | None = None) -> None:
    """Raises ConfigError if NCCL or gloo is told to use an interface that `node`, this one, does not have."""
    present = [name for _, name in socket.if_nameindex()]
    for variable in VARIABLES:
        value = (os.environ if environment is None else environment).get(variable, "")
        if value and not chosen(value, present, exact=variable.startswith("GLOO")):
            raise ConfigError(
                f"{variable}={value} names no network interface of {node}: it has {', '.join(present)}",
                hint=f"set {variable} to one of them, on every node, or leave it out",
            )


def chosen(value: str, present: Sequence[str], *, exact: bool = False) -> list[str]:
    """The interfaces of `present` that a value means, in NCCL's rules: prefixes, `=` whole names, `^` all but.

    >>> chosen("eth,ib0", ["lo", "eth0", "eth1"])
    ['eth0', 'eth1']
    >>> chosen("^=eth0", ["lo", "eth0"])
    ['lo']
    """
    excluded = value.startswith("^") and not exact
    names = value.removeprefix("^") if excluded else value
    whole = exact or names.startswith("=")
    words = [word for word in names.removeprefix("=").split(",") if word]
    fits = [name for name in present if (name in words if whole else name.startswith(tuple(words)))]
    return [name for name in present if name not in fits] if excluded else fits
