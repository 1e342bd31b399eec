"""What a client sees of one job on a real Ray."""

from __future__ import annotations

import contextlib
from typing import Any

from devkit.debug.breaks import make
from devkit.debug.client import HubClient
from devkit.errors import DevkitError

from .conftest import PROGRAMS, eventually, mark
from .stages import Debugger

Stop = dict[str, Any]


class Look:
    """One client and one job; the marks that it knows are those of these programs."""

    def __init__(self, hub: HubClient, job: str, *programs: str) -> None:
        self.hub = hub
        self.job = job
        self._programs = programs
        self.set_here: list[str] = []  # ids of breakpoints

    def now(self) -> list[Stop]:
        return [stop for stop in self.hub.call("ps")["stops"] if stop["job_id"] == self.job]

    def place(self, name: str) -> tuple[str, int]:
        """The file and the line that wear this mark."""
        program = next(each for each in self._programs if f"# @{name}\n" in (PROGRAMS / each).read_text())
        return str(PROGRAMS / program), mark(program, name)

    def stops(self, *marks: str) -> list[Stop]:
        """Those at these marks, in their order, once there are no others and no fewer."""
        places = [self.place(name) for name in marks]
        found: list[Stop] = []

        def look() -> bool:
            found[:] = self.now()
            return sorted((stop["file"], stop["line"]) for stop in found) == sorted(places)

        eventually(look, f"stops at {marks}")
        return [found.pop([(stop["file"], stop["line"]) for stop in found].index(place)) for place in places]

    def values(self, expression: str, *stops: Stop) -> list[str]:
        results = self.hub.call("eval", expression=expression, ids=[stop["id"] for stop in stops])["results"]
        assert all(result["error"] is None for result in results), results
        return [result["value"] for result in results]

    def attached(self, stop: Stop, count: int) -> None:
        """Until so many clients look at it."""
        eventually(lambda: [each["attached"] for each in self.now() if each["id"] == stop["id"]] == [count])

    def resume(self, *stops: Stop) -> None:
        ids = [stop["id"] for stop in stops]
        assert self.hub.call("continue", ids=ids)["continued"] == ids

    def resume_all(self) -> None:
        """What a test has left, until the hub knows of no stop: the next test would take it for its own."""

        def is_over() -> bool:
            left = [stop["id"] for stop in self.now()]
            with contextlib.suppress(DevkitError):  # one has ended by itself meanwhile
                self.hub.call("continue", ids=left)
            return not left

        with contextlib.suppress(DevkitError):  # the hub has ended
            eventually(is_over, "the end of all stops")

    def end_of(self, stop: Stop) -> str:
        """Why it ended."""

        def ended() -> list[str]:
            return [end["reason"] for end in self.hub.call("ps")["gone"] if end["id"] == stop["id"]]

        [why] = eventually(ended, "the end of the stop")
        assert stop["id"] not in {each["id"] for each in self.now()}
        return str(why)

    def debugger(self, stop: Stop) -> tuple[Debugger, Stop, int]:
        """A client that has attached to one stop: it, the stop's event, and the frame at the top."""
        client = Debugger(self.hub.channel(stop["worker_id"], stop["id"]))
        client.attach()
        event = client.event("stopped")
        return client, event, client.top(event["threadId"])["id"]

    # ---- breakpoints

    def at(self, name: str, more: str = "") -> str:
        """The SPEC of a marked line."""
        file, line = self.place(name)
        return f"{file}:{line} {more}".strip()

    def set(self, spec: str, **options: str) -> dict[str, Any]:
        """What `devkit break` answers."""
        point = make(spec, job=self.job, **options)
        self.set_here.append(point.id)
        return self.hub.call("break", breakpoint=point.to_json(), wait=5.0)

    def clear_all(self) -> None:
        """What was set here; other tests use the cluster at the same time."""
        there = {each["id"] for each in self.hub.call("ps")["breakpoints"]}
        for name in there.intersection(self.set_here):
            self.hub.call("clear", id=name)

    def state(self, name: str) -> dict[str, Any]:
        """How a breakpoint stands."""
        return next(each for each in self.hub.call("ps")["breakpoints"] if each["id"] == name)
