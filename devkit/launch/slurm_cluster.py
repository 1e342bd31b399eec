"""A cluster that is one job of Slurm, behind the Protocol of all launchers: up, nodes, exec, down."""

from __future__ import annotations

import json
import shlex
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from devkit.debug.cluster_records import AuthRecord, DebugCluster, DebugMode, NodeRecord
from devkit.errors import DeadlineError, DevkitError
from devkit.launch import slurm_client
from devkit.launch.base import Down, LaunchNode, Ran, Say
from devkit.launch.slurm import SlurmOptions, script
from devkit.launch.slurm_client import SlurmJob

POLL_S = 1.0
# What is written on the node by the job's script; the token stays where it is.
WITH_CLUSTER = '. "$1/env" && shift && exec "$@"'


class SlurmLauncher:
    """Slurm gives the nodes; the job's script keeps the cluster on them until the job is cancelled."""

    name = "slurm"

    def __init__(self, options: SlurmOptions) -> None:
        self._options = replace(options, command=())
        self.job_id = ""
        self._folder = ""  # of the script's notes, on the head
        self._nodes: tuple[LaunchNode, ...] = ()

    def up(self, say: Say, timeout: float) -> DebugCluster:
        """Submits the job and waits until its cluster is up. Raises DeadlineError with what the job waits for."""
        deadline = time.monotonic() + timeout
        self.job_id = slurm_client.submit(script(self._options))
        say(f"submitted job {self.job_id}")
        try:
            job = self._wait(say, timeout, deadline)
            self._folder = job.note
            return self._record(slurm_client.hostnames(job.nodes))
        except BaseException:
            self.down(slurm_client.CALL_S)
            raise

    def nodes(self) -> tuple[LaunchNode, ...]:
        return self._nodes

    def exec(self, node: LaunchNode, command: Sequence[str], *, stdin: str = "", timeout: float) -> Ran:
        """A step beside the node's Ray. Without a container: in one, its own runtime is the way in."""
        words = [*slurm_client.beside(self.job_id, node.name), "bash", "-c", WITH_CLUSTER, "devkit", self._folder]
        try:
            done = subprocess.run(
                [*words, *command], input=stdin, capture_output=True, text=True, errors="replace", timeout=timeout
            )
        except subprocess.TimeoutExpired:
            raise DeadlineError(
                f"{shlex.join(command)} on {node.name} did not end within {timeout:g} s",
                hint=f"check with scontrol show job {self.job_id} whether the job still runs",
            ) from None
        return Ran(node.name, done.returncode, done.stdout, done.stderr)

    def down(self, timeout: float) -> tuple[Down, ...]:
        """Cancels the job; Slurm ends what runs in it."""
        if not self.job_id:
            return ()
        deadline = time.monotonic() + timeout
        problem = ""
        with suppress(slurm_client.RefusedError):  # it has ended by itself
            slurm_client.cancel(self.job_id)
            while not slurm_client.job(self.job_id).ended:
                if time.monotonic() > deadline:
                    problem = f"job {self.job_id} has not ended"
                    break
                time.sleep(POLL_S)
        return tuple(Down(node.name, 1, problem) for node in self._nodes)

    def how_to_look(self) -> str:
        head = self._nodes[0].name if self._nodes else ""
        return f"srun --jobid={self.job_id} --overlap -w {head} --pty bash, there: . {self._folder}/env; devkit ps"

    def _wait(self, say: Say, timeout: float, deadline: float) -> SlurmJob:
        told = ""
        while True:
            job = slurm_client.job(self.job_id)
            if job.ended:
                raise DevkitError(f"job {self.job_id}: {job.state}", hint=f"its log says why: {job.log}")
            if job.note:
                return job
            state = f"job {self.job_id}: {job.state}" + (f" ({job.reason})" if job.state == "PENDING" else "")
            if state != told:
                say(told := state)
            if time.monotonic() > deadline:
                raise DeadlineError(
                    f"no cluster after {timeout:g} s; {state}", hint=f"what had started was stopped; its log: {job.log}"
                )
            time.sleep(POLL_S)

    def _record(self, names: Sequence[str]) -> DebugCluster:
        head = LaunchNode(names[0], "head")
        ran = self.exec(head, ["cat", f"{self._folder}/cluster.json"], timeout=slurm_client.CALL_S)
        try:
            [found] = json.loads(ran.out)["clusters"]
        except (ValueError, KeyError):
            raise DevkitError(
                f"the head {head.name} gave no record: {ran.last_words}", hint=f"scancel {self.job_id}"
            ) from None
        nodes = tuple(NodeRecord(**node) for node in found.pop("nodes"))
        self._nodes = self._placed(names, nodes)
        return DebugCluster(
            **{**found, "removed": tuple(found["removed"]), "notes": tuple(found["notes"])}
            | {"nodes": nodes, "debug": DebugMode(**found["debug"]), "auth": AuthRecord(**found["auth"])}
        )

    def _placed(self, names: Sequence[str], nodes: Sequence[NodeRecord]) -> tuple[LaunchNode, ...]:
        """Slurm's names with Ray's addresses; each node has noted its own on the head."""
        script = 'for n in "$@"; do tr -d "\\n" < "$n.json"; echo; done'
        words = ["bash", "-c", f'cd "$0" && {script}', self._folder, *names]
        ran = self.exec(LaunchNode(names[0], "head"), words, timeout=slurm_client.CALL_S)
        placed: list[LaunchNode] = []
        for name, line in zip(names, ran.out.splitlines(), strict=False):
            own = json.loads(line)["nodes"][0] if line else {"ip": "", "node_id": ""}
            placed.append(LaunchNode(name, "worker" if placed else "head", own["ip"], own["node_id"]))
        return tuple(placed)
