"""A server of the Debug Adapter Protocol over this whole process: messages in, messages out, one per client.

Nothing here waits for a stopped thread but a lane of its own: an expression that takes long holds up no other stop, and
no `continue`. A client that goes, or is lost, resumes nothing; its breakpoints go with it.
"""

from __future__ import annotations

import atexit
import linecache
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

from . import dap_frames
from .dap_breaks import Arms, DapBreakpoints
from .dap_frames import Node, References
from .dap_paths import PathMappings
from .dap_talk import LATER, Document, Later, Refused, Talk
from .frames import Frame, is_machinery
from .lanes import Lane
from .stops import How, Stop, Stops, Why
from .threads import is_ours
from .values import error_line

EVALUATE_SECONDS = 30.0
LOOK_SECONDS = 10.0
CAPABILITIES = {
    "supportsConfigurationDoneRequest": True,
    "supportsFunctionBreakpoints": True,
    "supportsConditionalBreakpoints": True,
    "supportsHitConditionalBreakpoints": True,
    "supportsLogPoints": True,
    "supportsEvaluateForHovers": True,
    "supportsClipboardContext": True,
    "supportsSetVariable": True,
    "supportsSetExpression": True,
    "supportsCompletionsRequest": True,
    "completionTriggerCharacters": ["."],
    "supportsExceptionInfoRequest": True,
    "supportsDelayedStackTraceLoading": True,
    "supportsValueFormattingOptions": True,
    "supportsSingleThreadExecutionRequests": True,
    "supportsTerminateRequest": True,
    "exceptionBreakpointFilters": [
        {"filter": "uncaught", "label": "Exceptions that leave a task", "default": True},
    ],
}


_open: weakref.WeakSet[Adapter] = weakref.WeakSet()


