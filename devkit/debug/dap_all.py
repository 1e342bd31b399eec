"""`devkit dap --all`: as child sessions where the editor can have those, else as threads of one session."""

from __future__ import annotations

from devkit.debug.dap_choice import Choice
from devkit.debug.dap_cluster import Cluster
from devkit.debug.dap_loop import Loop
from devkit.debug.dap_parent import ParentSession
from devkit.debug.dap_ranks import RanksSession
from devkit.debug.dap_stdio import Editor
from devkit.debug.protocols import Document


class AllSession:
    """Waits for `initialize`, which says what the editor can."""

    def __init__(self, loop: Loop, editor: Editor, cluster: Cluster, choice: Choice, workspace: str) -> None:
        self._loop, self._editor, self._cluster = loop, editor, cluster
        self._choice, self._workspace = choice, workspace

    def start(self) -> None:
        self._editor.on_request = self._on_first
        self._editor.on_end = self._leave
        self._editor.start()

    def _on_first(self, request: Document) -> None:
        arguments = request.get("arguments") or {}
        if request.get("command") == "disconnect":
            self._editor.answer(request)
            self._leave()
        elif request.get("command") != "initialize":
            self._editor.refuse(request, "a session begins with initialize")
        elif arguments.get("supportsStartDebuggingRequest"):
            parent = ParentSession(self._loop, self._editor, self._choice, self._workspace)
            parent.start(request)
            parent.join(self._cluster)
        else:
            RanksSession(self._loop, self._editor, self._cluster, self._choice, self._workspace).start(request)

    def _leave(self) -> None:
        self._cluster.close()
        self._loop.stop(0)
