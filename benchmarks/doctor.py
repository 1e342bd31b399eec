"""`devkit doctor` on four hosts, beside what Ray alone takes to have torch imported on each of them.

    python benchmarks/doctor.py [--runs 3]

The hosts are virtual ones on this machine (namespaces, a real network, one Ray cluster), so it needs root. They share
this machine's cores, which four real hosts would not. Turn and turn about; medians.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.on_hosts import asked
from tests.hosts import hosts
from tests.hosts.hosts import Host, Lan

REACH = 10.0  # seconds
NODES = 4
DEADLINE = 120.0
PORT = 6379
AUTH = {"RAY_AUTH_MODE": "disabled", "RAY_raylet_start_wait_time_s": "100"}
PLAIN = """
import ray, sys
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On
ray.init(address=sys.argv[1], logging_level="error")
@ray.remote(num_cpus=0)
def look():
    import torch
    return torch.__version__
nodes = [node["NodeID"] for node in ray.nodes()]
assert len(ray.get([look.options(scheduling_strategy=On(node, soft=False)).remote() for node in nodes])) == 4
"""


def start(lan: Lan) -> None:
    ray = (sys.executable, "-m", "ray.scripts.scripts", "start", "--disable-usage-stats", "--num-cpus=4")
    lan[0].run(*ray, "--head", f"--port={PORT}", f"--node-ip-address={lan[0].ip}", env=AUTH, timeout=DEADLINE)

    def join(host: Host) -> None:
        address = (f"--address={lan[0].ip}:{PORT}", f"--node-ip-address={host.ip}")
        host.run(*ray, *address, env=AUTH, timeout=DEADLINE)

    with ThreadPoolExecutor() as pool:
        list(pool.map(join, lan.hosts[1:]))


def seconds_of(host: Host, *command: str) -> float:
    began = time.perf_counter()
    host.run(sys.executable, *command, env=AUTH, timeout=DEADLINE)
    return time.perf_counter() - began


def main(argv: Sequence[str] | None = None) -> int:
    runs = asked(__doc__, argv)
    if runs is None:
        return 0
    taken: dict[str, list[float]] = {"doctor": [], "plain": []}
    with hosts.up(NODES) as lan:
        start(lan)
        address = f"{lan[0].ip}:{PORT}"
        commands = {
            "doctor": ("-m", "devkit", "doctor", "--address", address, "--json"),
            "plain": ("-c", PLAIN, address),
        }
        seconds_of(lan[0], *commands["plain"])  # reads torch from the disk
        for number in range(runs):
            for name, command in commands.items():
                taken[name].append(seconds_of(lan[0], *command))
                print(f"run {number + 1}  {name:<6} {taken[name][-1]:6.1f} s", flush=True)
    doctor, plain = (statistics.median(taken[name]) for name in ("doctor", "plain"))
    print(f"devkit doctor on {NODES} hosts         {doctor:6.1f} s  (reach: under {REACH:g} s)")
    print(f"Ray and torch on each of them   {plain:6.1f} s")
    return 0 if doctor < REACH else 1


if __name__ == "__main__":
    sys.exit(main())
