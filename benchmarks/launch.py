"""A 3-node cluster up through ssh: `devkit debug-cluster --hosts` beside plain `ray start` over ssh, on the same hosts.

    python benchmarks/launch.py [--runs 3]

The hosts are virtual ones on this machine (namespaces, real sshd, a real network), so it needs root. The plain way is
the quickest that the guides allow: the head first, then both workers at once, done when the last `ray start` has
returned; nothing is compared beforehand and nobody counts the nodes. Turn and turn about; medians; ratios matter more
than seconds on a shared machine.
"""

from __future__ import annotations

import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.on_hosts import asked
from tests.hosts import hosts, ssh
from tests.hosts.hosts import Host, Lan

REACH = 1.2
DEADLINE = 300.0
CPUS = "--num-cpus=2"


def ours(laptop: Host) -> None:
    words = ("debug-cluster", "--hosts", "h0,h1,h2", CPUS, "--timeout", f"{DEADLINE:g}", "--json")
    laptop.run(sys.executable, "-m", "devkit", *words, timeout=DEADLINE)


def plain(laptop: Host) -> None:
    run(laptop, "h0", "--head", "--dashboard-host=0.0.0.0", "--port=6379").check_returncode()
    workers = [
        laptop.popen(*over_ssh(name, "--address=10.77.0.1:6379"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for name in ("h1", "h2")
    ]
    for worker in workers:
        assert worker.wait(DEADLINE) == 0


def run(laptop: Host, name: str, *words: str) -> subprocess.CompletedProcess[str]:
    return laptop.run(*over_ssh(name, *words), timeout=DEADLINE)


def over_ssh(name: str, *words: str) -> tuple[str, ...]:
    folder = Path(sys.executable).parent
    start = ["ray", "start", *words, CPUS, "--disable-usage-stats", "--log-color=false"]
    shell = "unset SSH_CLIENT SSH_CONNECTION SSH_TTY; export RAY_AUTH_MODE=disabled; "
    return ("ssh", "-o", "BatchMode=yes", name, f"{shell}PATH={folder}:$PATH {shlex.join(start)}")


def end_ours(lan: Lan) -> None:
    lan[3].run(sys.executable, "-m", "devkit", "debug-cluster", "stop", timeout=DEADLINE)


def end_plain(lan: Lan) -> None:
    """A host has pids of its own: this `ray stop` ends nothing elsewhere."""
    for host in lan.hosts[:3]:
        host.run(str(Path(sys.executable).with_name("ray")), "stop", "--force", timeout=DEADLINE)


def seconds_of(work: Callable[[Host], None], laptop: Host) -> float:
    began = time.perf_counter()
    work(laptop)
    return time.perf_counter() - began


def main(argv: Sequence[str] | None = None) -> int:
    runs = asked(__doc__, argv)
    if runs is None:
        return 0
    taken: dict[str, list[float]] = {"devkit": [], "plain": []}
    with hosts.up(4) as lan, ssh.sshd(lan, on=range(3)):
        for number in range(runs):
            turns = [("plain", plain, end_plain), ("devkit", ours, end_ours)]
            for name, work, end in turns if number % 2 == 0 else reversed(turns):
                taken[name].append(seconds_of(work, lan[3]))
                end(lan)
                print(f"run {number + 1}  {name:<6} {taken[name][-1]:6.1f} s", flush=True)
    medians = {name: statistics.median(seconds) for name, seconds in taken.items()}
    ratio = medians["devkit"] / medians["plain"]
    print(f"devkit debug-cluster --hosts  {medians['devkit']:6.1f} s")
    print(f"plain ray start over ssh      {medians['plain']:6.1f} s")
    print(f"ratio                         {ratio:6.2f}  (reach: under {REACH})")
    return 0 if ratio < REACH else 1


if __name__ == "__main__":
    sys.exit(main())
