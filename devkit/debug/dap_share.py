"""A child session's share in its parent's connection to the hub: one connection serves them all."""

from __future__ import annotations

from collections.abc import Callable

from devkit.debug.dap_cluster import Cluster, DapHub, Listener
from devkit.debug.dap_loop import Loop
from devkit.debug.protocols import Channel
from devkit.errors import DevkitError


class Share:
    """Used in the child's loop; the cluster is told, and tells, in the loop of its own session."""

    def __init__(self, loop: Loop, home: Loop, cluster: Cluster) -> None:
        self._loop, self._home, self._cluster = loop, home, cluster
        self._listener: Listener | None = None

    @property
    def hub(self) -> DapHub:
        return self._cluster.hub

    @property
    def seconds(self) -> float:
        return self._cluster.seconds

    def start(self, listener: Listener) -> None:
        post = self._loop.post
        self._listener = told = Listener(
            lambda ps: post(lambda: listener.on_ps(ps)),
            lambda: post(listener.on_lost),
            lambda: post(listener.on_back),
            lambda error: post(lambda: listener.on_given_up(error)),
        )
        self._home.post(lambda: self._cluster.start(told))

    def close(self) -> None:
        """The connection itself stays."""
        listener, self._listener = self._listener, None
        if listener is not None:
            self._home.post(lambda: self._cluster.stop(listener))

    def refresh_later(self) -> None:
        self._home.post(self._cluster.refresh_later)

    def open(
        self, worker_id: str, only: str | None, done: Callable[[Channel], None], failed: Callable[[DevkitError], None]
    ) -> None:
        hub = self.hub
        self._loop.background(lambda: hub.channel(worker_id, only), done, failed)
