"""What the verbs need of the hub: the one seam between them and a cluster. `client.py` is the real one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

Document = dict[str, Any]


class Channel(Protocol):
    """A debug-adapter connection to one worker."""

    def send(self, message: Document) -> None: ...

    def receive(self, timeout: float) -> Document | None:
        """The next message; None when the other side is gone. Raises DeadlineError when nothing came in time."""
        ...

    def close(self) -> None: ...


class Answers(Protocol):
    """What answers the operations that the brief of the hub lists, or some of them."""

    def call(self, op: str, *, timeout: float | None = None, **arguments: Any) -> Document: ...


class Hub(Answers, Protocol):
    """All of the operations, a channel to a worker, and news."""

    def channel(self, worker_id: str, only: str | None = None) -> Channel:
        """A connection to a worker; `only` narrows it to one stop, and to what comes later in its thread."""
        ...

    def watch(self) -> Iterator[Document]:
        """A `ps` document now, and one at each change."""
        ...
