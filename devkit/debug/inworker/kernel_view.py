"""What the kernel says of a process and its threads: running or not, how much it has computed, what it waits in.

Asked of this process from inside, and of a neighbour that does not answer. Linux only; elsewhere nothing is known.
"""

from __future__ import annotations

import os
import platform
import struct
import sys
from contextlib import suppress
from typing import Any

from . import costs
from .threads import PREFIX

Document = dict[str, Any]

_CLOCK = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
# Calls of the system in which a thread waits, by their number; those with a `!` begin with a file descriptor.
_CALLS_X86 = {
    0: "read!", 1: "write!", 7: "poll", 17: "pread64!", 19: "readv!", 23: "select", 35: "nanosleep", 42: "connect!",
    43: "accept!", 44: "sendto!", 45: "recvfrom!", 46: "sendmsg!", 47: "recvmsg!", 61: "wait4", 72: "fcntl!",
    73: "flock!", 74: "fsync!", 202: "futex", 230: "clock_nanosleep", 232: "epoll_wait", 247: "waitid", 257: "openat",
    270: "pselect6", 271: "ppoll", 281: "epoll_pwait", 288: "accept4!",
}  # fmt: skip
_CALLS_ARM = {
    22: "epoll_pwait", 25: "fcntl!", 32: "flock!", 56: "openat", 63: "read!", 64: "write!", 65: "readv!",
    67: "pread64!", 72: "pselect6", 73: "ppoll", 82: "fsync!", 95: "waitid", 98: "futex", 101: "nanosleep",
    115: "clock_nanosleep", 202: "accept!", 203: "connect!", 206: "sendto!", 207: "recvfrom!", 211: "sendmsg!",
    212: "recvmsg!", 242: "accept4!", 260: "wait4",
}  # fmt: skip
_CALLS = _CALLS_ARM if platform.machine() in ("aarch64", "arm64") else _CALLS_X86
_LISTENS = "0A"  # the state of a socket that others connect to
_SENDING = ("01", "02")  # states of a connection: established, and on its way to that
_TRIES = 3  # a lossy line needs two now and then
_POLLS = ("poll", "ppoll")
_POLLED = 16  # descriptors of one `poll` that are told
_FAMILY = 4096  # processes that are looked at, to find the children of one


def process(pid: int) -> Document | None:
    """`state` as in `ps`, the seconds that it and its living children have computed, the bytes that it has read and
    written; None when there is no such process.

    Of this process without what it costs to be looked at. Of another one what its living threads have computed, but for
    those of its own agent: one that is late with its answer is at work on that, and the program need not be. The two
    are not to be compared.

    >>> process(os.getpid())["state"] in "RS", process(2**30)
    (True, None)
    """
    stat = _stat(f"/proc/{pid}/stat")
    if stat is None:
        return None
    return {
        "state": stat[0],
        "cpu": _seconds(stat) - costs.seconds() if pid == os.getpid() else _seconds_without_agent(pid),
        "children_cpu": sum(_family_seconds(pid)),
        "io": _moved(pid),
    }


def _seconds_without_agent(pid: int) -> float:
    stats = []
    with suppress(OSError):
        for tid in os.listdir(f"/proc/{pid}/task"):
            if not text(f"/proc/{pid}/task/{tid}/comm").startswith(PREFIX):
                stats.append(_stat(f"/proc/{pid}/task/{tid}/stat"))
    return sum(_seconds(each) for each in stats if each is not None)


def _moved(pid: int) -> int:
    """Bytes, without those that were read and written to look at it: the tables of a busy host have megabytes, and so
    may what py-spy tells of children.
    """
    ours = costs.moved() if pid == os.getpid() else costs.of_asked(pid)[1]
    return costs.bytes_in(f"/proc/{pid}/io") - ours


def thread(tid: int, pid: int | str = "self") -> Document:
    """`state`, `cpu`, `ran`, `turns`, and `wait`: the system call that it is in, and on what (`pipes`: by inodes). What
    is not known is left out.

    `cpu` is in seconds, those included in which it could have run and had no core; `ran` is without those. `turns` is
    how often it was given a core: a loop of short sleeps has many, one sleep none.
    """
    base = f"/proc/{pid}/task/{tid}"
    wait = _wait(text(f"{base}/syscall"), pid)
    stat = _stat(f"{base}/stat")  # behind the call: a thread that runs by now has left it
    if stat is None:
        return {}
    wanted = text(f"{base}/schedstat").split()
    cpu = (int(wanted[0]) + int(wanted[1])) / 1e9 if len(wanted) > 1 else _seconds(stat)
    found: Document = {"state": stat[0], "cpu": round(cpu, 4)}
    if len(wanted) > 2:
        found |= {"ran": round(int(wanted[0]) / 1e9, 6), "turns": int(wanted[2])}
    return {**found, "wait": wait} if wait and stat[0] != "R" else found


