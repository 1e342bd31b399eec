"""`devkit launch kuberay`: a RayCluster, or a RayJob, as Kubernetes objects. Pure: `kubernetes.py` applies them.

The token is a Secret that the objects name and never hold. It is named twice, for two readers: in `authOptions` for the
operator, whose own calls then carry it, and in the containers' environment, which an operator that is too old for
`authOptions` (KubeRay before 1.5.1) passes on all the same: that field it would drop without a word, and the cluster
would be open.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from devkit.debug.launch import POST_MORTEM
from devkit.errors import UsageError

API_VERSION = "ray.io/v1"
TOKEN_KEY = "auth_token"  # the key in the Secret that KubeRay reads
HEAD_GROUP, WORKER_GROUP = "headgroup", "workers"
PORTS = {"gcs-server": 6379, "dashboard": 8265, "client": 10001}
LEAST_RAY = (2, 52)  # the first with tokens; the operator refuses `mode: token` for an older one
Object = dict[str, Any]
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|[kMGTPE]i?)?")


@dataclass(frozen=True)
class KubeRayOptions:
    """What is to be made of it."""

    image: str
    command: tuple[str, ...] = ()  # a RayJob; empty: a RayCluster
    name: str = "devkit"
    namespace: str = ""  # empty: kubectl's current one
    nodes: int = 2  # with the head
    gpus: int = 0  # of each node
    cpus: str = "4"  # of each node
    memory: str = "16Gi"  # of each node
    shared_memory: str = "8Gi"  # /dev/shm of each node; a part of its memory
    rocm: bool = False
    ray_version: str = ""  # of the image
    secret: str = ""  # with the token; empty: NAME-token
    variables: tuple[str, ...] = ()  # NAME=VALUE
    claims: tuple[str, ...] = ()  # CLAIM:PATH, of PersistentVolumeClaims
    specs: tuple[str, ...] = ()  # breakpoints; the image has devkit then
    post_mortem: str = "snapshot"

    @property
    def token_secret(self) -> str:
        return self.secret or f"{self.name}-token"

    @property
    def gpu_resource(self) -> str:
        return "amd.com/gpu" if self.rocm else "nvidia.com/gpu"


def manifest(options: KubeRayOptions) -> Object:
    """The one object. Raises UsageError for options that cannot be right."""
    check(options)
    metadata: Object = {"name": options.name, "labels": {"app.kubernetes.io/created-by": "devkit"}}
    if options.namespace:
        metadata["namespace"] = options.namespace
    kind, spec = ("RayJob", _job(options)) if options.command else ("RayCluster", _cluster(options))
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}


def token_secret(options: KubeRayOptions, token: str) -> Object:
    """The Secret. It is for kubectl's stdin, not for a file."""
    metadata = {"name": options.token_secret, **({"namespace": options.namespace} if options.namespace else {})}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {TOKEN_KEY: token}}


def check(options: KubeRayOptions) -> None:
    """Raises UsageError for options that cannot be right."""
    for option, value in (("--name", options.name), ("--token-secret", options.token_secret)):
        # The operator makes names out of it, and Kubernetes has room for 63 characters.
        if not _NAME.fullmatch(value) or len(value) > 47:
            hint = "lower-case letters, digits and -, starting with a letter, at most 47 characters"
            raise UsageError(f"{option} is {value!r}", hint=hint)
    if not options.image:
        raise UsageError("missing option --image", hint="--image names one with Ray in it, as in rayproject/ray:2.52.0")
    if options.nodes < 1:
        raise UsageError(f"--nodes is {options.nodes}", hint="a cluster has at least one node, its head")
    for option, value in (
        ("--cpus", options.cpus),
        ("--memory", options.memory),
        ("--shared-memory", options.shared_memory),
    ):
        if not _QUANTITY.fullmatch(value):
            raise UsageError(f"{option} is {value!r}", hint="use a Kubernetes quantity such as 4, 500m or 16Gi")
    if options.post_mortem not in POST_MORTEM:
        raise UsageError(f"--post-mortem is {options.post_mortem!r}", hint=f"it takes {', '.join(POST_MORTEM)}")
    _check_version(options.ray_version)
    for text in options.variables:
        name, equals, _ = text.partition("=")
        if not equals or not _VARIABLE.fullmatch(name):
            raise UsageError(f"--env is {text!r}", hint="--env NAME=VALUE")
        if name.startswith("RAY_AUTH_"):
            raise UsageError(f"--env {name}: the token is in a Secret", hint="pass your own with --token-secret")
    for text in options.claims:
        claim, colon, path = text.partition(":")
        if not (_NAME.fullmatch(claim) and colon and path.startswith("/")):
            raise UsageError(f"--claim is {text!r}", hint="use --claim NAME:/PATH with a PersistentVolumeClaim")


