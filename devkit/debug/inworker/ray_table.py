"""Shows the stops in Ray's own table of workers, where its Distributed Debugger extension looks for them."""

from __future__ import annotations

import sys
from typing import Any

from .core import asking


class RayTable:
    """The count of stopped threads, and the port at which the extension is let in."""

    def __init__(self, agent: Any) -> None:
        self._agent = agent
        self._shown = 0
        self._gate: Any = None

    def update(self, stops: int) -> None:
        if stops != self._shown:
            with asking() as is_open:
                if is_open:
                    self._show(stops)

    def _show(self, stops: int) -> None:
        state = sys.modules.get("ray._private.state")
        worker = getattr(sys.modules.get("ray._private.worker"), "global_worker", None)
        if state is None or worker is None or not worker.connected:
            return
        if self._gate is None:
            from .gate import Gate

            self._gate = Gate(self._agent, worker.node_ip_address)
            worker.set_debugger_port(self._gate.port)
        state.update_worker_num_paused_threads(worker.core_worker.get_worker_id(), stops - self._shown)
        self._shown = stops
