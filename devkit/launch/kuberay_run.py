"""`devkit launch kuberay` at work: prints the manifest, or applies it and waits for the cluster, or for the job."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

from devkit import console
from devkit.errors import DeadlineError, FailedError
from devkit.launch.files import as_yaml, say, write
from devkit.launch.kubectl import Kubectl
from devkit.launch.kuberay import TOKEN_KEY, KubeRayOptions, manifest
from devkit.launch.kuberay_cluster import KubeRayLauncher, ensure_token, pods_of, why_missing

POLL_S = 1.0
ENDED = ("Complete", "Failed")  # of jobDeploymentStatus


@dataclass(frozen=True)
class KubeRayAction:
    """What is to be done with the manifest."""

    output: str = ""  # FILE, or - for stdout
    apply: bool = False
    follow: bool = True
    context: str = ""
    timeout: float = 600.0  # seconds until the nodes have to be up
    json: bool = False


@dataclass(frozen=True)
class JobRecord:
    """A RayJob as it is now."""

    name: str
    deployment: str  # the operator's state of it
    status: str  # Ray's state of it; empty before Ray has it
    submission_id: str
    message: str

    @classmethod
    def of(cls, found: dict[str, Any] | None, name: str) -> JobRecord:
        status = (found or {}).get("status") or {}
        return cls(
            name,
            status.get("jobDeploymentStatus", ""),
            status.get("jobStatus", ""),
            status.get("jobId", ""),
            " ".join(status.get("message", "").split()),
        )


def main(options: KubeRayOptions, action: KubeRayAction) -> int:
    """0: written, up, or the job has succeeded; 1: it has failed. Raises DeadlineError for what is missing."""
    document = manifest(options)
    if action.json and not action.apply and not action.output:
        console.emit(document)
    elif action.output or not action.apply:
        write(as_yaml(document), action.output or "-")
    if not action.apply:
        return 0
    return _job(options, document, action) if options.command else _cluster(options, action)


def _cluster(options: KubeRayOptions, action: KubeRayAction) -> int:
    launcher = KubeRayLauncher(options, action.context)
    record = launcher.up(say, action.timeout)
    if action.json:
        console.emit(record.to_json())
        return 0
    out = console.result()
    for node in launcher.nodes():
        out.print(f"{node.role:10} {node.name} {node.ip}", soft_wrap=True)
    for line in how_to_use(options):
        out.print(line, soft_wrap=True)
    return 0


def how_to_use(options: KubeRayOptions) -> tuple[str, ...]:
    """What to type from here on."""
    at = f" -n {options.namespace}" if options.namespace else ""
    token = f"kubectl get secret{at} {options.token_secret} -o 'jsonpath={{.data.{TOKEN_KEY}}}'"
    return (
        "",
        f"kubectl port-forward{at} svc/{options.name}-head-svc 8265 &",
        f"export RAY_AUTH_MODE=token RAY_AUTH_TOKEN=$({token} | base64 -d)",
        "export RAY_ADDRESS=http://127.0.0.1:8265",
        "devkit submit -- python3 train.py",
        "",
        f"Stop it:  kubectl delete{at} raycluster {options.name}",
    )


def _job(options: KubeRayOptions, document: dict[str, Any], action: KubeRayAction) -> int:
    kubectl = Kubectl(options.namespace, action.context)
    ensure_token(kubectl, options, say)
    kubectl.create(document)  # applied again, one that has ended would stay as it is
    say(f"created RayJob {options.name}")
    record = _follow(kubectl, options, action) if action.follow else JobRecord(options.name, "", "", "", "")
    if record.deployment == "Failed" or record.status in ("FAILED", "STOPPED"):
        said = f": {record.message}" if record.message else ""
        raise FailedError(
            f"job {options.name}: {record.status or record.deployment}{said}",
            hint=f"kubectl describe rayjob {options.name}",
            facts=asdict(record),
        )
    if action.json:
        console.emit(asdict(record))
    return 0


def _follow(kubectl: Kubectl, options: KubeRayOptions, action: KubeRayAction) -> JobRecord:
    """The job, once it has ended. The deadline is for its nodes: the job itself may take days."""
    deadline, told = time.monotonic() + action.timeout, ""
    while True:
        found = kubectl.get("rayjob", options.name)
        record = JobRecord.of(found, options.name)
        if record.deployment in ENDED:
            return record
        state = f"job {options.name}: {record.status or record.deployment or 'not picked up by the operator'}"
        if state != told:
            say(told := state)
        if not record.status and time.monotonic() > deadline:
            cluster = ((found or {}).get("status") or {}).get("rayClusterName", "")
            missing = "; ".join(why_missing(pods_of(kubectl, cluster) if cluster else (), options.nodes))
            raise DeadlineError(
                f"after {action.timeout:g} s the job has not started; missing: {missing or 'Ray itself'}",
                hint=f"kubectl describe rayjob {options.name}; end it with kubectl delete rayjob {options.name}",
            )
        time.sleep(POLL_S)
