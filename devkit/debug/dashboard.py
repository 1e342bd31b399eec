"""A client of the REST endpoints of Ray's dashboard (ray.dashboard.modules), without Ray.

>>> Dashboard("http://127.0.0.1:8265", token=None).url
'http://127.0.0.1:8265'
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from glob import escape as glob_of
from typing import Any, TypeVar

from devkit.debug import rest as http
from devkit.debug.rest import Answer, QueryValue, Rest
from devkit.debug.row_tables import LIMIT, AnyRow, Filter, RowTables
from devkit.debug.rows import JobRow, LogFiles, Version
from devkit.debug.streams import FileStream, SocketStream, open_file, open_websocket
from devkit.debug.tokens import AuthMode, Token
from devkit.errors import DevkitError, NoJobError, UnreachableError

_NODE_HINT = "is that node alive?"
T = TypeVar("T")


class Dashboard(RowTables):
    """One dashboard. Every call raises UnreachableError when it cannot be reached within `timeout` seconds."""

    def __init__(self, url: str, token: Token | None, *, timeout: float = 10.0) -> None:
        self._rest = Rest(url, token, timeout)

    @property
    def url(self) -> str:
        return str(self._rest.url)

    def close(self) -> None:
        self._rest.close()

    def __enter__(self) -> Dashboard:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- the dashboard itself

    def authentication_mode(self) -> AuthMode:
        """Whether it asks for a token. The one endpoint that is open without."""
        answer = self._rest.request("GET", "/api/authentication_mode")
        if answer.is_missing_route:  # a Ray that does not support tokenss yet; or no Ray at all
            self.version()
            return "disabled"
        document = self._rest.json(answer)
        if not isinstance(document, dict) or "authentication_mode" not in document:
            raise self._rest.not_ray()
        return "disabled" if document["authentication_mode"] == "disabled" else "token"

    def version(self) -> Version:
        answer = self._rest.request("GET", "/api/version")
        document = self._rest.json(answer) if not answer.is_missing_route else None
        if not isinstance(document, dict) or "ray_version" not in document:
            raise self._rest.not_ray()
        return Version.from_json(document)

    # --- what runs

    def usage(self) -> dict[str, dict[str, tuple[float, float]]]:
        """What is used and what there is of each resource, by node ID. Ray spells its own names in camel case."""
        document = self._get("/api/cluster_status")
        try:
            nodes = document["data"]["clusterStatus"]["loadMetricsReport"]["usageByNode"]
        except (KeyError, TypeError):
            return {}  # without an autoscaler nobody counts
        return self._read(
            lambda: {
                node: {name: (float(used), float(total)) for name, (used, total) in rows.items()}
                for node, rows in nodes.items()
            }
        )

    # --- jobs

    def jobs(self) -> tuple[JobRow, ...]:
        """Drivers and submitted jobs."""
        document = self._get("/api/jobs/")
        return self._read(lambda: tuple(JobRow.from_json(row) for row in document))

    def job(self, job_id: str) -> JobRow:
        """By its job ID or submission ID."""
        document = self._of_job(job_id, self._rest.request("GET", f"/api/jobs/{job_id}"))
        return self._read(lambda: JobRow.from_json(document))

    def submit_job(
        self,
        entrypoint: str,
        *,
        runtime_env: Mapping[str, Any] | None = None,
        metadata: Mapping[str, str] | None = None,
        submission_id: str | None = None,
        timeout: float = 60.0,
    ) -> str:
        """Starts a shell command as a job; its submission ID. Ray answers once the job's supervisor is asked for."""
        request = {
            "entrypoint": entrypoint,
            "runtime_env": dict(runtime_env or {}),
            "metadata": dict(metadata or {}),
            "submission_id": submission_id,
        }
        body = json.dumps(request).encode()
        answer = self._rest.request("POST", "/api/jobs/", body=body, timeout=timeout)
        document = self._document(answer)
        return self._read(lambda: str(document["submission_id"]))

    def stop_job(self, job_id: str) -> bool:
        """Asks a submitted job to end; whether it was still running."""
        answer = self._rest.request("POST", f"/api/jobs/{job_id}/stop", body=b"")
        document = self._of_job(job_id, answer)
        return self._read(lambda: bool(document["stopped"]))

    def job_logs_stream(self, job_id: str, *, silence: float | None = None) -> SocketStream:
        """What a submitted job prints, from its beginning until it ends."""
        stream = open_websocket(self._rest, f"/api/jobs/{job_id}/logs/tail", silence=silence)
        if isinstance(stream, Answer):
            self._of_job(job_id, stream)
            raise self._rest.not_ray()
        return stream

    def put_package(self, name: str, content: bytes, *, timeout: float = 60.0) -> str:
        """Stores a package in the cluster; its URI, which a runtime_env can name."""
        answer = self._rest.request("PUT", f"/api/packages/gcs/{name}", body=content, timeout=timeout)
        self._expect(answer)
        return f"gcs://{name}"

    def has_package(self, name: str) -> bool:
        answer = self._rest.request("GET", f"/api/packages/gcs/{name}")
        if answer.status == 404 and not answer.is_missing_route:
            return False
        self._expect(answer)
        return True

    # --- logs; file names are relative to the session's logs folder on that node

    def list_logs(self, node_id: str, glob: str = "*") -> LogFiles:
        """File names by kind, as Ray sorts them: "worker_out", "driver", "raylet" ..."""
        found = self._state("logs", {"node_id": node_id, "glob": glob})
        return self._read(lambda: {str(kind): [str(name) for name in names] for kind, names in found.items()})

    def log_file(self, node_id: str, filename: str, *, timeout: float | None = None, lines: int = -1) -> bytes:
        """The whole file as it is now, or its last `lines`. Without a number Ray would send the last 1,000."""
        query = {**self._log_query(node_id, filename, timeout), "lines": lines}
        answer = self._rest.request("GET", "/api/v0/logs/file", query, timeout=timeout)
        if answer.status != 200:
            raise self._not_sent(answer, filename, node_id)
        # Now and then Ray loses the error on its way from the node, and says that the file is empty.
        if not answer.body and not self._has_log(node_id, filename):
            raise DevkitError(f"no log file {filename!r} on node {node_id[:8]}", hint=_NODE_HINT)
        return answer.body

    def _has_log(self, node_id: str, filename: str) -> bool:
        # Asked for a name that leads out of the folder, Ray answers with an error of its own.
        return ".." not in filename.split("/") and any(self.list_logs(node_id, glob_of(filename)).values())

    def stream_log(
        self, node_id: str, filename: str, interval: float = 0.1, *, silence: float | None = None, opening: float = 30.0
    ) -> FileStream:
        """The file from its beginning, and what is added to it, looked for every `interval` seconds, for ever.

        Waits `opening` seconds for the first byte: Ray answers nothing while the file is empty. One that isn't there
        is an error or, when Ray loses that on its way from the node, a stream that ends at once.
        """
        query = {**self._log_query(node_id, filename, opening), "interval": interval}
        stream = open_file(self._rest, "/api/v0/logs/stream", query, silence=silence, opening=opening)
        if isinstance(stream, Answer):
            raise self._not_sent(stream, filename, node_id)
        return stream

    def _log_query(self, node_id: str, filename: str, timeout: float | None) -> dict[str, QueryValue]:
        seconds = self._seconds(timeout)
        return {"node_id": node_id, "filename": filename, "lines": -1, "timeout": seconds}

    def _not_sent(self, answer: Answer, filename: str, node_id: str) -> DevkitError:
        """Why an answer is not the file. Ray says 500 for one that isn't there."""
        if answer.status != 500:
            self._expect(answer)
            return self._rest.not_ray()
        why = " ".join(answer.text.split())[:200]
        return DevkitError(f"no log file {filename!r} on node {node_id[:8]}: {why}", hint=_NODE_HINT)

    # --- below: one way for each kind of answer

    def _rows(self, kind: type[AnyRow], table: str, filters: tuple[Filter, ...]) -> tuple[AnyRow, ...]:
        query: dict[str, QueryValue] = {"detail": 1, "limit": LIMIT, "exclude_driver": "False"}
        if filters:
            columns, predicates, values = zip(*filters, strict=True)
            query.update(filter_keys=columns, filter_predicates=predicates, filter_values=values)
        result = self._state(table, query)
        return self._read(lambda: tuple(kind.from_json(row) for row in result["result"]))

    def _state(self, table: str, query: dict[str, QueryValue]) -> Any:
        """The result of a call to the state API, out of its wrappings."""
        document = self._get(f"/api/v0/{table}", {**query, "timeout": self._seconds(None)})
        return self._read(lambda: document["data"]["result"])

    def _read(self, take: Callable[[], T]) -> T:
        """What `take` takes out of a document. One of another shape is no Ray's."""
        try:
            return take()
        except (KeyError, TypeError, ValueError, AttributeError):
            raise self._rest.not_ray() from None

    def _seconds(self, timeout: float | None) -> int:
        """Ray's side of the time limit: whole seconds."""
        return max(1, int(self._rest.timeout if timeout is None else timeout))

    def _get(self, path: str, query: Mapping[str, QueryValue] | None = None) -> Any:
        return self._document(self._rest.request("GET", path, query))

    def _of_job(self, job_id: str, answer: Answer) -> Any:
        if answer.status == 404 and not answer.is_missing_route:
            raise NoJobError(f"there is no job {job_id!r} on this cluster", hint="devkit jobs lists the jobs")
        return self._document(answer)

    def _document(self, answer: Answer) -> Any:
        self._expect(answer)
        return self._rest.json(answer)

    def _expect(self, answer: Answer) -> None:
        """Raises for everything but a good answer."""
        if answer.is_missing_route:
            self.version()  # raises if it is not a Ray's
            raise UnreachableError(
                f"the dashboard at {self.url} lacks Ray's state and job APIs", hint=http.DEFAULT_HINT
            )
        if answer.status == 429:
            raise DevkitError("the dashboard is overloaded with requests", hint="try again later")
        if answer.status >= 300:  # whoever is led to another place might be led anywhere, with the token
            self._rest.json(answer)
