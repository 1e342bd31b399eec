"""A Kubernetes API server, as far as kubectl asks one here, and what the KubeRay operator would do beside it.

It checks objects by KubeRay's own definitions, so what real kubectl applies here is what a server would take. Pods are
entries in a table; `kubectl exec` runs its command on this machine. It shows that our client is right, not that KubeRay
is.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import WSMsgType, web

from tests.launch import crds

KINDS = {
    "/api/v1": {"pods": "Pod", "services": "Service", "secrets": "Secret"},
    "/apis/ray.io/v1": {"rayclusters": "RayCluster", "rayjobs": "RayJob"},
}
VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]
Object = dict[str, Any]


def pod_state(*, ready: bool = True, phase: str = "Running", state: Object | None = None, message: str = "") -> Object:
    """The status of a pod with one container."""
    conditions = [{"type": "PodScheduled", "status": "False", "message": message}] if message else []
    statuses = [{"name": "ray", "ready": ready, "state": state or {"running": {}}}] if not message else []
    return {"phase": phase, "conditions": conditions, "containerStatuses": statuses}


@dataclass
class FakeKube:
    """The tables, and what becomes of new objects."""

    bin: Path  # first on the PATH of what `kubectl exec` runs
    tables: dict[str, dict[str, Object]] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)
    fate: Callable[[Object], Object] = lambda pod: pod_state()  # a new pod's status
    job_states: list[Object] = field(default_factory=list)  # what a RayJob's status is, look by look
    url: str = ""

    def names(self, plural: str) -> list[str]:
        return sorted(self.tables.get(plural, {}))

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/version", self._reply({"major": "1", "minor": "32", "gitVersion": "v1.32.0"}))
        app.router.add_get("/api", self._reply({"kind": "APIVersions", "versions": ["v1"]}))
        version = {"groupVersion": "ray.io/v1", "version": "v1"}
        groups = [{"name": "ray.io", "versions": [version], "preferredVersion": version}]
        app.router.add_get("/apis", self._reply({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}))
        app.router.add_get("/openapi/v3", self._openapi_root)
        for top in KINDS:
            app.router.add_get(top, self._resources)
            app.router.add_get(f"/openapi/v3{top}", self._openapi)
            at = f"{top}/namespaces/{{namespace}}/{{plural}}"
            app.router.add_route("*", at, self._collection)
            app.router.add_route("*", f"{at}/{{name}}", self._object)
        app.router.add_get("/api/v1/namespaces/{namespace}/pods/{name}/exec", self._exec)
        return app

    def _reply(self, document: Object) -> Callable[[web.Request], Any]:
        async def handler(_: web.Request) -> web.Response:
            return web.json_response(document)

        return handler

    async def _resources(self, request: web.Request) -> web.Response:
        group = request.path.removeprefix("/apis/").removeprefix("/api/")
        rows = [
            {"name": plural, "singularName": kind.lower(), "namespaced": True, "kind": kind, "verbs": VERBS}
            for plural, kind in KINDS[request.path].items()
        ]
        return web.json_response({"kind": "APIResourceList", "groupVersion": group, "resources": rows})

    async def _openapi_root(self, _: web.Request) -> web.Response:
        paths = {top.lstrip("/"): {"serverRelativeURL": f"/openapi/v3{top}"} for top in KINDS}
        return web.json_response({"paths": paths})

    async def _openapi(self, request: web.Request) -> web.Response:
        """That the server validates by itself, which spares kubectl to."""
        top = request.path.removeprefix("/openapi/v3")
        group, _, version = top.removeprefix("/apis/").removeprefix("/api/").rpartition("/")
        ask = {"parameters": [{"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}]}
        paths = {}
        for plural, kind in KINDS[top].items():
            gvk = {"x-kubernetes-group-version-kind": {"group": group, "version": version, "kind": kind}}
            paths[f"{top}/namespaces/{{namespace}}/{plural}/{{name}}"] = {
                "patch": {**ask, **gvk},
                "put": {**ask, **gvk},
            }
            paths[f"{top}/namespaces/{{namespace}}/{plural}"] = {"post": {**ask, **gvk}}
        document = {"openapi": "3.0.0", "info": {"title": "fake", "version": "1"}, "paths": paths}
        return web.json_response(document)

    async def _collection(self, request: web.Request) -> web.Response:
        plural, table = self._table(request)
        if request.method == "POST":
            return self._create(plural, await request.json(), request)
        wanted = dict(item.split("=") for item in request.query.get("labelSelector", "").split(",") if item)
        items = [each for each in table.values() if wanted.items() <= each["metadata"].get("labels", {}).items()]
        kind, group = self._kind(request)
        return web.json_response({"kind": f"{kind}List", "apiVersion": group, "metadata": {}, "items": items})

    def _create(self, plural: str, document: Object, request: web.Request) -> web.Response:
        name = document["metadata"]["name"]
        if plural.startswith("ray") and (found := crds.problems(document)):
            return self._refuse(422, "Invalid", f'{document["kind"]}.ray.io "{name}" is invalid: {"; ".join(found)}')
        if name in self.tables.setdefault(plural, {}):
            return self._refuse(409, "AlreadyExists", f'{plural}.ray.io "{name}" already exists')
        document["metadata"] |= {"uid": f"uid-{name}", "namespace": request.match_info["namespace"]}
        if plural == "secrets":
            plain = document.pop("stringData", {})
            document["data"] = {key: base64.b64encode(value.encode()).decode() for key, value in plain.items()}
        self.tables[plural][name] = document
        if plural == "rayclusters":
            self._make_pods(document)
        return web.json_response(document, status=201)

    def _make_pods(self, cluster: Object) -> None:
        name, spec = cluster["metadata"]["name"], cluster["spec"]
        templates = [("head", f"{name}-head-aaaaa", spec["headGroupSpec"])]
        for group in spec.get("workerGroupSpecs", []):
            for number in range(group["replicas"]):
                templates.append(("worker", f"{name}-{group['groupName']}-worker-{number}", group))
        for number, (kind, pod_name, group) in enumerate(templates):
            labels = {"ray.io/cluster": name, "ray.io/node-type": kind}
            namespace = cluster["metadata"].get("namespace", "")
            pod = {"apiVersion": "v1", "kind": "Pod", "spec": group["template"]["spec"]}
            pod["metadata"] = {"name": pod_name, "labels": labels, "namespace": namespace}
            pod["status"] = {**self.fate(pod), "podIP": f"10.1.0.{number + 1}"}
            self.tables.setdefault("pods", {})[pod_name] = pod

    async def _object(self, request: web.Request) -> web.Response:
        plural, table = self._table(request)
        name = request.match_info["name"]
        if name not in table:
            return self._refuse(404, "NotFound", f'{plural} "{name}" not found')
        if request.method == "DELETE":
            removed = table.pop(name)
            pods = self.tables.get("pods", {})
            for pod in [each for each in pods if plural == "rayclusters" and each.startswith(f"{name}-")]:
                del pods[pod]
            details = {"name": name, "kind": plural, "uid": removed["metadata"]["uid"]}
            return web.json_response({"kind": "Status", "apiVersion": "v1", "status": "Success", "details": details})
        if request.method == "PATCH":
            table[name] = _merge(table[name], json.loads(await request.text()))
        elif plural == "rayjobs" and self.job_states:
            table[name]["status"] = self.job_states.pop(0) if len(self.job_states) > 1 else self.job_states[0]
        return web.json_response(table[name])

    async def _exec(self, request: web.Request) -> web.WebSocketResponse:
        """Channels of the protocol v5: 0 stdin, 1 stdout, 2 stderr, 3 the exit status; 255 closes one."""
        socket = web.WebSocketResponse(protocols=("v5.channel.k8s.io",))
        await socket.prepare(request)
        process = await asyncio.create_subprocess_exec(
            *request.query.getall("command"),
            env={**os.environ, "PATH": f"{self.bin}:{os.environ['PATH']}", "POD": request.match_info["name"]},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        given = b""
        while request.query.get("stdin") == "true":
            message = await socket.receive()
            if message.type != WSMsgType.BINARY or message.data[:1] == b"\xff":
                break
            given += message.data[1:]
        out, err = await process.communicate(given)
        for channel, data in ((b"\1", out), (b"\2", err)):
            if data:
                await socket.send_bytes(channel + data)
        status: Object = {"metadata": {}, "status": "Success"}
        if code := process.returncode:
            causes = [{"reason": "ExitCode", "message": str(code)}]
            message_ = f"command terminated with non-zero exit code: exit status {code}"
            status = {"metadata": {}, "status": "Failure", "reason": "NonZeroExitCode", "message": message_}
            status["details"] = {"causes": causes}
        await socket.send_bytes(b"\3" + json.dumps(status).encode())
        await socket.close()
        return socket

    def _table(self, request: web.Request) -> tuple[str, dict[str, Object]]:
        self.requests.append((request.method, request.path_qs))
        plural = request.match_info["plural"]
        return plural, self.tables.setdefault(plural, {})

    def _kind(self, request: web.Request) -> tuple[str, str]:
        top = next(top for top in KINDS if request.path.startswith(f"{top}/"))
        return KINDS[top][request.match_info["plural"]], top.removeprefix("/apis/").removeprefix("/api/")

    def _refuse(self, code: int, reason: str, message: str) -> web.Response:
        status = {"kind": "Status", "apiVersion": "v1", "status": "Failure"}
        return web.json_response({**status, "message": message, "reason": reason, "code": code}, status=code)


def _merge(old: Object, patch: Object) -> Object:
    merged = dict(old)
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merge(merged.get(key, {}), value) if isinstance(value, dict) else value
    return merged


@contextmanager
def serving(fake: FakeKube) -> Iterator[FakeKube]:
    """On a port of 127.0.0.1, in a thread."""
    loop = asyncio.new_event_loop()
    runner = web.AppRunner(fake.application())

    async def begin() -> None:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        fake.url = f"http://127.0.0.1:{runner.addresses[0][1]}"

    loop.run_until_complete(begin())
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


def kubeconfig(folder: Path, url: str) -> Path:
    """As kubectl reads it."""
    path = folder / "kubeconfig"
    cluster = {"name": "fake", "cluster": {"server": url}}
    context = {"name": "fake", "context": {"cluster": "fake", "user": "me", "namespace": "training"}}
    document = {"apiVersion": "v1", "kind": "Config", "clusters": [cluster], "contexts": [context]}
    document |= {"users": [{"name": "me", "user": {"token": "x"}}], "current-context": "fake"}
    path.write_text(json.dumps(document))
    return path
