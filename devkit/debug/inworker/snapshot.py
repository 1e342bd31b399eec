"""What is known when an exception leaves the program's code, as one small document that outlives the process.

The document has the fields of `CrashRecord`, and:

`chain`     [{`type`, `message`, `relation`, `frames`}]: what was raised, then its causes; `relation` is "raised",
            "cause", "context" or "member" (of an exception group); `attributes` {name: value} of one that keeps some
`frames`    those of the exception that the crash is named after, innermost first: [{`file`, `line`, `function`, `user`,
            `source`, `locals`, `globals`}]; `source` is {`first`, `lines`} or null; `globals` are those that the
            user's line names. In `chain` they have `locals` only where the frame is not listed here
`at`        index in `frames` of the innermost frame that is the user's: `file`, `line` and `function` are its own
`threads`   [{`name`, `frames` [{`file`, `line`, `function`}]}] of all threads, `versions`, `host`, `attempt`
`light`     true for another attempt or an outer level of a crash that is kept elsewhere
`cut`       what was left out for size or time, in words
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

from . import clues
from .affordable import Showing, order
from .crash_files import KEPT, encode, list_folder, load, record_of, store
from .expressions import given_back
from .insides import attributes
from .lastwords import last_words
from .lineage import Place, awaited, chain_of, is_of_a_death, is_outer_level, link, places_of, root_of, tag
from .records import CrashRecord, Identity, Raised
from .redaction import scrub, secrets_among, without
from .sources import is_users, source_around
from .spoken import last_lines
from .stacks import all_threads, describe
from .statements import globals_at
from .unasked import place
from .values import Limits, cut, error_line
from .words import plain

__all__ = [
    "KEPT", "chain_of", "deepest_user_frame", "last_words", "link", "list_folder", "load", "record_of", "root_of",
    "store", "tag", "take",
]  # fmt: skip

SIZE = 64 * 1024 - 1  # bytes of the document
BUDGET = 0.005  # seconds of work for the values; the user's frames come first
FIRST, FIRST_BUDGET = 3, 0.05  # of a process's first crashes: what numpy and torch do for the first time takes long
WROTE = 4  # lines of each output
MESSAGE = 2000  # characters of an exception's text
HANDLED = 200  # characters of what was handled
OUTER_FRAMES, INNER_FRAMES = 20, 80  # of a deep recursion
LOCALS = 60  # of one frame
GLOBALS = 5  # that one line names
READ = 3  # of the user's frames, the innermost ones: to read a file takes milliseconds

_USERS = Limits(text=1000, items=20, depth=3, total=4000)
_ERRORS = Limits(text=300, items=8, depth=2, total=300)  # what an exception keeps in itself
ATTRIBUTES = 6  # of one exception
_LIBRARYS = Limits(text=200, items=8, depth=1, total=500)  # frames of torch, Ray, the standard library

Document = dict[str, Any]


def take(
    error: BaseException,
    identity: Identity,
    kind: str,
    *,
    task_id: str = "",
    attempt: int = 0,
    size: int = SIZE,
    budget: float | None = None,
) -> Document:
    """The whole document of a crash. It runs in the thread that failed, which waits."""
    began = time.time()
    chain = chain_of(error)
    outer = is_outer_level(error)
    light = outer or attempt > 0
    scene = _Scene(chain, _place(chain), light, outer)
    shot = _Shot(scene, _affordable(light) if budget is None else budget)
    parts = shot.parts()
    document: Document = {
        **_record(error, identity, kind, scene.place, root_of(error), task_id, began).to_json(),
        "attempt": attempt,
        "host": identity.host,
        "versions": versions(),
        "light": light,
        "threads": [] if light else all_threads(),
        **parts,
    }
    if not light and (wrote := last_lines(WROTE)):
        document["wrote"] = wrote
    document |= clues.found(clues.Failure(error, kind, light))
    document = without(document, shot.secrets)
    _shrink(document, size)
    return document


_taken = itertools.count()


def _affordable(light: bool) -> float:
    """Seconds for the values. A process that fails again and again is not held up for each of its crashes."""
    return FIRST_BUDGET if not light and next(_taken) < FIRST else BUDGET


def deepest_user_frame(error: BaseException) -> FrameType | None:
    """Where a person wants to stand to see why: the innermost frame that is the user's, or the innermost one."""
    place = _place(chain_of(error))
    return None if place is None else place[1][0]