def _check_version(version: str) -> None:
    found = re.match(r"(\d+)\.(\d+)\.\d+", version)
    if not found:
        raise UsageError(f"--ray-version is {version!r}", hint="use the image's Ray version, such as 2.52.0")
    if (int(found[1]), int(found[2])) < LEAST_RAY:
        raise UsageError(f"Ray {version} does not support tokens", hint="use 2.52.0 or newer")


def _job(options: KubeRayOptions) -> Object:
    """The operator gives the entry point to the dashboard as it stands: of the other modes, K8sJobMode would pass it
    through two more shells."""
    return {
        "entrypoint": shlex.join((*_debugged(options), *options.command)),
        "submissionMode": "HTTPMode",
        "shutdownAfterJobFinishes": True,
        "ttlSecondsAfterFinished": 600,
        "rayClusterSpec": _cluster(options),
    }


def _debugged(options: KubeRayOptions) -> tuple[str, ...]:
    """The words that put the debugger in; it has to be in the image, so they are there only where they are needed."""
    words = [f"--break={spec}" for spec in options.specs]
    if options.post_mortem != "snapshot":
        words.append(f"--post-mortem={options.post_mortem}")
    return ("python3", "-P", "-m", "devkit", "run", *words, "--") if words else ()


def _cluster(options: KubeRayOptions) -> Object:
    spec: Object = {
        "rayVersion": options.ray_version,
        "authOptions": {"mode": "token", "secretName": options.token_secret},
        "headGroupSpec": {
            "rayStartParams": {"dashboard-host": "0.0.0.0"},
            "template": _template(options, "ray-head", PORTS),
        },
    }
    workers = options.nodes - 1
    if workers:
        group: Object = {"groupName": WORKER_GROUP, "replicas": workers, "minReplicas": workers, "maxReplicas": workers}
        template = _template(options, "ray-worker", {})
        spec["workerGroupSpecs"] = [{**group, "rayStartParams": {}, "template": template}]
    return spec


def _template(options: KubeRayOptions, container: str, ports: dict[str, int]) -> Object:
    resources = {"cpu": options.cpus, "memory": options.memory}
    if options.gpus:
        resources[options.gpu_resource] = str(options.gpus)
    volumes: list[Object] = [
        # A pod's own /dev/shm is 64 MiB: too little for Ray's objects and for NCCL.
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": options.shared_memory}}
    ]
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}]
    for number, text in enumerate(options.claims):
        claim, _, path = text.partition(":")
        volumes.append({"name": f"claim-{number}", "persistentVolumeClaim": {"claimName": claim}})
        mounts.append({"name": f"claim-{number}", "mountPath": path})
    main: Object = {"name": container, "image": options.image}
    if ports:
        main["ports"] = [{"name": name, "containerPort": port} for name, port in ports.items()]
    main |= {
        "env": list(_environment(options)),
        # Requests and limits alike: a node of a cluster that trains is not to be evicted, and its memory is its own.
        "resources": {"requests": resources, "limits": resources},
        # py-spy reads stacks of other processes.
        "securityContext": {"capabilities": {"add": ["SYS_PTRACE"]}},
        "volumeMounts": mounts,
    }
    return {"spec": {"containers": [main], "volumes": volumes}}


def _environment(options: KubeRayOptions) -> Iterator[Object]:
    reference = {"secretKeyRef": {"name": options.token_secret, "key": TOKEN_KEY}}
    yield {"name": "RAY_DEBUG", "value": "1"}
    yield {"name": "RAY_DEBUG_POST_MORTEM", "value": "1"}
    yield {"name": "RAY_AUTH_MODE", "value": "token"}
    yield {"name": "RAY_AUTH_TOKEN", "valueFrom": reference}
    yield {"name": "RAY_USAGE_STATS_ENABLED", "value": "0"}
    for text in options.variables:
        name, _, value = text.partition("=")
        yield {"name": name, "value": value.replace("$(", "$$(")}  # $(NAME) would be replaced by Kubernetes
