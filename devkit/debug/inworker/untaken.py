"""Results of which some were taken, and others never: what `ray.wait(timeout=...)` has left, or a slice has cut off.

refs = [runner.sample.remote() for runner in runners]
ready, _ = ray.wait(refs, num_returns=len(refs), timeout=60)
samples = ray.get(ready)  # the others are asked for, computed, and lost

A result is taken when `ray.get`, `await` or a Future has got it, or when it is passed on: to a call, or in any object
that is pickled. Calls are counted by the line that makes them, in waves: until one of its results is taken. No
reference is kept here, only ids; which of them are gone, Ray is asked.
"""

from __future__ import annotations

import functools
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Any

from . import calls_made, core, cut_off, kills, noticeboard, threads
from .imports import on_import
from .sources import is_users
from .wanted_results import is_data, is_for_result
from .words import warn

KIND = "untaken"  # of notes
LINES = 5
LEAST = 2  # results of a wave that were taken: of one it is the first to come, and the others are not wanted
MOST_WAVES = 50  # of one line that are kept
GROUPED = 4  # calls of a wave that may be groups of ranks
MOST_SITES, MOST_OPEN, MOST_OF_SITE, MOST_RETRIED = 200, 50_000, 5000, 200
FIRST_PAUSE, LAST_PAUSE = 0.5, 10.0  # seconds between two looks, in a worker
_MARK = "__devkit_untaken__"

Left = dict[int, tuple[bytes, Any]]  # by its number in the wave: a call's id, and what it was given


