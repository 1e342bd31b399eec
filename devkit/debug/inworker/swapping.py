"""Swaps the code of functions for the same code with breakpoints, and back. What doesn't fit stays as it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from types import CodeType, FrameType, FunctionType
from typing import Any

from . import hits
from .aims import Aims
from .conditions import Condition
from .finding import codes_below
from .instrument import Build, Mark, Pair, Source, key_of, same
from .ledger import Ledger
from .makers import may_make
from .places import Site
from .running import Target
from .specs import SpecError

DIFFERS = "the source differs from the running code"
NOT_HERE = "not defined here yet"
HAS_RUN = "that line ran when its module was loaded and will not run again"


class Standing:
    """Where each breakpoint is armed, and what is to be said of it."""

    def __init__(self) -> None:
        self.notes: dict[str, str] = {}
        self._places: dict[str, set[tuple[str, str]]] = {}  # id -> file and function

    def places(self, name: str) -> int:
        return len(self._places.get(name, ()))

    def files(self, name: str) -> set[str]:
        return {filename for filename, _ in self._places.get(name, ())}

    def armed(self, name: str, filename: str, function: str) -> None:
        self._places[name] = self._places.get(name, set()) | {(filename, function)}
        self.notes.pop(name, None)

    def disarmed(self, name: str, filename: str) -> None:
        self._places[name] = {place for place in self._places.get(name, ()) if place[0] != filename}

    def forget(self, name: str) -> None:
        self._places.pop(name, None)
        self.notes.pop(name, None)


def _reason(sites: Iterable[Site], codes: Sequence[CodeType]) -> str:
    """Why a breakpoint is in none of these, which come from its file."""
    outermost = {site.function.partition(".<locals>")[0] for site in sites if site.is_in_function}
    if not outermost:
        return HAS_RUN
    return DIFFERS if any(code.co_qualname in outermost for code in codes) else NOT_HERE


class Swapping:
    """One file at a time: compiles it with its breakpoints, and gives its functions their code."""

    def __init__(self, aims: Aims) -> None:
        self.standing = Standing()
        self.ledger = Ledger()
        self.conditions: dict[str, Condition] = {}  # of the breakpoints that are installed
        self._aims = aims
        self._builds: dict[str, Build] = {}  # by file: what is installed
        self._misfits: set[tuple[str, str, int]] = set()  # unpickled functions that aren't made from a text we have

    def changed(self) -> None:
        """Another set of breakpoints: what didn't fit may fit now."""
        self._misfits.clear()

    def settle(self, filename: str, functions: Sequence[FunctionType], frames: Sequence[FrameType]) -> Build | None:
        """Gives the functions of a file the code that they should have; `frames` are those that run in it."""
        marks = self._aims.marks(filename)
        plains = [self.ledger.plain(each.__code__) for each in functions]
        running = [self.ledger.plain(each.f_code) for each in frames]
        whole = any(code.co_name == "<module>" for code in running)
        build = self._build(filename, marks, [*plains, *running], whole)
        for mark in marks:
            self.standing.disarmed(mark.id, filename)
        self._adopt(filename, build)
        for function, plain in zip(functions, plains, strict=True):
            self._swap(function, plain, build)
        for mark in marks:
            if build is not None and mark.id in build.sites and filename not in self.standing.files(mark.id):
                reason = _reason(build.sites[mark.id], [*plains, *running])
                self._note({mark.id: SpecError(reason)})
        return build

    def function(self, code: CodeType, marks: Sequence[Mark]) -> CodeType:
        """The code for a function that is made from a pickle."""
        filename, plain = code.co_filename, self.ledger.plain(code)
        misfit = (filename, *key_of(plain))
        if misfit in self._misfits:
            return code
        build = self._builds.get(filename)
        if build is None or set(build.sites) | set(build.errors) != {mark.id for mark in marks}:
            build = self._build(filename, marks, [plain], whole=False)
        pair = build.pair(plain) if build is not None else None
        if build is None or pair is None:
            self._misfits.add(misfit)
            return code
        self._adopt(filename, build)
        self._count(build, filename, pair)
        return pair.marked

    def module(self, code: CodeType, marks: Sequence[Mark], text: str) -> CodeType:
        """The code for a module that is about to run for the first time."""
        filename = code.co_filename
        marks = [mark for mark in marks if text in self._aims.texts(filename, [mark], own=[text])]
        if not marks:
            return code
        build = Source(text, filename).build(marks, filename, whole=True)
        self._note(build.errors)
        if not same(build.module.plain, code):
            self._note(dict.fromkeys(build.sites, SpecError(DIFFERS)))
            return code
        self._adopt(filename, build)
        self._count(build, filename, build.module)
        return build.module.marked

    def stale(self, name: str, build: Build, frames: Iterable[FrameType]) -> Iterator[Target]:
        """What runs, or will be made by what runs, without a breakpoint that it should have."""
        holders, sites, seen = build.holders(name), build.sites[name], set()
        for frame in frames:
            code = frame.f_code
            pair = build.pair(self.ledger.plain(code))
            if name in self.ledger.ids(code) or pair is None or name not in pair.ids:
                continue
            for inner in codes_below(code):
                plain = self.ledger.plain(inner)  # it may hold other breakpoints
                is_holder = any(each.key == key_of(plain) and same(each.plain, plain) for each in holders)
                if is_holder and id(inner) not in seen and (inner is code or may_make(frame, inner)):
                    seen.add(id(inner))
                    yield Target(inner, sites, maker=None if inner is code else code)

    def _build(self, filename: str, marks: Sequence[Mark], known: Sequence[CodeType], whole: bool) -> Build | None:
        """From the first text that is what runs. If there is none, who is armed stays so, and the others are told."""
        if not marks:
            return None
        problems: dict[str, SpecError] = {}
        sites: dict[str, tuple[Site, ...]] = {}
        for text in self._aims.texts(filename, marks):
            try:
                build = Source(text, filename).build(marks, filename, whole=whole)
            except SpecError as error:
                problems = {**dict.fromkeys((mark.id for mark in marks), error), **problems}
                continue
            sites = {**build.sites, **sites}
            has_run = {name: SpecError(HAS_RUN) for name in build.sites if not build.is_in_function(name)}
            problems = {**has_run, **build.errors, **problems}
            if any(build.pair(each) is not None for each in known):
                self._note(build.errors)
                return build
        old = self._builds.get(filename)
        before = [mark for mark in marks if old is not None and mark.id in old.sites]
        unlike = {name: SpecError(_reason(every, known)) for name, every in sites.items()}
        new = {mark.id: problems.get(mark.id) or unlike.get(mark.id) or SpecError(DIFFERS) for mark in marks}
        new = {name: problem for name, problem in new.items() if name not in {mark.id for mark in before}}
        self._note(new)
        return Source(old.text, filename).build(before, filename, whole=whole) if old and before else None

    def _adopt(self, filename: str, build: Build | None) -> None:
        if build is None:
            self._builds.pop(filename, None)
            return
        self._builds[filename] = build
        for mark in build.marks:
            if mark.condition and mark.id in build.sites:
                self.conditions[mark.id] = Condition(mark.condition, build.sites[mark.id][0].class_name)
        for pair in (build.module, *build.pairs):
            self.ledger.enter(pair)

    def _swap(self, function: FunctionType, plain: CodeType, build: Build | None) -> None:
        pair = build.pair(plain) if build is not None else None
        if build is not None and pair is not None:
            self.ledger.enter(pair, plain)
            known: Any = function  # typeshed does not know the attribute in every version
            hits.supply(known.__builtins__)
            self._count(build, function.__code__.co_filename, pair)
        code = plain if pair is None else pair.marked
        if function.__code__ != code:
            function.__code__ = code

    def _count(self, build: Build, filename: str, pair: Pair) -> None:
        for name in pair.ids:
            self.standing.armed(name, filename, build.sites[name][-1].function)

    def _note(self, problems: dict[str, SpecError]) -> None:
        for name, problem in problems.items():
            if not self.standing.places(name):
                self.standing.notes[name] = problem.message
