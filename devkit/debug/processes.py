"""Processes of this machine: which one a pid means, what belongs to it, and how it is ended with all of that."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

POLL_S = 0.05
STANDS_S = 1.0  # until a process has stopped; one that waits for a disk does so later
KILL_S = 5.0  # until a process that was killed is gone; one that waits for a dead disk never is


@cache
def machine() -> str:
    """This machine since its last boot, and the pid namespace in it: elsewhere a pid means something else.

    A home folder may be shared by many machines, and by the containers of one.
    """
    boot = _text("/proc/sys/kernel/random/boot_id")
    with suppress(OSError):
        boot += "/" + os.readlink("/proc/self/ns/pid")
    return f"{socket.gethostname()}/{boot}"


def started(pid: int) -> str | None:
    """When a process started, in a form that tells it from a later one with the same pid. None: there is none.

    >>> started(os.getpid()) == started(os.getpid()) is not None, started(2**22 + 1)
    (True, None)
    """
    if os.path.exists("/proc/self/stat"):
        stat = _text(f"/proc/{pid}/stat")
        words = stat[stat.rfind(")") + 2 :].split()
        return None if len(words) < 20 or words[0] in "ZX" else words[19]
    psutil = load_psutil()
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else f"{process.create_time():.2f}"
    except psutil.Error:
        return None


def family(leaders: Iterable[int]) -> dict[int, str]:
    """The sessions that these processes lead and all that they started, with the start of each process.

    A process that has left the session and whose parent has died is not found: look while the leaders live.
    """
    sessions, parents = _sessions_and_parents()
    found = set(leaders)
    while True:
        more = {pid for pid in sessions if pid not in found and (sessions[pid] in found or parents.get(pid) in found)}
        if not more:
            break
        found |= more
    return {pid: start for pid in found if (start := started(pid))}


def end(leaders: Iterable[int], *, deadline: float) -> tuple[int, int]:
    """Ends `leaders` and their families: SIGTERM to the leaders, who end the rest in order, at the deadline SIGKILL.

    Not to the groups: a Ray whose parts are all asked at once waits for parts that are gone (10 s where it needs 3).
    Returns how many processes there were, and how many had to be killed. `deadline` is a time of time.monotonic().
    """
    leaders = tuple(leaders)
    for leader in leaders:
        _signal(leader, signal.SIGSTOP)  # one that starts children just now would leave those that were not seen
    _wait_until_stopped(leaders)
    members = family(leaders)
    for leader in leaders:
        _signal(leader, signal.SIGTERM)
        _signal(leader, signal.SIGCONT)
    while alive := living(members):
        if time.monotonic() > deadline:
            break
        time.sleep(POLL_S)  # they are not children of this process: nothing to wait for
        members |= family(alive)  # what was started meanwhile
    killed = {**living(members), **_left_in_sessions(leaders)}
    for pid in killed:
        _signal(pid, signal.SIGKILL)
    until = time.monotonic() + KILL_S
    while living(killed) and time.monotonic() < until:
        time.sleep(POLL_S)
    return len(members | killed), len(killed)


def _wait_until_stopped(pids: Collection[int]) -> None:
    """SIGSTOP takes a moment, in which one that is just starting a child gets it started."""
    psutil = load_psutil()
    stands = {psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP, psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}

    def still_runs(pid: int) -> bool:
        try:
            return psutil.Process(pid).status() not in stands
        except psutil.Error:
            return False

    until = time.monotonic() + STANDS_S
    while any(map(still_runs, pids)) and time.monotonic() < until:
        time.sleep(POLL_S / 10)


def living(members: dict[int, str]) -> dict[int, str]:
    """Those that still are the processes that they were."""
    return {pid: start for pid, start in members.items() if started(pid) == start}


def gcs_addresses(below: str = "", owners: Collection[int] | None = None) -> frozenset[str]:
    """GCS addresses of the Ray nodes that run on this machine, of these users; None: whoever started them.

    `below` leaves out those whose session does not lie in that folder.
    """
    found = set()
    for uid, values in _raylets():
        if owners is not None and uid not in owners:
            continue
        if not below or Path(values.get("--session_dir", "/")).is_relative_to(below):
            found.add(values.get("--gcs-address", ""))
    return frozenset(found - {""})


def raylets_errors(node_id: str) -> Path | None:
    """The file to which the raylet of a node writes its errors, if it runs on this machine."""
    mine = (values for _, values in _raylets() if values.get("--node_id") == node_id)
    path = next((values.get("--stderr_filepath") for values in mine), None)
    return Path(path) if path else None


def _raylets() -> Iterator[tuple[int | None, dict[str, str]]]:
    """Of each that runs on this machine: whose it is, and its options."""
    for process in load_psutil().process_iter(["name", "cmdline", "uids"]):
        if process.info["name"] == "raylet":
            # A process may have put its whole command line into one word.
            words = " ".join(process.info["cmdline"] or ()).split()
            uids = process.info["uids"]
            yield uids.real if uids else None, dict(word.partition("=")[::2] for word in words)


@cache
def load_psutil() -> Any:
    """psutil, else the one that Ray brings, which `import ray` would put on the path in half a second."""
    from importlib.util import find_spec

    if not find_spec("psutil") and (ray := find_spec("ray")):
        for folder in ray.submodule_search_locations or ():
            sys.path.append(str(Path(folder) / "thirdparty_files"))
    import psutil

    return psutil


def _sessions_and_parents() -> tuple[dict[int, int], dict[int, int]]:
    psutil = load_psutil()
    sessions, parents = {}, {}
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            parents[process.pid] = process.ppid()
            sessions[process.pid] = os.getsid(process.pid)
    return sessions, parents


def _left_in_sessions(leaders: tuple[int, ...]) -> dict[int, str]:
    """What still is in a session whose leader has ended; no new process can take that number meanwhile."""
    sessions, _ = _sessions_and_parents()
    return {pid: start for pid, session in sessions.items() if session in leaders and (start := started(pid))}


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _text(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
