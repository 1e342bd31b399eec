"""Virtual hosts on this machine: real namespaces, a real network between them, and real faults.

    with hosts.up(3) as lan:
        lan[0].run("hostname").stdout          # "h0\n"
        lan.partition(1, 2)                    # both still reach h0

A host has network, process, mount, hostname and IPC namespaces of its own: its own 127.0.0.1, ports, /tmp, /run,
/dev/shm, pids and root folder (this machine's files; what it writes is its own, except below `share`). So `ray stop`,
default ports and default folders there touch nothing here, nor another test's hosts: no name, address or file of a
host exists outside. A host ends with its process 1, and that ends with the test, however the test ends.

Linux, root, iproute2, util-linux and nftables are needed: `problem()` says what is missing, `install` brings it.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.pace import stretched

REPOSITORY = Path(__file__).parents[2]
INIT = Path(__file__).with_name("init.py")
SUBNET = "10.77.0"
DEADLINE = stretched(60.0)  # seconds for a command in a host, and for a host to come up
PROGRAMS = ("unshare", "nsenter", "setpriv", "pivot_root", "ip", "tc", "nft")
HOME = pwd.getpwuid(os.getuid()).pw_dir  # of the account, as ssh has it, wherever the variable points to
# What of this machine's user a host must not see: tokens, keys, and the clusters that devkit knows here.
HIDDEN = (".ray", ".ssh", ".cache/devkit")


def problem() -> str:
    """Why there can be no virtual hosts here; empty: there can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "virtual hosts need Linux and root"
    missing = [name for name in PROGRAMS if not shutil.which(name)]
    return f"virtual hosts need {', '.join(missing)}: tests/hosts/install" if missing else ""


@dataclass(frozen=True)
class Host:
    """One virtual host."""

    name: str
    ip: str
    pid: int  # of its process 1, as this machine counts

    def words(self, *command: str, env: Mapping[str, str] | None = None) -> list[str]:
        """The command that runs `command` there, with an environment of the host and not of the test.

        Killed, it takes that command with it; what the command has left in the background lives on.
        """
        enter = ["nsenter", f"--target={self.pid}", "--mount", "--net", "--uts", "--ipc", "--pid", "--"]
        variables = [f"{name}={value}" for name, value in {**environment(), **(env or {})}.items()]
        return [*enter, "setpriv", "--pdeathsig", "KILL", "env", "-i", *variables, *command]

    def run(
        self,
        *command: str,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
        check: bool = True,
        timeout: float = DEADLINE,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command there to its end. Raises AssertionError with what it said unless it succeeds or `check` is
        off, and subprocess.TimeoutExpired after `timeout` seconds."""
        done = subprocess.run(
            self.words(*command, env=env), input=stdin, text=True, capture_output=True, timeout=timeout
        )
        if check:
            assert done.returncode == 0, f"{self.name}: {command} gave {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    def popen(self, *command: str, env: Mapping[str, str] | None = None, **options: Any) -> subprocess.Popen[str]:
        """Starts a command there; `options` are those of subprocess.Popen."""
        return subprocess.Popen(self.words(*command, env=env), text=True, **options)

    def write(self, path: str, content: str, mode: str = "600") -> None:
        """A file there, with its folder."""
        script = 'mkdir -p -m 700 "$(dirname "$1")" && umask 077 && cat > "$1" && chmod "$2" "$1"'
        self.run("sh", "-c", script, "sh", path, mode, stdin=content)

    def processes(self) -> dict[int, str]:
        """The command lines of all that runs there, by pid, but for process 1, kernel threads and the look itself."""
        script = "for p in /proc/[0-9]*; do printf '%s\\t%s\\n' ${p#/proc/} \"$(tr '\\0' ' ' < $p/cmdline)\"; done"
        lines = (line.partition("\t") for line in self.run("sh", "-c", script, check=False).stdout.splitlines())
        found = {int(pid): words.strip() for pid, _, words in lines if words.strip()}
        return {pid: words for pid, words in found.items() if pid != 1 and script[:20] not in words}


@dataclass(frozen=True)
class Trouble:
    """What a host's network does to what arrives there."""

    loss: float = 0.0  # percent of the packets
    longest: int = 0  # bytes: longer packets are lost
    cut: frozenset[str] = frozenset()  # addresses from which nothing arrives

    def rules(self) -> str:
        """For `nft -f -`: all of it at once, in place of what was there."""
        drops = [f"ip saddr {address} drop" for address in sorted(self.cut)]
        if self.loss:
            drops.append(f"iifname eth0 numgen random mod 10000 <= {round(self.loss * 100) - 1} drop")
        if self.longest:
            drops.append(f"iifname eth0 meta length > {self.longest} drop")
        chain = "\n".join(["type filter hook input priority 0;", *drops])
        return f"table inet trouble\ndelete table inet trouble\ntable inet trouble {{ chain in {{ {chain}\n}}\n}}\n"


@dataclass
class Lan(Sequence[Host]):
    """Hosts on one switch. Indices are those of the hosts."""

    hosts: list[Host]
    switch: int  # the pid that holds the switch's network
    _inits: list[subprocess.Popen[bytes]] = field(repr=False)
    _troubles: dict[int, Trouble] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.hosts)

    def __getitem__(self, index: Any) -> Any:
        return self.hosts[index]

    def poweroff(self, host: int) -> None:
        """Every process there is gone at once, and nobody is told."""
        _end(self._inits[host])

    def link(self, host: int, *, up: bool) -> None:
        """Pulls the cable out of the host, or puts it in again."""
        _enter(self.switch, "ip", "link", "set", f"p{host}", "up" if up else "down")

    def partition(self, one: int, other: int) -> None:
        """What these two send to each other is lost in silence; both still reach the others."""
        self._cut(one, other, lost=True)

    def heal(self, one: int, other: int) -> None:
        """Ends `partition`."""
        self._cut(one, other, lost=False)

    def loss(self, host: int, percent: float) -> None:
        """So many of the packets to that host are lost; 0 ends it."""
        self._trouble(host, replace(self._troubles.get(host, Trouble()), loss=percent))

    def longest(self, host: int, size: int) -> None:
        """Packets to that host of more than so many bytes are lost in silence; 0 ends it."""
        self._trouble(host, replace(self._troubles.get(host, Trouble()), longest=size))

    def rate(self, host: int, megabits: float) -> None:
        """That host's link carries so many Mbit/s each way; 0 ends it."""
        for pid, device in ((self.switch, f"p{host}"), (self.hosts[host].pid, "eth0")):
            _enter(pid, "tc", "qdisc", "del", "dev", device, "root", check=False)
            if megabits:
                shape = ("tbf", "rate", f"{megabits}mbit", "burst", "64kb", "latency", "500ms")
                _enter(pid, "tc", "qdisc", "add", "dev", device, "root", *shape)

    def _cut(self, one: int, other: int, *, lost: bool) -> None:
        for here, there in ((one, other), (other, one)):
            before, address = self._troubles.get(here, Trouble()), {self.hosts[there].ip}
            self._trouble(here, replace(before, cut=before.cut | address if lost else before.cut - address))

    def _trouble(self, host: int, trouble: Trouble) -> None:
        self._troubles[host] = trouble
        if self._inits[host].poll() is not None:
            return  # it is off
        _enter(self.hosts[host].pid, "nft", "-f", "-", stdin=trouble.rules())


