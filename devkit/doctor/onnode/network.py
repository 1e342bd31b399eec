"""Interfaces, names, look-ups and ports of this node."""

from __future__ import annotations

import errno
import os
import socket
import struct
import threading
import time
from contextlib import suppress
from pathlib import Path

from .devices import command_of
from .facts import Interface, Lookup, Port
from .machine import read_text

_FLAG_UP, _FLAG_LOOPBACK = 0x1, 0x8
_SIOCGIFADDR = 0x8915
CONNECT_S = 2.5  # seconds until an address counts as out of reach

_MAPPED = "0000000000000000FFFF0000"  # in front of an IPv4 address that is written as an IPv6 one


def interfaces() -> tuple[Interface, ...]:
    """Those of this network namespace."""
    sixes = _ipv6()
    return tuple(_interface(name, sixes.get(name, ())) for _, name in socket.if_nameindex())


def _interface(name: str, sixes: tuple[str, ...]) -> Interface:
    flags = int(read_text(f"/sys/class/net/{name}/flags") or "0", 16)
    carrier = read_text(f"/sys/class/net/{name}/carrier")  # unreadable while it is down
    four = _ipv4(name)
    up = bool(flags & _FLAG_UP) and carrier != "0"
    return Interface(name, up, bool(flags & _FLAG_LOOPBACK), (*((four,) if four else ()), *sixes))


def _ipv4(name: str) -> str:
    import fcntl

    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        return socket.inet_ntoa(answer[20:24])
    return ""


def _ipv6() -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for row in (line.split() for line in read_text("/proc/net/if_inet6").splitlines()):
        if len(row) == 6:
            address = socket.inet_ntop(socket.AF_INET6, bytes.fromhex(row[0]))
            found[row[5]] = (*found.get(row[5], ()), address)
    return found


def own_addresses(hostname: str) -> tuple[str, ...]:
    """What the own name resolves to: gloo binds to the first of them."""
    with suppress(OSError):
        found = socket.getaddrinfo(hostname, None, type=socket.SOCK_STREAM)
        return tuple(dict.fromkeys(str(address[0]) for *_, address in found))
    return ()


def look_up(addresses: tuple[str, ...], deadline: float) -> tuple[Lookup, ...]:
    """Reverse look-ups of all of them at once, as torch's store makes them: of an IPv4 address in IPv6's clothes.

    /etc/hosts does not match that form, so each goes to the DNS server. `deadline` is of time.monotonic(): a look-up
    cannot be interrupted, and one that is still under way then is told as such.
    """
    begun = time.monotonic()
    done: dict[str, tuple[float, str]] = {}

    def ask(address: str) -> None:
        mapped = address if ":" in address else f"::ffff:{address}"
        name = ""
        with suppress(OSError):
            name = socket.getnameinfo((mapped, 0, 0, 0), 0)[0]
        done[address] = (time.monotonic() - begun, "" if name == mapped else name)

    threads = [threading.Thread(target=ask, args=(address,), daemon=True) for address in addresses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    late = time.monotonic() - begun
    results = dict(done)
    return tuple(
        Lookup(address, round(results[address][0], 3), results[address][1])
        if address in results
        else Lookup(address, round(late, 3), "", finished=False)
        for address in addresses
    )


def reach(host: str, port: int, timeout: float = CONNECT_S) -> str:
    """Empty if something listens there; else why it can't be reached."""
    try:
        socket.create_connection((host, port), timeout).close()
    except OSError as error:
        return reason(error, timeout)
    return ""


def reason(error: OSError, timeout: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout:g} s"
    if isinstance(error, socket.gaierror):
        return "the name is unknown"
    return (error.strerror or str(error) or type(error).__name__).lower()


def unacknowledged(host: str, folder: str = "/proc/net") -> int:
    """How often something that this machine sends to that IPv4 address over an open connection was sent again and
    not acknowledged until now; the most of all connections, of whichever process."""
    try:
        peer = socket.inet_aton(host)[::-1].hex().upper()
    except OSError:
        return 0
    same = (peer, f"{_MAPPED}{peer}")  # gRPC has sockets for both kinds of addresses
    lines = (line for table in ("tcp", "tcp6") for line in read_text(f"{folder}/{table}").splitlines()[1:])
    rows = (line.split() for line in lines)
    open_to_it = (row for row in rows if len(row) > 6 and row[3] == "01" and row[2].partition(":")[0] in same)
    return max((int(row[6], 16) for row in open_to_it), default=0)


def taken(wanted: dict[int, str]) -> tuple[Port, ...]:
    """Those of these ports that cannot be listened on, and who does."""
    return tuple(Port(port, role, holder(port)) for port, role in wanted.items() if _is_taken(port))


def _is_taken(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
            probe.listen(1)
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def holder(port: int) -> str:
    """The process that listens on a port, as far as it may be seen."""
    sockets = {f"socket:[{inode}]" for inode in _listening(port)}
    for folder in Path("/proc").glob("[0-9]*/fd") if sockets else ():
        with suppress(OSError):
            for entry in folder.iterdir():
                with suppress(OSError):
                    if os.readlink(entry) in sockets:
                        pid = int(folder.parent.name)
                        return f"pid {pid}: {command_of(pid)}"
    return ""


def _listening(port: int) -> set[str]:
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for row in (line.split() for line in read_text(table).splitlines()[1:]):
            if len(row) > 9 and row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port:
                found.add(row[9])
    return found
