"""Workers in this process: real stops, real breakpoints and the real adapter, each on a thread, without Ray.

As a script it is `devkit attach` on such workers: `python -m tests.debug.workers_here RANKS [ATTACH ARGUMENTS]`.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from devkit.debug import terminal
from devkit.debug.inworker.adapter import Adapter
from devkit.debug.inworker.arming import Arming
from devkit.debug.inworker.records import Identity
from devkit.debug.inworker.stops import Stops
from devkit.debug.protocols import Document
from devkit.errors import DeadlineError
from tests.debug import debuggee
from tests.pace import stretched

SECONDS = stretched(20.0)


class HereChannel:
    """What the hub makes between a client and the adapter in a worker."""

    def __init__(self, worker: HereWorker, only: str | None) -> None:
        self._messages: queue.SimpleQueue[Document | None] = queue.SimpleQueue()
        self._adapter = Adapter(worker.stops, worker.arming, self._messages.put, only)

    def send(self, message: Document) -> None:
        self._adapter.handle(message)

    def receive(self, timeout: float) -> Document | None:
        try:
            return self._messages.get(timeout=timeout)
        except queue.Empty:
            raise DeadlineError("nothing came", hint="-") from None

    def close(self) -> None:
        self._adapter.close()
        self._messages.put(None)

    def lose(self) -> None:
        """The connection breaks: the process died."""
        self._messages.put(None)


class HereWorker:
    """One rank: a thread that runs a program, and all that an agent has."""

    def __init__(self, rank: int, program: Callable[[HereWorker], None], role: str = "Worker") -> None:
        self.rank = rank
        self.identity = Identity("02000000", f"{rank:06x}", "node", "10.0.0.5", "host", 4000 + rank, role, rank=rank)
        self.changed: Callable[[], None] = lambda: None
        self.stops = Stops(lambda: self.identity, lambda: self.changed())
        self.arming = Arming(self._hit, lambda name, problem: None)
        self.channels: list[HereChannel] = []
        self.results: list[Any] = []
        self.thread = threading.Thread(target=program, args=(self,), name=f"program-{rank}", daemon=True)

    def pause(self) -> None:
        """What a breakpoint in the caller's line does."""
        self.stops.park(sys._getframe(1), "breakpoint")

    def _hit(self, names: tuple[str, ...], frame: Any) -> None:
        # All of these workers share their code: only the thread of this one is its own.
        if threading.current_thread() is self.thread:
            self.stops.park(frame, "breakpoint", breakpoints=names)

    def takes_breakpoints(self) -> None:
        """For one worker of a process: the hooks that find new code are the process's."""
        self.arming.install()

    def start(self) -> None:
        self.thread.start()
        wait_until(lambda: bool(self.stops.records()) or not self.thread.is_alive())

    def end(self) -> None:
        """Lets the program run to its end."""
        deadline = time.monotonic() + SECONDS
        while self.thread.is_alive() and time.monotonic() < deadline:
            for record in self.stops.records():
                self.stops.resume(record.id)
            self.thread.join(0.05)
        self.arming.uninstall()


class HereHub:
    """A hub with these workers and nothing else."""

    def __init__(self, workers: Sequence[HereWorker]) -> None:
        self.workers = {worker.identity.worker_id: worker for worker in workers}
        self.gone: list[Document] = []
        self._watchers: list[queue.Queue[bool]] = []
        for worker in workers:
            worker.changed = self.tell

    def call(self, op: str, *, timeout: float | None = None, **arguments: Any) -> Document:
        assert op == "ps", op
        stops = [one.to_json() for worker in self.workers.values() for one in worker.stops.records()]
        return {"stops": stops, "gone": self.gone}

    def channel(self, worker_id: str, only: str | None = None) -> HereChannel:
        worker = self.workers[worker_id]
        worker.channels.append(HereChannel(worker, only))
        return worker.channels[-1]

    def tell(self) -> None:
        """Something changed."""
        for watcher in self._watchers:
            watcher.put(True)

    def watch(self) -> Iterator[Document]:
        changes: queue.Queue[bool] = queue.Queue()
        self._watchers.append(changes)
        yield self.call("ps")
        while changes.get():
            yield self.call("ps")
            changes.task_done()

    def close(self) -> None:
        """Nobody watches any more: else their threads are there for the tests of other files to see."""
        for watcher in self._watchers:
            watcher.put(False)

    def settle(self) -> None:
        """Until all who watch know of all changes."""
        self.tell()
        wait_until(lambda: not any(watcher.unfinished_tasks for watcher in self._watchers))


def wait_until(condition: Callable[[], bool], seconds: float = SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.005)


def main(ranks: int, program: str, *arguments: str) -> int:
    workers = [HereWorker(rank, getattr(debuggee, program)) for rank in range(ranks)]
    for worker in workers:
        worker.start()
    everything = "--all" in arguments
    stop = next((each for each in arguments if not each.startswith("-")), None)
    return terminal.run(HereHub(workers), stop, everything=everything)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), *sys.argv[2:]))