@contextmanager
def up(count: int, *, share: Sequence[Path | str] = (), prefix: str = "h") -> Iterator[Lan]:
    """So many hosts, h0 at 10.77.0.1 and so on; each knows the others by name. Half a second.

    They share the repository, the Python environment and `share`, as machines share a network file system.
    """
    shared = dict.fromkeys(os.path.realpath(path) for path in (REPOSITORY, sys.prefix, *share))
    names = [f"{prefix}{number}" for number in range(count)]
    addresses = [f"{SUBNET}.{number + 1}" for number in range(count)]
    known = "127.0.0.1 localhost\n" + "".join(f"{ip} {name}\n" for ip, name in zip(addresses, names, strict=True))
    with ExitStack() as stack:
        switch = stack.enter_context(_namespace("--net", program=["sh", "-c", "echo ready; cat"]))
        inits = [
            stack.enter_context(
                _namespace(
                    *("--net", "--uts", "--ipc", "--pid", "--mount", "--fork", "--kill-child"),
                    program=[sys.executable, "-I", "-S", str(INIT), json.dumps(_plan(name, known, tuple(shared)))],
                )
            )
            for name in names
        ]
        for process in (switch, *inits):
            _await_ready(process)
        found = [
            Host(name, ip, _children(process.pid)[0]) for name, ip, process in zip(names, addresses, inits, strict=True)
        ]
        _wire(switch.pid, found)
        yield Lan(found, switch.pid, inits)


def environment() -> dict[str, str]:
    """What a command in a host has: no virtual environment on PATH, as with non-interactive ssh."""
    return {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": HOME,
        "LANG": "C.UTF-8",
        "PYTHONPATH": str(REPOSITORY),
        "RAY_USAGE_STATS_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
    }


def _plan(name: str, known: str, share: tuple[str, ...]) -> dict[str, Any]:
    # No resolver answers: with one that is unreachable, each reverse look-up would cost ten seconds.
    resolver = "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n"
    files = {"/etc/hosts": known, "/etc/hostname": f"{name}\n", "/etc/resolv.conf": resolver}
    return {"name": name, "share": share, "files": files, "hide": [f"{HOME}/{path}" for path in HIDDEN]}


@contextmanager
def _namespace(*kinds: str, program: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process in new namespaces, which lives as long as the pipe to it."""
    process = subprocess.Popen(
        ["unshare", *kinds, "--", *program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is the test's; the end of the pipe then ends this one
    )
    with process:
        try:
            yield process
        finally:
            _end(process)


def _await_ready(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None and process.stderr is not None
    if process.stdout.readline() != b"ready\n":
        raise RuntimeError(f"a virtual host did not come up: {process.stderr.read().decode()}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Returns when every process of the host has gone: the kernel lets process 1 go as the last."""
    if process.poll() is None:
        for pid in _children(process.pid) or [process.pid]:
            os.kill(pid, signal.SIGKILL)
        process.wait(DEADLINE)


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _wire(switch: int, found: Sequence[Host]) -> None:
    """A bridge in the switch's namespace, and a cable from it to each host."""
    lines = ["link set lo up", "link add br0 type bridge", f"addr add {SUBNET}.254/24 dev br0", "link set br0 up"]
    for number, host in enumerate(found):
        lines += [f"link add p{number} type veth peer name eth0 netns {host.pid}", f"link set p{number} master br0 up"]
    _batch(switch, lines)
    for host in found:
        _batch(
            host.pid,
            [f"addr add {host.ip}/24 dev eth0", "link set eth0 up", f"route add default via {SUBNET}.254"],
        )


def _batch(pid: int, lines: list[str]) -> None:
    _enter(pid, "ip", "-batch", "-", stdin="\n".join(lines) + "\n")


def _enter(pid: int, *command: str, stdin: str = "", check: bool = True) -> None:
    """A command of this machine in the network of a process."""
    done = subprocess.run(
        ["nsenter", f"--target={pid}", "--net", "--", *command],
        input=stdin,
        text=True,
        capture_output=True,
        timeout=DEADLINE,
    )
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
