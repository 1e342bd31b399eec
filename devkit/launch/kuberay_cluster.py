"""A cluster that the KubeRay operator makes, behind the Protocol of all launchers: up, nodes, exec, down."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from devkit.debug.cluster_records import AuthRecord, DebugCluster, DebugMode, NodeRecord
from devkit.errors import DeadlineError, DevkitError
from devkit.launch.base import Down, LaunchNode, Ran, Say
from devkit.launch.kubectl import CALL_S, Kubectl
from devkit.launch.kuberay import PORTS, TOKEN_KEY, KubeRayOptions, manifest, token_secret

POLL_S = 1.0
CLUSTER_LABEL, TYPE_LABEL = "ray.io/cluster", "ray.io/node-type"
# States of a container from which it does not recover by waiting.
HOPELESS = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError", "CrashLoopBackOff")
# In the head: what Ray itself says of its nodes. RAY_ADDRESS and the token are in the pod's environment.
NODES = """\
import json
from ray._raylet import GcsClient
found = GcsClient(address="127.0.0.1:6379").get_all_node_info(timeout=10)
print(json.dumps([
    {"node_id": key.hex(), "ip": node.node_manager_address, "alive": node.state == 0,
     "cpus": node.resources_total.get("CPU", 0.0), "gpus": node.resources_total.get("GPU", 0.0),
     "head": node.is_head_node}
    for key, node in found.items()
]))
"""


class KubeRayLauncher:
    """The operator makes pods of a RayCluster; each is one node."""

    name = "kuberay"

    def __init__(self, options: KubeRayOptions, context: str = "") -> None:
        self._options = replace(options, command=())
        self._kubectl = Kubectl(options.namespace, context)
        self._pods: tuple[dict[str, Any], ...] = ()

    def up(self, say: Say, timeout: float) -> DebugCluster:
        """Raises DeadlineError with each pod that is missing and why; DevkitError at once where waiting is no use."""
        deadline = time.monotonic() + timeout
        known = self._kubectl.get("raycluster", self._options.name) is not None
        ensure_token(self._kubectl, self._options, say)
        try:
            self._kubectl.apply(manifest(self._options))
            say(f"applied RayCluster {self._options.name}")
            self._await_pods(say, timeout, deadline)
            return self._record(self._await_nodes(timeout, deadline))
        except BaseException:
            if not known:  # one that was there before stays
                self.down(CALL_S)
            raise

    def nodes(self) -> tuple[LaunchNode, ...]:
        return tuple(
            LaunchNode(
                pod["metadata"]["name"],
                "head" if pod["metadata"]["labels"].get(TYPE_LABEL) == "head" else "worker",
                pod["status"].get("podIP", ""),
            )
            for pod in self._pods
        )

    def exec(self, node: LaunchNode, command: Sequence[str], *, stdin: str = "", timeout: float) -> Ran:
        return self._kubectl.exec(node.name, command, stdin=stdin, timeout=timeout)

    def down(self, timeout: float) -> tuple[Down, ...]:
        """Deletes the RayCluster, with which the operator deletes its pods. The Secret stays."""
        self._kubectl.delete("raycluster", self._options.name, timeout)
        return tuple(Down(node.name, 1) for node in self.nodes())

    def _await_pods(self, say: Say, timeout: float, deadline: float) -> None:
        wanted, told = self._options.nodes, ""
        while True:
            self._pods = pods_of(self._kubectl, self._options.name)
            missing = tuple(why_missing(self._pods, wanted))
            if not missing:
                return
            if hopeless := [why for why in missing if any(sign in why for sign in HOPELESS)]:
                raise DevkitError(f"a pod cannot start: {hopeless[0]}", hint=self._hint())
            if (state := f"waiting for {'; '.join(missing)}") != told:
                say(told := state)
            if time.monotonic() > deadline:
                raise DeadlineError(
                    f"after {timeout:g} s {len(missing)} of {wanted} nodes are missing: {'; '.join(missing)}",
                    hint=self._hint(),
                )
            time.sleep(POLL_S)

    def _await_nodes(self, timeout: float, deadline: float) -> tuple[NodeRecord, ...]:
        """A pod that runs is not yet a node of Ray."""
        head = self.nodes()[0]
        while True:
            ran = self.exec(head, ["python3", "-c", NODES], timeout=CALL_S)
            found = _nodes(ran)
            if sum(node.alive for node in found) >= self._options.nodes:
                return found
            if time.monotonic() > deadline:
                there = {node.ip for node in found if node.alive}
                missing = ", ".join(node.name for node in self.nodes() if node.ip not in there)
                said = f"; the head's last output: {ran.last_words}" if not found else ""
                raise DeadlineError(f"after {timeout:g} s Ray has no node of: {missing}{said}", hint=self._hint())
            time.sleep(POLL_S)

    def _record(self, nodes: tuple[NodeRecord, ...]) -> DebugCluster:
        head = self.nodes()[0]
        return DebugCluster(
            gcs_address=f"{head.ip}:{PORTS['gcs-server']}",
            dashboard_url=f"http://{head.ip}:{PORTS['dashboard']}",
            nodes=tuple(sorted(nodes, key=lambda node: (not node.head, node.node_id))),
            debug=DebugMode("distributed", post_mortem=True),
            join_command=f"kubectl scale: change workerGroupSpecs of raycluster {self._options.name}",
            name=self._options.name,
            auth=AuthRecord("token", f"secret/{self._options.token_secret}"),
            logs=f"kubectl logs {head.name}",
        )

    def _hint(self) -> str:
        return f"kubectl describe pods -l {CLUSTER_LABEL}={self._options.name}"


def ensure_token(kubectl: Kubectl, options: KubeRayOptions, say: Say) -> None:
    """The Secret, made now if it is not there. A name that the user gave is one that is there."""
    found = kubectl.get("secret", options.token_secret)
    if found and TOKEN_KEY in (found.get("data") or {}):
        return
    if found or options.secret:
        problem = f"has no key {TOKEN_KEY}" if found else "is not there"
        raise DevkitError(
            f"the Secret {options.token_secret} {problem}", hint="leave out --token-secret, and devkit creates one"
        )
    kubectl.create(token_secret(options, secrets.token_hex(32)))
    say(f"created a token in the Secret {options.token_secret}")


def pods_of(kubectl: Kubectl, cluster: str) -> tuple[dict[str, Any], ...]:
    """Its pods, the head first; not those that are on their way out."""
    items = (kubectl.get("pods", f"--selector={CLUSTER_LABEL}={cluster}") or {}).get("items", [])
    alive = [pod for pod in items if "deletionTimestamp" not in pod["metadata"]]
    return tuple(sorted(alive, key=lambda pod: (pod["metadata"]["labels"].get(TYPE_LABEL) != "head", _name(pod))))


def why_missing(pods: Sequence[dict[str, Any]], wanted: int) -> Iterator[str]:
    """One phrase for each of the nodes that are not running yet."""
    for pod in pods:
        if not _is_ready(pod):
            yield f"{_name(pod)} ({_state(pod)})"
    for _ in range(wanted - len(pods)):
        yield "a pod that the operator has not created yet"


def _is_ready(pod: dict[str, Any]) -> bool:
    statuses = pod.get("status", {}).get("containerStatuses") or []
    return bool(statuses) and all(status.get("ready") for status in statuses)


def _state(pod: dict[str, Any]) -> str:
    """Why a pod is not ready, in Kubernetes' own words."""
    status = pod.get("status", {})
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        state = container.get("state") or {}
        for kind in ("waiting", "terminated"):
            if (found := state.get(kind)) and found.get("reason") not in (None, "PodInitializing", "Completed"):
                return f"{found['reason']}: {found['message']}" if found.get("message") else str(found["reason"])
    for condition in status.get("conditions") or ():
        if condition.get("status") == "False" and condition.get("message"):
            return str(condition["message"])
    return str(status.get("phase", "unknown"))


def _nodes(ran: Ran) -> tuple[NodeRecord, ...]:
    try:
        return tuple(NodeRecord(**node) for node in json.loads(ran.out.strip().splitlines()[-1]))
    except (ValueError, IndexError, TypeError):
        return ()


def _name(pod: dict[str, Any]) -> str:
    return str(pod["metadata"]["name"])