class Adapter(Talk):
    """One client. `send` may block; it is called from this adapter's threads only, one message at a time.

    `only` is the id of a stop: nothing but this stop, and what comes later in its thread, is shown.
    """

    def __init__(
        self, stops: Stops, arming: Arms | None, send: Callable[[Document], None], only: str | None = None
    ) -> None:
        super().__init__(send)
        self._stops = stops
        self._only = only
        self._only_thread: int | None = None
        self._breakpoints = DapBreakpoints(arming)
        self._references = References()
        self._paths = PathMappings()
        self._attach: Document | None = None
        self._is_configured = False
        self._mine: set[Stop] = set()  # stops that this client lets go itself
        self._lanes: dict[Stop, Lane] = {}
        self._sources: dict[int, str] = {}
        _open.add(self)

    def close(self) -> None:
        """The client is gone. Stops stay."""
        if not self._is_closed:
            self._is_closed = True
            self._stops.unwatch(self)
            self._lane.put(self._leave)
            self._lane.close()

    def _leave(self) -> None:
        """After all that it asked for and is not done yet: that may have watched, set breakpoints, or begun a lane."""
        self._stops.unwatch(self)
        self._breakpoints.clear()
        for lane in self._lanes.values():
            lane.close()

    def finish(self) -> None:
        """The process ends."""
        if not self._is_closed:
            self._event("terminated")
            self._event("exited", {"exitCode": 0})

    # ---- what the stops tell; called in the stopping thread, so only noted

    def shows(self, stop: Stop) -> bool:
        if self._only is None or stop.id == self._only:
            return True
        return self._only_thread is not None and stop.place.ident == self._only_thread

    def stopped(self, stop: Stop) -> None:
        self._lane.put(lambda: self._tell_stopped(stop))

    def ended(self, stop: Stop, why: Why) -> None:
        self._lane.put(lambda: self._tell_ended(stop, why))

    def _tell_stopped(self, stop: Stop) -> None:
        self._only_thread = stop.place.ident
        if self._stops.get(stop.id) is not stop:
            return  # it has ended meanwhile
        body: Document = {"reason": stop.reason, "threadId": stop.thread_id, "allThreadsStopped": False}
        body["stopId"] = stop.id
        if stop.error is not None:
            body |= {"text": error_line(stop.error), "description": type(stop.error).__name__}
        elif stop.note:
            body["description"] = stop.note
        if stop.breakpoints:
            body["hitBreakpointIds"] = [
                each for name in stop.breakpoints for each in self._breakpoints.numbers_of(name)
            ]
            body["breakpointId"] = stop.breakpoints[0]  # as `devkit break --list` has it
        self._event("stopped", body)
        self._tell_breakpoints()

    def _tell_ended(self, stop: Stop, why: Why) -> None:
        self._references.forget(stop)
        lane = self._lanes.pop(stop, None)
        if lane is not None:
            lane.close()
        if stop not in self._mine:
            self._event("continued", {"threadId": stop.thread_id, "allThreadsContinued": False})
        self._mine.discard(stop)
        if why == "timeout":
            self._output(f"the stop {stop.id} has ended: its timeout has passed\n")

    # ---- a session begins and ends

    def _on_initialize(self, _arguments: Document, _request: Document) -> Document:
        return CAPABILITIES

    def _on_attach(self, arguments: Document, request: Document) -> Any:
        self._paths = PathMappings.of(arguments.get("pathMappings"))
        self._attach = request
        self._event("initialized")
        return LATER

    _on_launch = _on_attach  # some clients know no other word

    def _on_configurationDone(self, _arguments: Document, request: Document) -> Any:
        self._answer(request)
        if self._attach is not None:
            self._answer(self._attach)
        if not self._is_configured:
            self._is_configured = True
            for stop in self._stops.watch(self):
                self._tell_stopped(stop)
        return LATER

    def _on_disconnect(self, _arguments: Document, request: Document) -> Any:
        self._stops.unwatch(self)
        self._breakpoints.clear()
        self._answer(request)
        self._event("terminated")
        return LATER

    _on_terminate = _on_disconnect  # a debugger that only looks doesn't kill

    # ---- breakpoints

    def _on_setBreakpoints(self, arguments: Document, _request: Document) -> Document:
        return {"breakpoints": self._breakpoints.set_lines(arguments, self._paths)}

    def _on_setFunctionBreakpoints(self, arguments: Document, _request: Document) -> Document:
        return {"breakpoints": self._breakpoints.set_functions(arguments)}

    def _on_setExceptionBreakpoints(self, arguments: Document, _request: Document) -> Document:
        count = len(arguments.get("filters") or []) + len(arguments.get("filterOptions") or [])
        return {"breakpoints": [{"verified": True}] * count}

    def _tell_breakpoints(self) -> None:
        for state in self._breakpoints.changed():
            self._event("breakpoint", {"reason": "changed", "breakpoint": state})

    # ---- threads and frames

    def _on_threads(self, _arguments: Document, _request: Document) -> Document:
        self._tell_breakpoints()
        stops = self._shown_stops()
        threads = {stop.thread_id: self._stops.record(stop).thread for stop in stops}
        if self._only is None:
            stopped = {stop.place.ident for stop in self._stops.all()}
            for thread in threading.enumerate():
                ident = thread.ident
                if ident is not None and ident not in stopped and not is_ours(thread):
                    threads[self._stops.thread_number(ident)] = thread.name
        return {"threads": [{"id": number, "name": name} for number, name in sorted(threads.items())]}

    def _on_stackTrace(self, arguments: Document, _request: Document) -> Document:
        stop = self._stop(arguments)
        frames = stop.frames()
        first, count = int(arguments.get("startFrame") or 0), int(arguments.get("levels") or 0)
        shown = list(enumerate(frames))[first : first + count if count else None]
        return {"stackFrames": [self._frame(stop, *each) for each in shown], "totalFrames": len(frames)}

    def _frame(self, stop: Stop, index: int, frame: Frame) -> Document:
        document = {
            "id": self._references.frame(stop, index, frame.frame),
            "name": frame.function,
            "line": frame.line,
            "column": 1,
            "source": self._source(frame),
        }
        if is_machinery(frame.frame):
            document["presentationHint"] = "subtle"
        return document

    def _source(self, frame: Frame) -> Document:
        path = frame.file
        document: Document = {"name": os.path.basename(path), "path": self._paths.to_client(path)}
        if not os.path.exists(path) and linecache.getlines(path, frame.frame.f_globals):
            # Made by `exec`, a notebook or a pickle: no client finds it, but its text may be known here.
            number = next((key for key, known in self._sources.items() if known == path), len(self._sources) + 1)
            self._sources[number] = path
            document["sourceReference"] = number
        return document

    def _on_source(self, arguments: Document, _request: Document) -> Document:
        source = arguments.get("source") or {}
        number = source.get("sourceReference") or arguments.get("sourceReference") or 0
        path = self._sources.get(number) or self._paths.to_here(str(source.get("path") or ""))
        lines = linecache.getlines(path)
        if not lines:
            raise Refused(f"the source of {path or 'this source'} is not available here")
        return {"content": "".join(lines), "mimeType": "text/x-python"}

    def _on_scopes(self, arguments: Document, _request: Document) -> Document:
        node = self._references.get(arguments.get("frameId"))
        scopes = []
        for name, kind, is_long in (("Locals", "locals", False), ("Globals", "globals", True)):
            number = self._references.add(Node(node.stop, node.frame, kind))
            scopes.append({"name": name, "variablesReference": number, "expensive": is_long, "presentationHint": kind})
        return {"scopes": scopes}

    def _on_variables(self, arguments: Document, request: Document) -> Any:
        node = self._references.get(arguments.get("variablesReference"))
        return self._ask(
            request, node.stop, lambda: {"variables": dap_frames.variables(node, arguments, self._references)}
        )

    def _on_evaluate(self, arguments: Document, request: Document) -> Any:
        node = self._node(arguments)

        def answer() -> Document:
            document, printed = dap_frames.evaluated(node, arguments, self._references)
            if printed:
                self._output(printed, "stdout")
            return document

        return self._ask(request, node.stop, answer, float(arguments.get("timeout") or EVALUATE_SECONDS))

    def _on_setVariable(self, arguments: Document, request: Document) -> Any:
        node = self._references.get(arguments.get("variablesReference"))
        name, text = str(arguments["name"]), str(arguments["value"])
        return self._ask(request, node.stop, lambda: dap_frames.set_variable(node, name, text, self._references))

    def _on_setExpression(self, arguments: Document, request: Document) -> Any:
        node = self._node(arguments)
        target, text = str(arguments["expression"]), str(arguments["value"])
        return self._ask(request, node.stop, lambda: dap_frames.set_expression(node, target, text, self._references))

    def _on_completions(self, arguments: Document, request: Document) -> Any:
        node = self._node(arguments)
        text, column = str(arguments.get("text", "")), int(arguments.get("column") or 1)
        return self._ask(request, node.stop, lambda: {"targets": dap_frames.completions(node.frame, text, column)})

    def _on_exceptionInfo(self, arguments: Document, request: Document) -> Any:
        stop = self._stop(arguments)
        error = stop.error
        if error is None:
            raise Refused("this thread is not stopped at an exception")
        return self._ask(request, stop, lambda: dap_frames.exception_info(error))

    def _ask(self, request: Document, stop: Stop, call: Callable[[], Document], timeout: float = LOOK_SECONDS) -> Later:
        """Answers from the stop's own lane, after what was asked of it before."""

        def answer() -> None:
            try:
                body = stop.run(call, timeout)
            except BaseException as error:  # noqa: BLE001 - whatever an expression raised is the answer, `exit()` too
                self._fail(request, error)
            else:
                self._answer(request, body)

        if stop not in self._lanes:
            self._lanes[stop] = Lane("devkit-adapter-stop")
        self._lanes[stop].put(answer)
        return LATER

    # ---- going on

    def _on_continue(self, arguments: Document, request: Document) -> Any:
        return self._go_on(arguments, request, "continue")

    def _on_next(self, arguments: Document, request: Document) -> Any:
        return self._go_on(arguments, request, "next")

    def _on_stepIn(self, arguments: Document, request: Document) -> Any:
        return self._go_on(arguments, request, "stepIn")

    def _on_stepOut(self, arguments: Document, request: Document) -> Any:
        return self._go_on(arguments, request, "stepOut")

    def _go_on(self, arguments: Document, request: Document, how: How) -> Later:
        stop = self._stop(arguments)
        self._mine.add(stop)
        # Before it goes on: the next stop must not overtake the answer.
        self._answer(request, {"allThreadsContinued": False} if how == "continue" else None)
        self._stops.resume(stop.id, how)
        return LATER

    def _on_pause(self, arguments: Document, _request: Document) -> Document:
        number = arguments.get("threadId")
        from .pausing import pause

        for thread in threading.enumerate():
            if thread.ident is not None and self._stops.thread_number(thread.ident) == number:
                problem = pause(thread.ident, lambda frame: self._stops.park(frame, "pause"))
                if problem:
                    raise Refused(problem)
                return {}
        raise Refused(f"there is no thread {number}")

    # ---- common

    def _shown_stops(self) -> list[Stop]:
        return [stop for stop in self._stops.all() if self.shows(stop)]

    def _stop(self, arguments: Document) -> Stop:
        number = arguments.get("threadId")
        for stop in self._shown_stops():
            if stop.thread_id == number:
                return stop
        raise Refused(f"thread {number} is not stopped")

    def _node(self, arguments: Document) -> Node:
        """The frame that is meant; without one, the innermost of the first stop."""
        number = arguments.get("frameId")
        if number:
            return self._references.get(number)
        stops = self._shown_stops()
        if not stops:
            raise Refused("nothing is stopped here")
        return Node(stops[0], stops[0].frames()[0].frame, "frame")


def _finish() -> None:
    for adapter in list(_open):
        adapter.finish()


atexit.register(_finish)
