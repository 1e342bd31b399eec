"""A real Slurm on virtual hosts: slurmctld on the first, slurmd on each, munge between them.

    with hosts.up(3) as lan, slurm.up(lan):
        lan[0].run("srun", "-N3", "hostname")

Each host claims more than this machine has: 32 CPUs, and 8 GPUs that are device files and nothing more.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from tests.hosts import packages
from tests.hosts.hosts import DEADLINE, Host, Lan

CPUS, GPUS = 32, 8  # of each host
PACKAGES = {"slurmctld": "slurmctld", "slurmd": "slurmd", "sbatch": "slurm-client", "munged": "munge"}
FOLDERS = ("/run/munge", "/var/lib/slurm/slurmctld", "/var/lib/slurm/slurmd", "/var/lib/fakegpu", "/etc/slurm")
CONF = """\
ClusterName=devkit
SlurmctldHost={head}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
MpiDefault=none
ReturnToService=2
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
SlurmctldLogFile=/var/log/slurmctld.log
SlurmdLogFile=/var/log/slurmd.log
SlurmdParameters=config_overrides
SlurmdTimeout=15
InactiveLimit=0
KillWait=5
GresTypes=gpu
{nodes}
PartitionName=debug Nodes={names} Default=YES MaxTime=INFINITE State=UP
"""
NODE = "NodeName={name} NodeAddr={ip} CPUs={cpus} RealMemory=256000 Gres=gpu:{gpus} State=UNKNOWN"
# A host has no cgroup file system; slurmd looks for one all the same unless it is told which version it would be.
CGROUP_CONF = "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n"
GRES_CONF = f"Name=gpu File=/var/lib/fakegpu/gpu[0-{GPUS - 1}]\n"
DAEMONS = f"""
set -e
mkdir -p {" ".join(FOLDERS)}
chown munge:munge /run/munge
for number in $(seq 0 {GPUS - 1}); do mknod /var/lib/fakegpu/gpu$number c 1 3; done
setpriv --reuid munge --regid munge --clear-groups munged
[ "$(hostname)" != "$1" ] || slurmctld
slurmd -N "$(hostname)"
"""


def problem() -> str:
    """Why there can be no Slurm here; empty: there can."""
    return packages.problem("Slurm", PACKAGES)


@contextmanager
def up(lan: Lan) -> Iterator[None]:
    """Slurm, until its hosts end."""
    nodes = "\n".join(NODE.format(name=host.name, ip=host.ip, cpus=CPUS, gpus=GPUS) for host in lan)
    conf = CONF.format(head=lan[0].name, nodes=nodes, names=",".join(host.name for host in lan))

    def begin(host: Host) -> None:
        for name, content in (("slurm", conf), ("cgroup", CGROUP_CONF), ("gres", GRES_CONF)):
            host.write(f"/etc/slurm/{name}.conf", content, "644")
        host.run("bash", "-c", DAEMONS, "bash", lan[0].name)

    with ThreadPoolExecutor(len(lan)) as pool:
        list(pool.map(begin, lan))
    _await_idle(lan)
    yield


def _await_idle(lan: Lan) -> None:
    end = time.monotonic() + DEADLINE
    while (said := lan[0].run("sinfo", "-h", "-t", "idle", "-o", "%D", check=False)).stdout.strip() != str(len(lan)):
        assert time.monotonic() < end, f"not all nodes are idle: {said}\n{lan[0].run('sinfo', '-N', '-l').stdout}"
        time.sleep(0.1)