def versions() -> dict[str, str]:
    found = {"python": sys.version.split()[0]}
    for name in ("ray", "torch"):
        version = getattr(sys.modules.get(name), "__version__", None)
        if version is not None:
            found[name] = str(version)
    return found


# ---- which frame


def _place(chain: list[tuple[str, BaseException]]) -> tuple[int, Place] | None:
    """The user's innermost frame, in what was raised if it has one, else in a cause; before it, which of the chain."""
    places = [(index, place) for index, (_, each) in enumerate(chain) for place in places_of(each.__traceback__)]
    users = (each for each in places if is_users(each[1][0].f_code.co_filename))
    return next(users, places[0] if places else None)


def _record(
    error: BaseException,
    who: Identity,
    kind: str,
    place: tuple[int, Place] | None,
    root: str | None,
    task_id: str,
    began: float,
) -> CrashRecord:
    where = ("", 0, "")
    if place is not None:
        frame, line = place[1]
        where = (frame.f_code.co_filename, line, frame.f_code.co_qualname)
    told = next((each for _, each in chain_of(error) if is_of_a_death(type(each).__name__)), None)
    waited = awaited(told) if told is not None and root is None else ()
    record = record_at(who, kind, _words_of(error), where, root, task_id, began)
    return replace(record, waited=waited, handled=_handled(error))


def _handled(error: BaseException) -> str:
    """What made the program leave, if it left in the handler of that."""
    if not isinstance(error, SystemExit) or len(chain := chain_of(error)) == 1:
        return ""
    said, at = error_line(chain[1][1]), place(chain[1][1]).partition(" in ")[0]
    return f"{cut(said, HANDLED)}{f' ({at})' if at else ''}"


def record_at(
    who: Identity,
    kind: str,
    exception: Raised,
    where: tuple[str, int, str],
    root: str | None,
    task_id: str,
    died: float | None = None,
) -> CrashRecord:
    """The line of a crash in the list, with an id of its own."""
    return CrashRecord(
        id=os.urandom(6).hex(),
        job_id=who.job_id,
        role=who.role,
        rank=who.rank,
        node_ip=who.node_ip,
        pid=who.pid,
        time=time.time() if died is None else died,
        exception=exception,
        file=where[0],
        line=where[1],
        function=where[2],
        root=root,
        kind=kind,
        worker_id=who.worker_id,
        task_id=task_id,
    )


def _words_of(error: BaseException) -> Raised:
    try:
        message = scrub(plain(str(error)))
    except Exception as problem:  # noqa: BLE001 - keeps the rest of the snapshot of an exception whose own text fails
        message = f"(no message: {type(problem).__name__})"
    if len(message) > MESSAGE:  # Ray's have a whole traceback, with the point at the end
        message = f"{message[: MESSAGE // 4]} ... {message[-MESSAGE * 3 // 4 :]}"
    return {"type": type(error).__name__, "message": message}


# ---- frames and values


@dataclass(frozen=True)
class _Scene:
    chain: list[tuple[str, BaseException]]
    place: tuple[int, Place] | None
    light: bool  # an attempt after the first keeps the values of the one frame that failed
    outer: bool  # an outer level keeps none

    @property
    def shown(self) -> int:
        """Which exception of the chain the crash is named after."""
        return 0 if self.place is None else self.place[0]

    def wants_values_of(self, frame: FrameType) -> bool:
        is_place = self.place is not None and frame is self.place[1][0]
        return not self.light or (is_place and not self.outer)


