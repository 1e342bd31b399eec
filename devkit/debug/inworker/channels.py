"""The debug adapters of this process: one for each client that the hub lets through to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from .adapter import Adapter
    from .stops import Stops

Document = dict[str, Any]


class Process(Protocol):
    """What adapters need of the agent: its stops, what arms breakpoints, and the way to the hub."""

    @property
    def stops(self) -> Stops: ...

    def add(self, point: Any) -> None: ...
    def remove(self, name: str) -> None: ...
    def state(self, name: str) -> Any: ...
    def send(self, document: Document) -> None: ...


class Channels:
    """Used in the listening thread alone."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._adapters: dict[int, Adapter] = {}

    def receive(self, document: Document) -> None:
        """A channel opens or closes, or a message came through it."""
        number = document["channel"]
        if document.get("open"):
            self._adapters[number] = self._open(number, document.get("only"))
        elif document.get("closed"):
            adapter = self._adapters.pop(number, None)
            if adapter is not None:
                adapter.close()
        elif number in self._adapters:
            self._adapters[number].handle(document["message"])

    def close(self) -> None:
        """The hub is lost, and all clients with it."""
        adapters, self._adapters = self._adapters, {}
        for adapter in adapters.values():
            adapter.close()

    def _open(self, number: int, only: str | None) -> Adapter:
        from .adapter import Adapter  # most processes never need it

        def send(message: Document) -> None:
            self._process.send({"type": "channel", "channel": number, "message": message})

        return Adapter(self._process.stops, self._process, send, only)
