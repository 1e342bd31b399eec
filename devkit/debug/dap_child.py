"""A child session over the parent's pipe, until it is known for which stop: then it is as `devkit dap --id`."""

from __future__ import annotations

from dataclasses import dataclass

from devkit.debug.dap_board import Board
from devkit.debug.dap_child_breaks import SameProcess
from devkit.debug.dap_chorus import Chorus
from devkit.debug.dap_cluster import Cluster, find_stop, unpacked_code
from devkit.debug.dap_loop import Loop
from devkit.debug.dap_one import OneSession
from devkit.debug.dap_paths import Paths
from devkit.debug.dap_share import Share
from devkit.debug.dap_stdio import Editor
from devkit.debug.dap_translate import Translation
from devkit.debug.inworker.adapter import CAPABILITIES
from devkit.debug.inworker.records import StopRecord
from devkit.debug.naming import Who
from devkit.debug.protocols import Document
from devkit.errors import DevkitError

FIND_SECONDS = 10.0


@dataclass(frozen=True)
class Home:
    """What the children have of their parent. `loop` is the parent's."""

    loop: Loop
    cluster: Cluster
    board: Board
    chorus: Chorus  # used in the parent's loop
    workspace: str
    patience: float = 0.0  # as of `OneSession`

    def lost(self, who: Who) -> None:
        self.loop.post(lambda: self.chorus.lost(who))

    def back(self, who: Who) -> None:
        self.loop.post(lambda: self.chorus.back(who))


class ChildSession:
    """Answers `initialize`; `attach`, or `initialize` itself, names the stop by `id`."""

    def __init__(self, loop: Loop, editor: Editor, home: Home) -> None:
        self._loop, self._editor, self._home = loop, editor, home
        self._share = Share(loop, home.loop, home.cluster)
        self._initialize: Document = {}
        self._wanted = ""
        self._held: list[Document] = []  # from `attach` on
        self._session: OneSession | None = None

    def start(self) -> None:
        self._editor.on_request = self._on_request
        self._editor.on_end = self.leave
        self._editor.start()

    def leave(self) -> None:
        if self._session is not None:
            self._session.leave()
        self._loop.stop(0)

    def end(self, text: str, code: int) -> None:
        """The program is over, and whatever was stopped."""
        if self._session is not None:
            self._session.end(text, code, is_news=False)  # the parent says so too: no news for each of 64 ranks
        else:
            self.leave()

    def _on_request(self, request: Document) -> None:
        command, arguments = request.get("command"), request.get("arguments") or {}
        self._wanted = str(arguments.get("id") or self._wanted)
        if command == "initialize":
            self._initialize = arguments
            self._editor.answer(request, CAPABILITIES)
        elif command in ("disconnect", "terminate"):
            self._editor.answer(request)
            self.leave()
        elif self._held:
            self._held.append(request)
        elif command not in ("attach", "launch"):
            self._editor.refuse(request, "a session begins with initialize and attach")
        elif not self._wanted:
            self._editor.refuse(request, "no paused rank was given", "give its id: devkit ps lists them")
        else:
            self._held.append(request)
            self._loop.background(self._find, self._found, self._not_found)

    def _find(self) -> tuple[StopRecord, str]:
        """The stop, and where its code was unpacked. The parent's last news have it, unless it is not the parent's."""
        hub, ps = self._share.hub, self._home.cluster.ps
        if not any(stop["id"] == self._wanted for stop in ps.get("stops", ())):
            ps = hub.call("ps", timeout=FIND_SECONDS)
        stop = find_stop(ps, self._wanted)
        return stop, unpacked_code(hub, [stop.id]).get(stop.id, "")

    def _found(self, found: tuple[StopRecord, str]) -> None:
        stop, unpacked = found
        paths = Paths(self._home.workspace)
        paths.learn(stop.file)
        paths.learn(unpacked)
        breaks = SameProcess(self._loop, self._home.loop, self._home.board, self._tell_breakpoint)
        self._session = OneSession(
            self._loop, self._editor, self._share, stop, Translation(paths), breaks, self._home.patience, self._home
        )
        held, self._held = self._held, []
        self._session.go_on(self._initialize, held)

    def _not_found(self, error: DevkitError) -> None:
        held, self._held = self._held, []
        for request in held:
            self._editor.refuse(request, f"error: {error.message}", f"hint: {error.hint}" if error.hint else "")

    def _tell_breakpoint(self, document: Document) -> None:
        self._editor.event("breakpoint", {"reason": "changed", "breakpoint": document})