@dataclass(frozen=True)
class _Value:
    """A variable that is to be shown `among` others, and when."""

    among: Document
    name: str
    value: Any
    limits: Limits
    order: int


class _Shot:
    """Fills in the frames, the user's first, while there is time."""

    def __init__(self, scene: _Scene, budget: float) -> None:
        self._scene = scene
        self._cut: list[str] = []
        self._showing = Showing(budget)
        self._of_errors: list[_Value] = []
        self._read = 0  # of the user's frames
        self.secrets: set[str] = set()  # what the frames have under a secret's name, and what may be elsewhere too

    def parts(self) -> Document:
        chain: list[Document] = []
        entries: list[tuple[bool, bool, FrameType, Document]] = []
        shown = self._scene.shown
        for index, (relation, error) in enumerate(self._scene.chain):
            hidden = self._scene.outer and index != shown
            places = [] if hidden else self._bounded(places_of(error.__traceback__))
            frames = [_frame(*each) for each in places]
            chain.append({**_words_of(error), "relation": relation, "frames": frames})
            if not self._scene.light or (index == shown and not self._scene.outer):
                self._add_attributes(chain[-1], error)
            entries += [(index != shown, not e["user"], p[0], e) for p, e in zip(places, frames, strict=True)]
        self._fill_all(sorted(entries, key=lambda entry: entry[:2]))
        frames = chain[shown]["frames"]
        chain[shown]["frames"] = [{name: each[name] for name in ("file", "line", "function")} for each in frames]
        return {"at": self._at(frames), "frames": frames, "chain": chain, "cut": self._cut}

    def _add_attributes(self, entry: Document, error: BaseException) -> None:
        own = _attributes_of(error, entry["message"])
        self.secrets.update(secrets_among(dict(own)))
        if own:
            entry["attributes"] = dict.fromkeys(name for name, _ in own)
        for name, value in own:
            self._of_errors.append(_Value(entry["attributes"], name, value, _ERRORS, order(value, _ERRORS)))

    def _at(self, frames: list[Document]) -> int:
        here = {} if self._scene.place is None else describe(*self._scene.place[1])
        return next((index for index, each in enumerate(frames) if here.items() <= each.items()), 0)

    def _fill_all(self, entries: list[tuple[bool, bool, FrameType, Document]]) -> None:
        """A frame that raised, and went on to raise something else, has its variables once."""
        filled: set[int] = set()
        values = self._of_errors
        for _, _, frame, entry in entries:
            if entry["user"] or not self._showing.is_over:
                entry["source"] = source_around(entry["file"], entry["line"], 4 if entry["user"] else 1)
            if id(frame) not in filled and self._scene.wants_values_of(frame):
                filled.add(id(frame))
                values += self._values(entry, frame)
        for value in sorted(values, key=lambda each: each.order):
            value.among[value.name] = self._showing.of(value.name, value.value, value.limits)
        if self._showing.late:
            self._cut.append(f"{self._showing.late} values: no time left for them")

    def _bounded(self, places: list[Place]) -> list[Place]:
        if len(places) <= OUTER_FRAMES + INNER_FRAMES:
            return places
        self._cut.append(f"{len(places) - OUTER_FRAMES - INNER_FRAMES} frames in the middle of the stack")
        return places[:INNER_FRAMES] + places[-OUTER_FRAMES:]

    def _values(self, entry: Document, frame: FrameType) -> Iterator[_Value]:
        gone = given_back(frame, entry["line"]) if entry["user"] else frozenset()
        named = [each for each in _names_of_interest(frame) if each[0] not in gone]
        self.secrets.update(secrets_among(dict(named[:LOCALS])))
        if len(named) > LOCALS:
            self._cut.append(f"{frame.f_code.co_qualname}: {len(named) - LOCALS} of {len(named)} variables")
        limits = _USERS if entry["user"] else _LIBRARYS
        entry["locals"] = dict.fromkeys(name for name, _ in named[:LOCALS])  # in the program's order
        for name, value in named[:LOCALS]:
            yield _Value(entry["locals"], name, value, limits, order(value, limits))
        self._read += entry["user"]
        outside = globals_at(frame, entry["line"], GLOBALS) if entry["user"] and self._read <= READ else []
        self.secrets.update(secrets_among(dict(outside)))
        if outside:
            entry["globals"] = dict.fromkeys(name for name, _ in outside)
        for name, value in outside:
            yield _Value(entry["globals"], name, value, limits, order(value, limits))