def _wait(words: str, pid: int | str) -> Document | None:
    """
    >>> _wait("running", "self"), _wait("202 0x7f 0x80 0x0", "self") if _CALLS is _CALLS_X86 else {"call": "futex"}
    (None, {'call': 'futex'})
    """
    parts = words.split()
    if not parts or not parts[0].lstrip("-").isdigit():
        return None
    name = _CALLS.get(int(parts[0]))
    if name is None:
        return None
    call, on_file = name.rstrip("!"), name.endswith("!")
    numbers = [int(parts[1], 16)] if on_file and len(parts) > 1 else []
    if call in _POLLS and len(parts) > 2 and pid == "self":
        numbers = _polled(int(parts[1], 16), int(parts[2], 16))
    names = [_name(number, pid) for number in numbers]
    told = ", ".join(dict.fromkeys(filter(None, (_target(name, pid) for name in names))))
    pipes = [name[6:-1] for name in names if name.startswith("pipe:[")]
    return {"call": call, **({"target": told} if told else {}), **({"pipes": pipes} if pipes else {})}


def _polled(address: int, count: int) -> list[int]:
    """The descriptors that a `poll` of this process waits for. Read as a file: the memory may be gone by now."""
    with suppress(OSError, struct.error, OverflowError), open("/proc/self/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        data = memory.read(8 * min(count, _POLLED))
        return [number for number, _, _ in struct.iter_unpack("ihh", data[: len(data) // 8 * 8])]
    return []


def _name(number: int, pid: int | str) -> str:
    with suppress(OSError):
        return os.readlink(f"/proc/{pid}/fd/{number}")
    return ""


def _target(name: str, pid: int | str) -> str:
    """What a file descriptor is, by the kernel's name for it: a path, a pipe, or the two ends of a connection."""
    if name.startswith("socket:["):
        return _connection(name[8:-1], pid) or "a socket"
    return "a pipe" if name.startswith("pipe:[") else name


def _connection(inode: str, pid: int | str) -> str:
    for table in ("tcp", "tcp6"):
        for line in text(f"/proc/{pid}/net/{table}").splitlines()[1:]:
            parts = line.split()
            if len(parts) > 9 and parts[9] == inode:
                local = address(parts[1])
                return f"TCP {local} (listening)" if parts[3] == _LISTENS else f"TCP {local} to {address(parts[2])}"
    return ""


def unanswered(net: str = "/proc/self/net") -> list[Document]:
    """Peers that do not acknowledge what this process sends them or that it wants to connect to them: `peer`, an
    address, and `tries`, how often that was sent again."""
    lost = [
        (parts[9], address(parts[2]).rpartition(":")[0], int(parts[6], 16))
        for table in ("tcp", "tcp6")
        for line in text(f"{net}/{table}").splitlines()[1:]
        if len(parts := line.split()) > 9 and parts[3] in _SENDING and int(parts[6], 16) >= _TRIES
    ]
    own = _own_sockets() if lost else set()
    tries: dict[str, int] = {}
    for inode, peer, count in lost:
        if inode in own:
            tries[peer] = max(count, tries.get(peer, 0))
    return [{"peer": peer, "tries": count} for peer, count in sorted(tries.items())]


def _own_sockets() -> set[str]:
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found.add(os.readlink(f"/proc/self/fd/{number}")[8:-1])
    return found


def address(text: str) -> str:
    """
    >>> address("0100007F:1F90")
    '127.0.0.1:8080'
    """
    import ipaddress

    host, _, port = text.partition(":")
    raw = b"".join(struct.pack("<I", int(host[at : at + 8], 16)) for at in range(0, len(host), 8))
    address = ipaddress.ip_address(raw)
    mapped = getattr(address, "ipv4_mapped", None)
    return f"{mapped or address}:{int(port, 16)}"


def _family_seconds(pid: int) -> list[float]:
    """What the living descendants of a process have computed: a compiler that it started works for it.

    Ray's daemons, which a driver starts where there is no cluster, and the workers below them don't. Nor does what was
    started to look at it; what has ended counts for nobody.
    """
    found: list[float] = []
    waiting = [pid]
    while waiting and len(found) < _FAMILY:
        parent = waiting.pop()
        with suppress(OSError):
            for tid in os.listdir(f"/proc/{parent}/task"):
                for child in text(f"/proc/{parent}/task/{tid}/children").split():
                    if is_rays(child) or costs.is_our_child(int(child)):
                        continue
                    waiting.append(int(child))
                    seconds = _seconds_of_child(int(child))
                    if seconds is not None:
                        found.append(seconds)
    return found


def _seconds_of_child(pid: int) -> float | None:
    """Of one with an agent, that of its living threads but the agent's: it answers for itself, and that costs it more
    than its rest. None: it is gone.
    """
    stat = _stat(f"/proc/{pid}/stat")
    with suppress(OSError):
        if any(text(f"/proc/{pid}/task/{tid}/comm").startswith(PREFIX) for tid in os.listdir(f"/proc/{pid}/task")):
            return _seconds_without_agent(pid)
    return None if stat is None else _seconds(stat) - costs.of_asked(pid)[0]


def is_rays(pid: str) -> bool:
    """Whether a program of Ray's package runs there: `.../ray/raylet/raylet`, `python -u .../ray/dashboard.py`."""
    rays = getattr(sys.modules.get("ray"), "__file__", None)
    words = text(f"/proc/{pid}/cmdline").split("\0")[:4]
    return rays is not None and any(word.startswith(os.path.dirname(rays) + os.sep) for word in words)


def _stat(path: str) -> list[str] | None:
    """The words behind the name, which may hold anything."""
    words = text(path).rpartition(")")[2].split()
    return words if len(words) > 13 else None


def _seconds(stat: list[str]) -> float:
    return (int(stat[11]) + int(stat[12])) / _CLOCK


def text(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except (OSError, ValueError):
        return ""
