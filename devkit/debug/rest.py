"""HTTP to a dashboard, and what its failures mean for the user. Knows no endpoint; standard library only."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NoReturn
from urllib.parse import quote, urlencode, urlsplit

from devkit.debug.tokens import TOKEN, Token
from devkit.errors import DevkitError, UnreachableError, UsageError
from devkit.reading import json_of

PIECE = 65536  # bytes
ADDRESS_HINT = "--address takes a dashboard URL (http://HOST:8265) or a GCS address (HOST:6379)"
DEFAULT_HINT = "install Ray with its dashboard where the head runs: pip install 'ray[default]'"
QueryValue = str | int | float | Sequence[str]


@dataclass(frozen=True)
class Url:
    """A dashboard's URL in parts. `base` is what a proxy puts in front of every path."""

    scheme: str
    host: str
    port: int
    base: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.base}"

    @classmethod
    def parse(cls, text: str) -> Url:
        """Also takes what a browser's address bar holds.

        >>> str(Url.parse("http://head:8265/#/jobs")), str(Url.parse("https://proxy/ray/")), str(Url.parse("http://[::1]:1"))
        ('http://head:8265', 'https://proxy:443/ray', 'http://[::1]:1')
        """
        try:
            parts = urlsplit(text.strip())
            host, port = parts.hostname, parts.port
        except ValueError:
            host = port = None
        if not host or parts.scheme not in ("http", "https"):
            raise UsageError(f"{text!r} is not the URL of a dashboard", hint=ADDRESS_HINT)
        if parts.username is not None:
            raise UsageError("a password does not belong in --address", hint=f"Ray's token goes into {TOKEN}")
        return cls(parts.scheme, host, port or (443 if parts.scheme == "https" else 80), parts.path.rstrip("/"))


@dataclass(frozen=True)
class Answer:
    status: int
    content_type: str
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")

    @property
    def is_missing_route(self) -> bool:
        """Whether the server has no such endpoint, which is not the same as no such job."""
        return self.status == 404 and (self.text.strip() in ("", "404: Not Found") or "html" in self.content_type)


