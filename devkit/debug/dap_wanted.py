"""Breakpoints as an editor wants them, made into breakpoints of a whole job. Nothing is armed here."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from devkit.debug import breaks
from devkit.debug.dap_paths import PathMapping, below
from devkit.debug.inworker import specs
from devkit.debug.inworker.dap_breaks import hits_of, log_of
from devkit.debug.inworker.records import Breakpoint
from devkit.debug.targets import rank_matcher
from devkit.errors import UsageError
from devkit.reading import LONGEST_SOURCE, read_regular

MOST_RANKS = 65_536  # of a target inside --ranks, when neither has an end
_DEPTH = 2  # folders below the workspace that may be a job's working folder
TARGET_HINT = "a condition that begins with a target is written like @Worker[0,4:8] if step == 3, or @[1]"


@dataclass(frozen=True)
class Wanted:
    """One breakpoint of the editor. Equal ones are the same, whichever session asks for them."""

    path: str = ""
    line: int = 0
    name: str = ""  # of a function, where there is no path
    condition: str = ""
    hits: str = ""
    log: str = ""

    @property
    def spec(self) -> str:
        """As `devkit break --list` shows it.

        >>> Wanted("/w/a.py", 3, condition="@[1] if step == 3").spec, Wanted(name="m:f", condition="k").spec
        ('/w/a.py:3 @[1] if step == 3', 'm:f if k')
        """
        place = f"{self.path}:{self.line}" if self.path else self.name
        return f"{place} {_tail(self.condition)}".strip()


@dataclass(frozen=True)
class Bounds:
    """For whom a session's breakpoints are, and how its files may be called there."""

    workspace: str
    job: str = ""
    ranks: str = ""
    mappings: tuple[PathMapping, ...] = ()


def read(command: str, arguments: Mapping[str, Any]) -> list[Wanted]:
    """What `setBreakpoints` or `setFunctionBreakpoints` asks for."""
    path = str((arguments.get("source") or {}).get("path") or "") if command == "setBreakpoints" else ""
    found = []
    for each in arguments.get("breakpoints") or ():
        line = int(each.get("line") or 0) if command == "setBreakpoints" else 0
        name = str(each.get("name") or "").strip() if command != "setBreakpoints" else ""
        condition = str(each.get("condition") or "").strip()
        found.append(Wanted(path, line, name, condition, hits_of(each), log_of(each)))
    return found


def make(wanted: Wanted, bounds: Bounds) -> Breakpoint:
    """The breakpoint for the whole job. Raises UsageError for one that can't be meant."""
    _check_target(wanted.condition)
    folder = Path(bounds.workspace)
    if wanted.path and not os.path.isfile(wanted.path):
        point = _elsewhere(wanted, bounds.job)
    else:
        spec = wanted.spec if wanted.path else _by_name(wanted, folder)
        point = breaks.make(spec, hits=wanted.hits, log=wanted.log, job=bounds.job, folder=folder)
    mapped = [remote for pair in bounds.mappings if wanted.path and (remote := pair.to_remote(wanted.path))]
    names = (*mapped, *point.paths, *_below_folders(wanted.path, bounds.workspace))
    return replace(point, spec=wanted.spec, paths=tuple(dict.fromkeys(names)), ranks=both(point.ranks, bounds.ranks))


def same_text(point: Breakpoint, path: str) -> bool:
    """Whether a breakpoint was made from the text that the file has now; lines may have moved since."""
    if point.source is None:
        return True
    try:
        return read_regular(path, LONGEST_SOURCE).decode() == point.source
    except (OSError, ValueError):
        return True  # it is being written; the next request comes when that is done


def both(ranks: str, others: str) -> str:
    """The ranks that are among both; empty means all. Raises UsageError when there are none.

    >>> both("", "0,2:4"), both("1:3", "0,2:4"), both("4:", "::2")[:12]
    ('0,2:4', '2', '4,6,8,10,12,')
    """
    if not ranks or not others:
        return ranks or others
    if ranks == others:
        return ranks
    matchers = (rank_matcher(ranks), rank_matcher(others))
    found = [rank for rank in range(_end(ranks, others)) if all(each(rank) for each in matchers)]
    if not found:
        raise UsageError(f"the ranks {ranks} are not among this session's: {others}", hint="name ranks that are")
    return ",".join(map(str, found))


def _end(*texts: str) -> int:
    """A rank that is behind all that one of these lists, if one of them has an end."""
    ends = []
    for text in texts:
        parts = [item.split(":") for item in text.split(",")]
        if all(len(part) == 1 or part[1] for part in parts):
            ends.append(max(int(part[0]) + 1 if len(part) == 1 else int(part[1]) for part in parts))
    return min(ends, default=MOST_RANKS)


def _tail(condition: str) -> str:
    """What follows a SPEC's location."""
    return condition if condition.startswith("@") or not condition else f"if {condition}"


def _check_target(condition: str) -> None:
    """For itself: with a file's name in front a mistake would be told as one of the name."""
    try:
        spec = specs.parse(f"x.py:1 {_tail(condition)}")
    except specs.SpecError as error:
        raise UsageError(error.message, hint=error.hint) from None
    if (spec.file, spec.line) != ("x.py", 1):
        raise UsageError(f"no target can be read from {condition!r}", hint=TARGET_HINT)


def _elsewhere(wanted: Wanted, job: str) -> Breakpoint:
    """In a file that only the workers have: they find out whether the line is one."""
    try:
        spec = specs.parse(f"x.py:{wanted.line} {_tail(wanted.condition)}")
        specs.check_hits(wanted.hits)
        specs.check_log(wanted.log)
    except specs.SpecError as error:
        raise UsageError(error.message, hint=error.hint) from None
    if not os.path.isabs(wanted.path):
        raise UsageError(f"no such file: {wanted.path}", hint="an editor names files by their whole path")
    return Breakpoint(
        id=secrets.token_hex(breaks.ID_BYTES),
        spec=wanted.spec,
        paths=(wanted.path,),
        line=wanted.line,
        role=spec.role,
        ranks=spec.ranks,
        condition=spec.condition,
        hits=wanted.hits,
        log=wanted.log,
        job_id=job,
    )


def _by_name(wanted: Wanted, folder: Path) -> str:
    """The SPEC of a function that may be written with dots alone, as in `package.module.Class.method`."""
    if ":" in wanted.name:
        return wanted.spec
    parts = wanted.name.split(".")
    for count in range(len(parts) - 1, 0, -1):
        name = f"{'.'.join(parts[:count])}:{'.'.join(parts[count:])}"
        if _is_module(".".join(parts[:count]), folder):
            return replace(wanted, name=name).spec
    raise UsageError(f"no module is found in {wanted.name!r}", hint="write it like package.module:Class.method")


def _is_module(name: str, folder: Path) -> bool:
    try:
        breaks.find_module(name, folder)
    except specs.SpecError:
        return False
    return True


def _below_folders(path: str, workspace: str) -> Sequence[str]:
    """How a file is called below a folder of the workspace, which may have been the job's working folder.

    >>> _below_folders("/w/project/pkg/m.py", "/w")
    ['pkg/m.py', 'm.py']
    """
    parts = (below(path, workspace) or "").split("/")
    return ["/".join(parts[start:]) for start in range(1, min(_DEPTH, len(parts) - 1) + 1)]
