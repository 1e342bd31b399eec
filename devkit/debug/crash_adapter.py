"""`devkit dap --crash`: a crash snapshot as a session that is stopped for ever; the process may be long dead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from devkit.debug.crashes import all_crashes, complete, reading
from devkit.debug.dap_cluster import Connect
from devkit.debug.dap_crash_frames import (
    CRASHED,
    CrashFrame,
    RecordedSources,
    exception_info,
    threads_of,
)
from devkit.debug.dap_loop import Loop
from devkit.debug.dap_paths import Paths
from devkit.debug.dap_recorded import GONE, Child, children, look_up, presented, type_of
from devkit.debug.dap_stdio import Editor
from devkit.debug.kept_values import value_text
from devkit.debug.protocols import Document
from devkit.debug.targets import find_id
from devkit.errors import DevkitError, UsageError

STALE = "close this session and open the crash again"
TEXTLESS = "it was not on that node when the program crashed, or it was too large to keep"
CAPABILITIES = {
    "supportsConfigurationDoneRequest": True,
    "supportsEvaluateForHovers": True,
    "supportsExceptionInfoRequest": True,
    "supportsDelayedStackTraceLoading": True,
    "supportsTerminateRequest": True,
    "supportsClipboardContext": True,
}
FRAMES_OF_A_THREAD = 100_000  # a frame's id is its thread's number times this, and its index


def fetch(connect: Connect, wanted: str) -> Document:
    """The snapshot whose id is, or begins with, `wanted`; the cluster is not needed after this."""
    hub = connect()
    try:
        crashes = all_crashes(hub)
        known = find_id(wanted, [crash.id for crash in crashes], "crash")
        [record] = [crash for crash in crashes if crash.id == known]
        document = hub.call("crash", id=known)
        with reading(known):
            return complete(document, record)
    finally:
        hub.close()


class CrashSession:
    """Answers from the document. Nothing moves, and nothing can be set. Raises DevkitError for a damaged one."""

    def __init__(self, loop: Loop, editor: Editor, document: Document, workspace: str) -> None:
        self._loop, self._editor, self._document = loop, editor, document
        self._id = str(document["id"])
        self._paths = Paths(workspace)
        with reading(self._id):
            self._threads = threads_of(document)
            self._sources = RecordedSources(self._threads, self._paths)
            self._cut = "; ".join(map(str, document.get("cut") or ()))
        self._values: list[tuple[str, Any]] = []  # path and value of each variablesReference, from 1
        self._answers: dict[str, Callable[[Document], Document]] = {
            "initialize": lambda arguments: CAPABILITIES,
            "attach": self._attach,
            "launch": self._attach,
            "configurationDone": lambda arguments: {},
            "threads": self._on_threads,
            "stackTrace": self._on_stack_trace,
            "scopes": self._on_scopes,
            "variables": self._on_variables,
            "evaluate": self._on_evaluate,
            "exceptionInfo": lambda arguments: exception_info(self._document),
            "source": self._on_source,
            "setBreakpoints": self._on_breakpoints,
            "setFunctionBreakpoints": self._on_breakpoints,
            "setExceptionBreakpoints": lambda arguments: {"breakpoints": []},
            "disconnect": lambda arguments: {},
            "terminate": lambda arguments: {},
        }

    def start(self) -> None:
        self._editor.on_request = self._on_request
        self._editor.on_end = lambda: self._loop.stop(0)
        self._editor.start()

    def _on_request(self, request: Document) -> None:
        command = str(request.get("command"))
        answer = self._answers.get(command)
        if answer is None:
            self._editor.refuse(request, GONE)
            return
        try:
            with reading(self._id):
                body = answer(request.get("arguments") or {})
        except DevkitError as error:
            self._editor.refuse(request, error.message, error.hint)
            return
        self._editor.answer(request, body)
        self._after(command)

    def _after(self, command: str) -> None:
        """The events that follow an answer."""
        if command in ("attach", "launch"):
            self._editor.event("initialized")
        elif command == "configurationDone":
            self._tell_stopped()
        elif command in ("disconnect", "terminate"):
            self._editor.event("terminated")
            if command == "disconnect":
                self._loop.stop(0)

    def _tell_stopped(self) -> None:
        exception = self._document["exception"]
        said = f"{exception.get('type', '')}: {exception.get('message', '')}".removesuffix(": ")
        body = {"reason": "exception", "threadId": CRASHED, "allThreadsStopped": True}
        self._editor.event("stopped", {**body, "description": str(exception.get("type", "")), "text": said})
        if self._cut:
            self._editor.output(f"not in the snapshot: {self._cut}")

    def _attach(self, arguments: Document) -> Document:
        self._paths.attach(arguments)
        return {}

    def _on_threads(self, _arguments: Document) -> Document:
        return {"threads": [{"id": number, "name": thread.name} for number, thread in self._threads.items()]}

    def _on_stack_trace(self, arguments: Document) -> Document:
        number = int(arguments.get("threadId") or 0)
        thread = self._threads.get(number)
        if thread is None:
            raise UsageError(f"the snapshot has no thread {number}", hint=STALE)
        first, count = int(arguments.get("startFrame") or 0), int(arguments.get("levels") or 0)
        chosen = list(enumerate(thread.frames))[first : first + count if count else None]
        frames = [self._frame(number * FRAMES_OF_A_THREAD + index, frame) for index, frame in chosen]
        return {"stackFrames": frames, "totalFrames": len(thread.frames)}

    def _frame(self, number: int, frame: CrashFrame) -> Document:
        place = {"line": frame.line, "column": 1, "source": self._sources.source(frame)}
        hint = {} if frame.user else {"presentationHint": "subtle"}
        return {"id": number, "name": frame.function, **place, **hint}

    def _of_id(self, number: int) -> CrashFrame:
        thread, index = divmod(number, FRAMES_OF_A_THREAD)
        frames = self._threads[thread].frames if thread in self._threads else ()
        if index >= len(frames):
            raise UsageError(f"the snapshot has no frame {number}", hint=STALE)
        return frames[index]

    def _on_scopes(self, arguments: Document) -> Document:
        frame = self._of_id(int(arguments.get("frameId") or 0))
        scope = {"name": "Locals", "presentationHint": "locals", "expensive": False}
        return {"scopes": [{**scope, "variablesReference": self._reference("", dict(frame.locals or {}))}]}

    def _on_variables(self, arguments: Document) -> Document:
        number = int(arguments.get("variablesReference") or 0)
        if not 1 <= number <= len(self._values):
            raise UsageError(f"the snapshot has no variables {number}", hint=STALE)
        path, value = self._values[number - 1]
        parts = [Child(name, name, each) for name, each in value.items()] if not path else list(children(value, path))
        first, count = int(arguments.get("start") or 0), int(arguments.get("count") or 0)
        shown = parts[first : first + count if count else None]
        return {"variables": [presented(child, self._reference_of(child)) for child in shown]}

    def _reference_of(self, child: Child) -> int:
        has_parts = any(True for _ in children(child.value, child.path))
        return self._reference(child.path, child.value) if has_parts else 0

    def _reference(self, path: str, value: Any) -> int:
        self._values.append((path, value))
        return len(self._values)

    def _on_evaluate(self, arguments: Document) -> Document:
        frame = self._of_id(int(arguments.get("frameId") or CRASHED * FRAMES_OF_A_THREAD))
        expression = str(arguments.get("expression", "")).strip()
        value = look_up(expression, frame.locals or {})
        reference = self._reference_of(Child(expression, expression, value))
        return {"result": value_text(value), "type": type_of(value), "variablesReference": reference}

    def _on_source(self, arguments: Document) -> Document:
        source = arguments.get("source") or {}
        reference = int(source.get("sourceReference") or arguments.get("sourceReference") or 0)
        text = self._sources.text(reference, str(source.get("path") or ""))
        if text is None:
            raise UsageError(f"the snapshot has no text of {source.get('path') or 'this source'}", hint=TEXTLESS)
        return {"content": text, "mimeType": "text/x-python"}

    def _on_breakpoints(self, arguments: Document) -> Document:
        state = {"verified": False, "message": "the process is gone"}
        return {"breakpoints": [state] * len(arguments.get("breakpoints") or ())}