class Rest:
    """Requests to one server over kept connections. May be used by several threads."""

    def __init__(self, url: str, token: Token | None, timeout: float) -> None:
        self.url = Url.parse(url)
        self.timeout = timeout
        self._token = token
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, QueryValue] | None = None,
        *,
        body: bytes | None = None,
        timeout: float | None = None,
    ) -> Answer:
        """One request and its whole answer, whatever its status. Raises UnreachableError when none comes in time."""
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        try:
            # A server may close a kept connection at any time, and what is sent twice must not act twice.
            connection, used = (self.connect(deadline), False) if method == "POST" else self._take(deadline)
            try:
                return self._exchange(connection, method, self.target(path, query), body, deadline)
            except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
                if not used:
                    raise
            return self._exchange(self.connect(deadline), method, self.target(path, query), body, deadline)
        except (OSError, http.client.HTTPException) as error:
            self.fail(error, self.timeout if timeout is None else timeout)

    def json(self, answer: Answer) -> Any:
        """The document of a good answer. Raises DevkitError, or a kind of it, for every other."""
        if answer.status in (401, 403):
            self._refuse(answer.status)
        if 300 <= answer.status < 400:
            raise UnreachableError(
                f"what answers at {self.url} is not a Ray dashboard: it redirects elsewhere ({answer.status})",
                hint="redirects are not followed: the token is for --address only; is there a login page in front?",
            )
        if answer.status >= 400:
            raise DevkitError(
                f"the dashboard at {self.url} answered {answer.status}: {_gist(answer)}", hint=_SERVER_HINT
            )
        try:
            return json_of(answer.body)
        except ValueError:
            raise self.not_ray() from None

    def target(self, path: str, query: Mapping[str, QueryValue] | None = None) -> str:
        words = urlencode(query, doseq=True) if query else ""
        return self.url.base + quote(path) + ("?" + words if words else "")

    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._token.value}"} if self._token else {}

    def connect(self, deadline: float) -> http.client.HTTPConnection:
        """A connection of the caller's own."""
        tls = self.url.scheme == "https"
        kind = http.client.HTTPSConnection if tls else http.client.HTTPConnection
        connection = kind(self.url.host, self.url.port)
        plain = open_socket(self.url.host, self.url.port, deadline)
        with ExitStack() as unfinished:
            unfinished.callback(plain.close)
            wrap = ssl.create_default_context().wrap_socket if tls else None
            connection.sock = wrap(plain, server_hostname=self.url.host) if wrap else plain
            unfinished.pop_all()
        return connection

    def fail(self, error: Exception, timeout: float) -> NoReturn:
        """Says what a failed exchange means."""
        where = f"{self.url.host}:{self.url.port}"
        if isinstance(error, http.client.HTTPException) and not isinstance(error, http.client.RemoteDisconnected):
            raise self.not_ray() from None
        if isinstance(error, ssl.SSLError):
            raise UnreachableError(
                f"TLS failed with {where}: {error.reason or error}",
                hint="Ray's own dashboard speaks http://, not https://",
            ) from None
        if isinstance(error, socket.gaierror):
            raise UnreachableError(f"the host {self.url.host!r} is not known", hint=ADDRESS_HINT) from None
        if isinstance(error, TimeoutError):
            raise UnreachableError(
                f"no answer from {where} within {timeout:g} s",
                hint="is the head running and the port open? An SSH tunnel helps: ssh -L 8265:localhost:8265 HEAD",
            ) from None
        why = getattr(error, "strerror", None) or "the connection was closed"
        raise UnreachableError(
            f"no dashboard answers at {self.url}: {why.lower()}",
            hint="is the cluster running? Start one: devkit debug-cluster; without 'ray[default]' Ray has no dashboard",
        ) from None

    def not_ray(self) -> UnreachableError:
        return UnreachableError(f"what answers at {self.url} is not a Ray dashboard", hint=ADDRESS_HINT)

    def _refuse(self, status: int) -> NoReturn:
        problem = "asks for a token" if status == 401 else "refuses the token"
        given = f" of {self._token.source}" if self._token and status == 403 else ""
        raise UnreachableError(
            f"the dashboard at {self.url} {problem}{given}",
            hint=f"set {TOKEN} to the cluster's token; it is in ~/.ray/auth_token of the user who started the head",
        )

    def _take(self, deadline: float) -> tuple[http.client.HTTPConnection, bool]:
        with self._lock:
            kept = self._idle.pop() if self._idle else None
        return (kept, True) if kept else (self.connect(deadline), False)

    def _exchange(
        self, connection: http.client.HTTPConnection, method: str, target: str, body: bytes | None, deadline: float
    ) -> Answer:
        with ExitStack() as unfinished:
            unfinished.callback(connection.close)
            set_deadline(connection.sock, deadline)
            kind = {"Content-Type": "application/json"} if method == "POST" else {}
            connection.request(method, target, body=body, headers={**self.headers(), **kind})
            set_deadline(connection.sock, deadline)
            response = connection.getresponse()
            pieces = []
            while piece := response.read1(PIECE):
                pieces.append(piece)
                set_deadline(connection.sock, deadline)
            response.close()  # frees the connection for the next request; read1 alone doesn't
            unfinished.pop_all()
        answer = Answer(response.status, response.headers.get_content_type(), b"".join(pieces))
        if response.will_close:
            connection.close()
        else:
            with self._lock:
                self._idle.append(connection)
        return answer


_SERVER_HINT = "see the dashboard's log: dashboard*.log in the session's logs folder on the head"


def open_socket(host: str, port: int, deadline: float) -> socket.socket:
    """A TCP connection without delays. Raises OSError, TimeoutError at the deadline."""
    last: OSError = socket.gaierror(f"{host} has no address")
    for family, kind, protocol, _, address in _resolve(host, port, deadline):
        connection = socket.socket(family, kind, protocol)
        try:
            set_deadline(connection, deadline)
            connection.connect(address)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection
        except OSError as error:
            connection.close()
            last = error
    raise last


def set_deadline(connection: socket.socket | None, deadline: float) -> None:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    if connection is not None:  # http.client drops it after the last piece of an answer
        connection.settimeout(left)


def _resolve(host: str, port: int, deadline: float) -> list[tuple[Any, ...]]:
    """getaddrinfo, which knows no deadline of its own: a dead name server holds it for half a minute."""
    found: list[tuple[Any, ...]] = []
    failed: list[OSError] = []

    def ask() -> None:
        try:
            found.extend(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except UnicodeError:  # a name that cannot be a name, such as "a..b"
            failed.append(socket.gaierror("not a host name"))
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=ask, name="devkit-resolve", daemon=True)
    thread.start()
    thread.join(max(0.0, deadline - time.monotonic()))
    if failed:
        raise failed[0]
    if thread.is_alive():
        raise TimeoutError
    return list(found)


def _gist(answer: Answer) -> str:
    """The line of an error's body that says most: the last one of a traceback."""
    try:
        said = json_of(answer.body).get("msg") or answer.text
    except (ValueError, AttributeError):
        said = answer.text
    lines = str(said).strip().splitlines() or ["nothing"]
    return (lines[-1] if lines[0].startswith("Traceback") else lines[0]).strip()[:300]