def _attributes_of(error: BaseException, message: str) -> list[tuple[str, Any]]:
    """What the program has put on an exception, and its text does not say; Ray's own have a traceback there."""
    if any(kind.__module__ == "ray.exceptions" for kind in type(error).__mro__):
        return []
    return [
        (name, value)
        for name, value in attributes(error)
        if not name.startswith("_") and value is not None and not (type(value) is str and value in ("", message))
    ][:ATTRIBUTES]


def _frame(frame: FrameType, line: int) -> Document:
    user = is_users(frame.f_code.co_filename)
    return {**describe(frame, line), "user": user, "source": None, "locals": {}}


def _names_of_interest(frame: FrameType) -> list[tuple[str, Any]]:
    """Not the modules, functions and classes that a module's own frame is full of."""
    is_module = frame.f_code.co_name == "<module>"
    hidden = ("__", ".")  # the latter: what a comprehension goes through
    named = [(name, value) for name, value in dict(frame.f_locals).items() if not name.startswith(hidden)]
    module = type(sys)
    return [
        (name, value)
        for name, value in named
        if not isinstance(value, module) and not (is_module and (isinstance(value, type) or callable(value)))
    ]


# ---- size


def _shrink(document: Document, size: int) -> None:
    """Leaves out the largest variables until the document fits; then, of a program without end, whatever there is."""
    excess = len(encode(document)) - size
    if excess <= 0:
        return
    for length, frame, name in _largest_locals(document):
        if excess <= 0:
            return
        note = {"type": "", "cut": f"{length} bytes"}
        frame["locals" if name in frame["locals"] else "globals"][name] = note
        document["cut"].append(f"{name} in {frame['function']}: {length} bytes")
        excess -= length - 100
    for part, smaller in _coarser(document):
        excess = len(encode(document)) - size
        if excess <= 0:
            return
        smaller()
        document["cut"].append(part)


def _largest_locals(document: Document) -> list[tuple[int, Document, str]]:
    import json

    every = document["frames"] + [frame for each in document["chain"] for frame in each["frames"]]
    sized = [
        (len(json.dumps(value)), frame, name)
        for frame in every
        for name, value in {**frame.get("locals", {}), **frame.get("globals", {})}.items()
    ]
    return sorted((each for each in sized if each[0] > 200), key=lambda each: -each[0])


def _coarser(document: Document) -> Iterator[tuple[str, Callable[[], None]]]:
    """What may go, and how, the least missed first."""

    def few_notes() -> None:
        document["cut"] = [*document["cut"][:10], f"{len(document['cut']) - 10} more"]

    def short_threads() -> None:
        document["threads"] = [{**each, "frames": each["frames"][:8]} for each in document["threads"][:20]]

    def no_source() -> None:
        document["frames"] = [{**each, "source": None} for each in document["frames"]]

    def no_attributes() -> None:
        for each in document["chain"]:
            each.pop("attributes", None)

    def no_causes() -> None:
        document["chain"] = [{**each, "frames": []} for each in document["chain"]]

    def few_frames() -> None:
        document["frames"] = document["frames"][: document["at"] + 10]

    def no_threads() -> None:
        document["threads"] = []

    yield "notes like these", few_notes
    yield "threads after the first 20, and their outer frames", short_threads
    yield "what the exceptions keep in themselves", no_attributes
    yield "the causes' frames", no_causes
    yield "source", no_source
    yield "the outer frames", few_frames
    yield "threads", no_threads
