"""Where the debugger meets Ray inside a worker: `breakpoint()`, exceptions, time-outs, and Ray's own facts."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from . import calls_made, core, cut_off, driver_notes, hub_place, sent_globals, training
from .agent import Agent
from .words import say


def install(agent: Agent, *, driver: bool) -> None:
    """Puts the agent where Ray's own debugger would act."""
    from . import (
        alarms,
        by_reference,
        copied_random,
        found_actors,
        kills,
        leftovers,
        lookups,
        lost_arguments,
        lost_changes,
        made,
        no_batches,
        no_rounds,
        ownership,
        pools,
        postmortem,
        reserve,
        signals,
        stale_copies,
        unloaded,
        unordered,
        unseen_variables,
        untaken,
    )

    # An async actor on uvloop can't run its other calls while one of them is stopped; asyncio's own loop can.
    os.environ.setdefault("RAY_USE_UVLOOP", "0")
    ray = sys.modules.get("ray._private.worker")
    core.watch(ray)
    by_reference.watch()
    lookups.watch(ray)
    pools.watch()
    unloaded.watch()
    copied_random.watch()
    found_actors.watch()
    stale_copies.watch()
    no_batches.watch()
    no_rounds.watch(driver=driver)
    unordered.watch()
    training.watch()
    unseen_variables.watch(driver=driver)
    if not driver:
        leftovers.watch()
        lost_changes.watch()
        lost_arguments.watch()
    on_its_way: Callable[[], None] | None = None
    if agent.settings.post_mortem != "off" and not agent.settings.leave_to_ray:
        reserve.hold()
        if driver:
            on_its_way = postmortem.install_in_driver(agent.crashed)
        else:
            postmortem.install(agent.crashed)
    if driver:
        core.at_end(lambda: _at_end(agent, ray, on_its_way))
        sent_globals.watch()
    cut_off.watch()
    calls_made.watch(driver=driver)
    untaken.watch(driver=driver)
    if agent.settings.post_mortem != "off":
        kills.watch(ray, agent.has_news)
        signals.watch(agent.has_news)
        alarms.watch(agent.has_news)
    if not driver and agent.settings.post_mortem != "off":
        _dump_all_threads()
        made.watch(agent.making, lambda: agent.making(None), agent.has_news)
        ownership.watch(ray, agent.has_news)
    if not agent.settings.keep_timeouts:
        from . import timeouts

        timeouts.install()
    if sys.breakpointhook is sys.__breakpointhook__ and not agent.settings.leave_to_ray:
        sys.breakpointhook = _driver_breakpoint(agent) if driver else _worker_breakpoint(agent)


def _at_end(agent: Agent, ray: Any, on_its_way: Callable[[], None] | None) -> None:
    """Of a driver, before its Ray ends."""
    if on_its_way is not None:
        on_its_way()
    driver_notes.tell_changed()
    training.tell_ends()
    if _is_own(ray):
        agent.settle()
    driver_notes.keep([] if agent.has_failed else driver_notes.tell_cut_off())


def _dump_all_threads() -> None:
    """At a deadly signal: it may come in a thread of C++, and then where Python was is what a person can read.

    As Python does it by itself; Ray asks for the thread that died alone. A program that wants no dump gets none.
    """
    import faulthandler

    if faulthandler.is_enabled():
        with suppress(OSError, ValueError, RuntimeError, AttributeError):  # no stderr
            faulthandler.enable(all_threads=True)


def _is_own(ray: Any) -> bool:
    """Whether this driver has started its Ray itself: then that ends with it."""
    return bool(getattr(getattr(ray, "_global_node", None), "head", False))


def _worker_breakpoint(agent: Agent) -> Any:
    def hook(*_args: object, **_options: object) -> None:
        agent.pause_here(sys._getframe(1))

    return hook


def _driver_breakpoint(agent: Agent) -> Any:
    """In a terminal the pdb that everybody expects. Without one nobody could answer, so it must not wait for ever."""

    def hook(*_args: object, **_options: object) -> None:
        frame = sys._getframe(1)
        if os.environ.get("DEVKIT_WAIT"):
            agent.pause_here(frame)
        elif sys.stdin is not None and sys.stdin.isatty() and not os.environ.get("CI"):
            import pdb

            pdb.Pdb().set_trace(frame)
        else:
            place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            say(f"breakpoint() at {place} in the driver: no terminal, so not pausing (devkit run --wait pauses here)")

    return hook


def task_facts() -> dict[str, Any]:
    """The task that fails, and which attempt it is."""
    from .identity import task_id

    worker = getattr(sys.modules.get("ray._private.worker"), "global_worker", None)
    attempt = 0
    with core.asking() as is_open, suppress(Exception):  # Ray raises outside of a task: then it is the first attempt
        if is_open:
            attempt = int(worker.core_worker.get_current_task_attempt_number())  # type: ignore[union-attr]
    return {"task_id": task_id(), "attempt": attempt}


def crash_folder() -> Path:
    """Where this node keeps its snapshots: among Ray's logs, so that the dashboard serves them.

    Of a process without Ray, a worker's child say, in a folder for its own cluster: another's must not count them.
    """
    if (
        sys.modules.get("ray._private.worker") is not None
        and sys.modules["ray._private.worker"]._global_node is not None
    ):
        return hub_place.log_folder() / hub_place.CRASH_FOLDER
    import hashlib
    import tempfile

    from . import boot

    cluster = os.environ.get(boot.PLACE) or os.environ.get(boot.ANNOUNCE) or f"pid {os.getpid()}"
    own = hashlib.blake2b(cluster.encode(), digest_size=6).hexdigest()
    return Path(tempfile.gettempdir(), f"devkit-{os.geteuid()}", f"{hub_place.CRASH_FOLDER}-{own}")