class Wave:
    """Calls of one line, one after the other, before any of their results was taken."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.calls = self.taken = 0
        self.first_taken = sys.maxsize  # its number
        self.stride = 0  # the largest number of which those of all that were taken are multiples
        self.left: Left = {}
        self.is_followed = (
            False  # by one as large as any: then this one's time is over. What is refilled comes in small ones
        )
        self.retries: list[tuple[Wave, int]] | None = []  # what it asks for once more; None: also for something else

    def lost(self) -> Left:
        """What is left of it, if that means something: whoever takes the last ones only, waits for all; and of groups
        of ranks the first ones may answer for the others.
        """
        left = dict(self.left)  # in one step: the program goes on
        if not left or self.taken < LEAST or max(left) < self.first_taken:
            return {}
        is_of_groups = self.stride > 1 and self.calls >= GROUPED and self.taken == -(-self.calls // self.stride)
        return {} if is_of_groups else left


class Site:
    """A line that makes calls."""

    def __init__(self, call: calls_made.Called) -> None:
        self.name, self.file, self.line = call.name, call.code.co_filename, call.line
        self.code = call.code  # whose id it is known by
        self.asked = 0
        self.largest = 0  # of the waves before the last one
        self.waves: list[Wave] = []  # those of which something is left, and the last one
        self.is_one = True  # there was only one
        self.gone = 0  # results of waves that are no longer kept
        self.gives_data = False
        self.is_unsure = False
        self._is_open = False  # more of the last wave may come

    def call(self, task: bytes, key: Any) -> None:
        """One more."""
        if not self._is_open:
            self._begin()
        self.asked += 1
        wave = self.waves[-1]
        if wave.retries is not None:
            again = next(((each, at) for each in self.waves[:-1] if (at := _of_key(each, key)) is not None), None)
            wave.retries = None if again is None else [*wave.retries, again]
        wave.left[wave.calls] = task, key
        _open[task] = wave, wave.calls
        wave.calls += 1

    def _begin(self) -> None:
        if self.waves:
            self.is_one = False
            self._close(self.waves[-1])
        self.waves = [*(each for each in self.waves if each.left), Wave(self)]
        self._is_open = True
        if len(self.waves) > MOST_WAVES:
            self._fold()
        if len(self.waves) > 1:
            _state.look_soon()

    def _close(self, last: Wave) -> None:
        for wave, at in last.retries or ():
            if at in wave.left:
                _open.pop(wave.left.pop(at)[0], None)
        self.largest = max(self.largest, last.calls)
        for wave in self.waves[:-1]:
            wave.is_followed |= last.calls >= self.largest and last.taken > 0

    def _fold(self) -> None:
        """Lets go of waves that are over."""
        alive = _alive()
        for wave in self.waves[:-1] if alive is not None else ():
            if wave.is_followed:
                self.gone += len(_gone(wave.lost(), alive or ()))
                for at, (task, _) in list(wave.left.items()):
                    if task.hex() not in (alive or ()):
                        _open.pop(task, None)
                        wave.left.pop(at)
        self.waves = [*(each for each in self.waves[:-1] if each.left), self.waves[-1]]
        if len(self.waves) > MOST_WAVES:
            self.give_up()

    def take(self, wave: Wave, number: int) -> None:
        wave.left.pop(number, None)
        wave.taken += 1
        wave.first_taken = min(wave.first_taken, number)
        wave.stride = math.gcd(wave.stride, number)
        self._is_open = False
        if wave.left and wave.taken == LEAST:
            _state.look_soon()

    def give_up(self) -> None:
        """There are too many to be followed."""
        self.is_unsure = True
        for wave in self.waves:
            for task, _ in wave.left.values():
                _open.pop(task, None)
            wave.left.clear()

    def lost(self, alive: Collection[str] | None, *, at_end: bool) -> int:
        """How many results. `alive`: the calls whose references the program still has, as hex; None: not known."""
        if self.is_unsure or not self.gives_data or not self.waves or alive is None:
            return 0
        last = self.waves[-1]
        asked_again = {(id(wave), at) for wave, at in last.retries or ()}
        count = self.gone
        for wave in self.waves[:-1]:
            if wave.is_followed or (last.calls >= self.largest and last.taken):
                left = {at: each for at, each in wave.lost().items() if (id(wave), at) not in asked_again}
                count += len(_gone(left, alive))
        if self.is_one or (count and last.calls >= self.largest):
            count += len(_gone(last.lost(), () if at_end else alive))
        return count


def _of_key(wave: Wave, key: Any) -> int | None:
    """Which of the calls of a wave that are left was given the same; None where they are not told apart by that."""
    keys = [each for _, each in wave.left.values()]
    if key is None or len(keys) > MOST_RETRIED or len(set(keys)) < len(keys):
        return None
    return next((at for at, (_, each) in wave.left.items() if each == key), None)


def _gone(left: Left, alive: Collection[str]) -> list[bytes]:
    """Those that nobody can take any more, and that were not given up on purpose."""
    killed = {each["actor"] for each in kills.noted()}
    return [
        task
        for task, _ in left.values()
        if task.hex() not in alive and not cut_off.is_cancelled(task) and task[cut_off.ACTOR :].hex() not in killed
    ]


_open: dict[bytes, tuple[Wave, int]] = {}  # results that nobody has taken, by the ids of their calls
_sites: dict[tuple[int, int], Site | None] = {}  # by the id of a code and a line; None: nothing is to be said of it


# ---- on the way of the program's calls


def asked(reference: Any, call: calls_made.Called, arguments: Any, options: Any) -> None:
    """The program has made a call that gives one result."""
    site = _site(call)
    if site is None or site.is_unsure:
        return
    site.call(reference.binary()[: calls_made.TASK_BYTES], _key(arguments, options))
    if len(_open) > MOST_OPEN or (len(site.waves[-1].left) > MOST_OF_SITE):
        site.give_up()


def _site(call: calls_made.Called) -> Site | None:
    place = id(call.code), call.line
    if place not in _sites:
        if len(_sites) >= MOST_SITES:
            return None
        _sites[place] = Site(call) if is_users(call.code.co_filename) and is_for_result(call.name) else None
        _codes.append(call.code)
    return _sites[place]


_codes: list[Any] = []  # whose ids are used above


def _key(arguments: Any, options: Any) -> Any:
    """What a call is given, as far as that tells it from others at a glance, in a number; None without anything.

    A text itself, such as a prompt, would be kept here for as long as nobody takes the result.
    """
    given = [*arguments, *options.values()] if options else arguments
    if not given:
        return None
    return hash(tuple([each if type(each) in (int, str) else id(each) for each in given[:4]]))


def passed(values: Iterable[Any]) -> None:
    """Arguments of a call: who gets a reference has taken its result."""
    for each in values:
        if type(each) is _state.kind:
            _take(each)


def _take(reference: Any) -> None:
    if (found := _open.pop(reference.binary()[: calls_made.TASK_BYTES], None)) is not None:
        found[0].site.take(*found)


def _got(references: Any, results: Any) -> None:
    for reference, result in zip(references, results, strict=False):
        if reference is None:
            continue
        if (found := _open.pop(reference.binary()[: calls_made.TASK_BYTES], None)) is not None:
            site = found[0].site
            site.take(*found)
            if not site.gives_data:
                site.gives_data = is_data(result)


# ---- watching


class _State:
    def __init__(self) -> None:
        self.kind: Any = None  # Ray's class of references
        self.is_drivers = True
        self.told: dict[str, tuple[int, int]] = {}
        self._awake = threading.Event()
        self._is_looking = False

    def look_soon(self) -> None:
        """In a worker: nobody knows when it ends."""
        if not self.is_drivers and not self._awake.is_set():
            self._awake.set()
            if not self._is_looking:
                self._is_looking = True
                with suppress(RuntimeError):  # no thread is to be had
                    threads.start(self._run, "devkit-untaken")

    def _run(self) -> None:
        pause = FIRST_PAUSE
        while self is _state:
            self._awake.clear()
            time.sleep(pause)
            try:
                is_more = self.look()
            except Exception:  # noqa: BLE001 - a GCS that is gone, or another Ray's: then nobody hears of it
                return
            pause = min(2 * pause, LAST_PAUSE)
            if not is_more:
                self._awake.wait()
                pause = FIRST_PAUSE

    def look(self) -> bool:
        """Tells what is lost by now. Whether there is something to be looked at again."""
        sites = _with_losses()
        alive = _alive() if sites else None
        for site in sites:
            lost = site.lost(alive, at_end=False)
            key = f"{os.path.basename(site.file)}-{site.line}"
            # what is lost is lost for good: a note that is not the last one is still right
            if lost and self.told.get(key) != (lost, site.asked):
                self.told[key] = lost, site.asked
                with core.asking() as is_open:
                    if is_open:
                        noticeboard.put(KIND, f"{os.getpid()}-{socket.gethostname()}-{key}", _note(site, lost))
        return bool(sites)


def _with_losses() -> list[Site]:
    """Those that may have lost something."""
    sites = [each for each in list(_sites.values()) if each is not None and each.gives_data]
    return [each for each in sites if each.gone or any(wave.lost() for wave in list(each.waves))]


_state = _State()


def watch(*, driver: bool) -> None:
    """Counts the results of calls from now on."""
    if not noticeboard.is_connected():
        return
    _state.is_drivers = driver
    cut_off.watch()
    on_import("ray._raylet", _learn)
    on_import("ray._private.serialization", lambda module: _watch(module.SerializationContext))


def _learn(module: Any) -> None:
    _state.kind = module.ObjectRef
    calls_made.listen(asked, passed)


def _watch(kind: Any) -> None:
    gives, contains = kind.deserialize_objects, kind.add_contained_object_ref
    if hasattr(gives, _MARK):
        return

    @functools.wraps(gives)
    def deserialize_objects(self: Any, *arguments: Any, **options: Any) -> Any:
        results = gives(self, *arguments, **options)
        if _open:
            with suppress(Exception):  # another Ray's
                _got(arguments[1] if len(arguments) > 1 else options["object_refs"], results)
        return results

    @functools.wraps(contains)
    def add_contained_object_ref(self: Any, *arguments: Any, **options: Any) -> Any:
        if _open:
            with suppress(Exception):
                _take(arguments[0] if arguments else options["object_ref"])
        return contains(self, *arguments, **options)

    setattr(deserialize_objects, _MARK, True)
    kind.deserialize_objects, kind.add_contained_object_ref = deserialize_objects, add_contained_object_ref


def _alive() -> set[str] | None:
    """The ids of calls whose results this process has references to."""
    with core.asking() as is_open:
        worker: Any = getattr(sys.modules.get("ray._private.worker"), "global_worker", None)
        if not is_open or worker is None or not worker.connected:
            return None
        counts = worker.core_worker.get_all_reference_counts()
    size = 2 * calls_made.TASK_BYTES
    return {str(name)[:size] for name, count in counts.items() if int(count["local"]) or int(count["submitted"])}


def _forked() -> None:
    """A child makes no calls."""
    global _state
    _state = _State()
    _open.clear()
    _sites.clear()


os.register_at_fork(after_in_child=_forked)


# ---- in the driver


def tell() -> None:
    """At the end of a driver that has not failed: warns of what was never taken, here and in the workers."""
    with suppress(Exception):  # a GCS that is gone: the program ends all the same
        notes = noticeboard.every(KIND) if noticeboard.is_connected() else []
        sites = _with_losses()
        alive = _alive() if sites else None
        for site in sites:
            if lost := site.lost(alive, at_end=True):
                notes.append(_note(site, lost))
        for each in said(notes)[:LINES]:
            warn(*each)
        if noticeboard.is_connected():
            noticeboard.forget(KIND)


def _note(site: Site, lost: int) -> noticeboard.Document:
    own = {"file": site.file, "line": site.line, "name": site.name, "lost": lost, "asked": site.asked}
    return {**own, "driver": _state.is_drivers}


def said(notes: list[noticeboard.Document]) -> list[tuple[str, int, str]]:
    """(file, line, sentence) of each line that has lost something, of all processes together."""
    groups: dict[tuple[str, int, str], list[noticeboard.Document]] = {}
    for note in notes:
        groups.setdefault((note["file"], note["line"], note["name"]), []).append(note)
    found = []
    for (file, line, name), group in groups.items():
        lost, count = sum(each["lost"] for each in group), sum(each["asked"] for each in group)
        were, them = ("was", "it") if lost == 1 else ("were", "them")
        # A worker may have asked for more, and lost more, since it has told.
        least, first = ("", "") if all(each["driver"] for each in group) else ("at least ", "first ")
        of = f"{least}{lost} of the {first}{count} results of {name} that are asked for here {were} never taken"
        found.append((file, line, f"{of}: no ray.get, await or other call has got {them}"))
    return found


__all__ = ["KIND", "asked", "passed", "said", "tell", "watch"]
