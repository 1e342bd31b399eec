"""Which worker runs which file, when one of them has crashed: without xdist's own mistake there.

xdist 3.8 gives out again all that a crashed worker has had, files that it had finished among them. A worker that gets
one of those has nothing to do and tells nobody, so no more is given out, and the run stands for ever. The one that
takes its place gets a single file, and a worker begins its last test only when it has another one. And the test that
has ended one worker ends the next.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

LEAST = 2  # tests, for a worker to begin one


class Scheduling(LoadFileScheduling):
    """`--dist=loadfile`, in which a test that ended its worker is over, as is whatever that worker had done."""

    def remove_node(self, node: Any) -> str | None:
        """The test that was running, if the worker had something to do."""
        work = self.assigned_work.pop(node)
        crashed = next((name for unit in work.values() for name, done in unit.items() if not done), None)
        if crashed is None:
            return None
        for unit in work.values():
            unit.update({name: True for name in unit if name == crashed})
        self.workqueue.update({file: unit for file, unit in work.items() if not all(unit.values())})
        for other in self.assigned_work:
            self._reschedule(other)
        return crashed

    def _assign_work_unit(self, node: Any) -> None:
        with suppress(OSError):  # it has just crashed; xdist will hear of it, and what it was given is given out again
            super()._assign_work_unit(node)

    def _reschedule(self, node: Any) -> None:
        super()._reschedule(node)
        while not node.shutting_down and self._pending_of(self.assigned_work[node]) < LEAST:
            super()._reschedule(node)


@pytest.hookimpl(optionalhook=True)  # xdist's
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling | None:
    return Scheduling(config, log) if config.option.dist == "loadfile" else None
