"""The page of `devkit logs --first-error`: one cause, where and who, and a count of what followed."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from devkit.debug.belated import WHEN
from devkit.debug.briefly import is_unpickled
from devkit.debug.caught_view import Row, swallowed, swallowed_heading
from devkit.debug.clue_lines import clues_of
from devkit.debug.crash_page import told_of
from devkit.debug.crash_table import left_for
from devkit.debug.inworker.identity import DRIVER
from devkit.debug.inworker.words import BY_SIGTERM
from devkit.debug.naming import count, is_library, label, short_path, short_places
from devkit.debug.stack_groups import trim
from devkit.logs import redact
from devkit.logs.beside import swallowed_lines, warning_lines, warnings_heading
from devkit.logs.collect import Left, title
from devkit.logs.events import SIGNALS
from devkit.logs.order import PLAINLY, UNTIMED, FirstError, Followed, Problem, called
from devkit.logs.parse import own_frame
from devkit.logs.records import ErrorCause, FirstErrorDocument, SwallowedError
from devkit.logs.warned import warned
from devkit.palette import CAUTION

if TYPE_CHECKING:
    from rich.text import Text

MESSAGE_LINES = 12
FRAMES = 8
FOLLOWED = 8
_ID = re.compile(r"^(worker-[0-9a-f]{8})[0-9a-f]{20,}")
_NO_NUMBER = re.compile(r"\b(?:nan|inf|infinite|not a number|not finite|non-finite)\b", re.IGNORECASE)
OTHERS = 8
SEEN = 4  # places of one error
SOON = 0.1  # seconds
QUOTED = 100  # characters of one error in another
CAUGHT = "errors that a program catches itself leave no crash: devkit run --count-caught counts them"
UNCOUNTED = "what the program caught in an except clause was not counted: devkit run --count-caught counts it"


def page(left: Left, found: FirstError, cwd: str | None = None) -> Text:
    """What a person reads."""
    from rich.text import Text

    head, found = redact.text(title(left.job)), _without_secrets(found)
    if found.cause is None:
        return Text("\n").join([*_without_error(left, head, cwd), *_notes(left)])
    heading = "no error was found" if _is_end_alone(found.cause) else "first error"
    lines = [Text(head, style="dim"), Text(), *_cause(left, found.cause, heading, cwd)]
    if left.job.is_untold:
        lines += [Text(), Text("its driver has ended; Ray does not record how", "dim")]
    elif left.job.status == "SUCCEEDED":
        lines += [Text(), Text("the job succeeded because its driver exited without an error", "dim")]
    lines += _doubts(left, found, found.cause) if heading == "first error" else ()
    for other in found.others[:OTHERS]:
        is_known = _is_in_place_of(other, found.cause) and any(
            each.get("remade") for each in _snapshots(left, found.cause)
        )
        lines += [Text(), *_cause(left, other, _how_near(found.cause, other), cwd, but=("remade",) if is_known else ())]
    if more := found.others[OTHERS:]:
        lines += [Text(), Text(f"and {count(len(more), 'more error')} at the same time: see --json", style="dim")]
    if found.ended is not None:
        heading = "later, in its driver" if left.job.status == "SUCCEEDED" else "its driver failed by"
        lines += [Text(), *_cause(left, found.ended, heading, cwd)]
    lines += [*_followed(found.followed, cwd, others=bool(found.others or found.ended)), *_logged(found, cwd)]
    rows = [each for each in swallowed(left.caught, cwd) if not _is_told_of(each, left, found.cause, cwd)]
    if rows:
        lines += [Text(), Text(swallowed_heading(rows)), *_swallowed(rows)]
    if given := warned(left.files):
        lines += [
            Text(),
            Text(_warned_heading(found.cause)),
            *(Text(f"  {line}", "dim") for line in warning_lines(given, cwd)),
        ]
    return Text("\n").join([*lines, *_notes(left)])


def _without_error(left: Left, head: str, cwd: str | None) -> Iterator[Text]:
    """What it was warned of, and what it caught itself: that may be the error that was not found."""
    from rich.text import Text

    given, rows = warned(left.files), swallowed(left.caught, cwd)
    itself, caught = swallowed_heading(rows), list(_swallowed(rows))
    told = warnings_heading(given) if given else itself if caught else ""
    yield Text(f"no error was found in {head}{f', but {told}' if told else ''}", style="bold")
    yield from (Text(f"  {line}", "dim") for line in warning_lines(given, cwd))
    if given and caught:
        yield Text(itself)
    yield from caught
    if left.is_uncounted:
        yield Text(UNCOUNTED, "dim")


def _swallowed(rows: Sequence[Row]) -> Iterator[Text]:
    from rich.text import Text

    yield from (Text(f"  {line}", "dim") for line in swallowed_lines(rows))


def _is_told_of(row: Row, left: Left, cause: Problem, cwd: str | None) -> bool:
    """Whether the first error says itself how many others failed likewise at its line."""
    at = cause.at
    if not row.is_kept or at is None or row.at != f"{short_path(at.file, cwd)}:{at.line}":
        return False
    likewise = f"likewise at {os.path.basename(at.file)}:{at.line} in "
    return any(likewise in line for line in _clues(left, cause))


def _doubts(left: Left, found: FirstError, cause: Problem) -> Iterator[Text]:
    """What may have been before it, and has left no trace."""
    from rich.text import Text

    # A driver may have caught what went wrong before, somewhere else.
    is_signal = any(name in cause.best.raised.message for name in (BY_SIGTERM, *SIGNALS))
    if cause.role == DRIVER and not found.others and not is_signal and not swallowed(left.caught):
        yield from (Text(), Text(CAUGHT, "dim"))


def _how_near(cause: Problem, other: Problem) -> str:
    """Of which nobody can say whether it was first: clocks of nodes differ."""
    if _is_in_place_of(other, cause):
        return "Ray raised in its place"
    is_one_clock = cause.process[0] == other.process[0] != "" and cause.time is not None and other.time is not None
    if not is_one_clock or (seconds := (other.time or 0.0) - (cause.time or 0.0)) < SOON:
        return "at the same time"
    return f"{seconds:.1f} s later"


def _is_in_place_of(other: Problem, cause: Problem) -> bool:
    """Whether it is what Ray raises for an exception that could not be unpickled."""
    raised, said = cause.best.raised, other.best.raised.message
    return is_unpickled(said) and bool(raised.message) and raised.message[:QUOTED] in said


def _followed(followed: Sequence[Followed], cwd: str | None, *, others: bool) -> Iterator[Text]:
    from rich.text import Text

    if not followed:
        return
    total = sum(each.count for each in followed)
    came = "" if any(each.why == UNTIMED for each in followed) else " followed"
    yield from (Text(), Text(f"{count(total, 'more error' if others or not came else 'error')}{came}:"))
    for each in followed[:FOLLOWED]:
        who = f" in {', '.join(each.roles[:4])}{' ...' if len(each.roles) > 4 else ''}" if each.roles else ""
        why = each.why if each.why in PLAINLY else f"consequence of {each.why}"
        why += f", {WHEN}" if each.late else ""
        yield Text(f"  {each.count} x {_short(short_places(each.said, cwd))}{who}  ({why})", style="dim")
    if len(followed) > FOLLOWED:
        yield Text(f"  and {count(len(followed) - FOLLOWED, 'more kind')}", style="dim")


def _logged(found: FirstError, cwd: str | None) -> Iterator[Text]:
    """One line for each type and place."""
    from rich.text import Text

    own = _of_the_cause(found)
    if own:
        logs = "its log has" if all(each.process == own[0].process for each in own) else "the logs have"
        yield from (Text(), Text(f"of this {logs}:"), Text(f"  {_logged_line(own, found, cwd)}", style="dim"))
    groups: dict[tuple[object, ...], list[Problem]] = {}
    for each in found.logged:
        if each not in own:
            groups.setdefault((each.best.raised.type, each.at), []).append(each)
    if groups:
        yield from (Text(), Text("in the logs alone, as of errors that a program catches itself:"))
    for group in list(groups.values())[:FOLLOWED]:
        yield Text(f"  {_logged_line(group, found, cwd)}", style="dim")
    if len(groups) > FOLLOWED:
        yield Text(f"  and {count(len(groups) - FOLLOWED, 'more kind')}", style="dim")


def _of_the_cause(found: FirstError) -> list[Problem]:
    """What the first error quotes, as its log has it, and the same at that place in other processes of its kind."""
    own = [each for each in found.logged if _is_in(each, found.cause)]
    if not own:
        return []
    same = {(each.best.raised.said, each.at, each.role) for each in own}
    return [each for each in found.logged if (each.best.raised.said, each.at, each.role) in same]


def _is_in(logged: Problem, cause: Problem | None) -> bool:
    """Whether it is what the first error quotes: an argument that could not be unpickled, say, and why."""
    if cause is None or logged.process != cause.process:
        return False
    return logged.best.raised.said in cause.best.raised.message


def _logged_line(group: Sequence[Problem], found: FirstError, cwd: str | None) -> str:
    first = group[0]
    at = f" at {short_path(first.at.file, cwd)}:{first.at.line} in {first.at.function}" if first.at else ""
    before = first.time and found.cause and found.cause.time and first.time < found.cause.time
    when = "  (before it)" if before and not _is_in(first, found.cause) else ""
    many = f"{len(group)} x " if len(group) > 1 else ""
    return f"{many}{_short(first.best.raised.said)}{at}{when}"


def _warned_heading(cause: Problem) -> str:
    """With the way from a number that is none to where it may come from, as weights go from one process to others."""
    is_of_numbers = _NO_NUMBER.search(cause.best.raised.message) is not None
    return f"warned in this job{', where what is not a number may come from' if is_of_numbers else ''}:"


def _is_end_alone(problem: Problem) -> bool:
    """Whether nothing is known but that the driver failed; a signal like SIGSEGV is an error by itself."""
    is_alone = all(each.source == "job" and not each.raised.type for each in problem.events)
    return is_alone and not any(name in problem.best.raised.message for name in SIGNALS)


def _without_secrets(found: FirstError) -> FirstError:
    """What programs said, redacted as a whole before any line or word of it is taken."""
    return replace(
        found,
        cause=found.cause and _told(found.cause),
        others=tuple(map(_told, found.others)),
        followed=tuple(replace(each, said=redact.text(each.said)) for each in found.followed),
        logged=tuple(map(_told, found.logged)),
        ended=found.ended and _told(found.ended),
    )


def _told(problem: Problem) -> Problem:
    said = (replace(each.raised, message=redact.text(each.raised.message)) for each in problem.events)
    return replace(problem, events=tuple(replace(e, raised=r) for e, r in zip(problem.events, said, strict=True)))


def _cause(left: Left, problem: Problem, heading: str, cwd: str | None, but: tuple[str, ...] = ()) -> list[Text]:
    """`but`: the clues of which another error tells."""
    from rich.text import Text

    best = problem.best
    said = f"{best.raised.said}{_left_for(left, problem)}"
    lines = [Text.assemble((f"{heading}: ", "bold"), (short_places(said, cwd), "bold red"))]
    lines += [Text(f"  {line}") for line in best.raised.more[: MESSAGE_LINES - 1]]
    where = [
        f"{called(problem)}".strip(),
        f"pid {problem.process[1]}" if problem.process[1] else "",
        problem.process[0],
    ]
    at = problem.at
    if at is not None:
        lines.append(Text(f"  at {short_path(at.file, cwd)}:{at.line} in {at.function}"))
    when = time.strftime("%H:%M:%S", time.localtime(problem.time)) if problem.time else ""
    often = f"{problem.times} times" if problem.times > 1 else ""
    lines.append(Text(f"  {' · '.join(part for part in (*where, when, often) if part)}", style="dim"))
    frames = next((each.raised.frames for each in problem.events if each.raised.frames), ())
    shown = [frame for frame, _ in groupby(trim(tuple(frames))) if not is_library(frame.file)][:FRAMES]
    lines += [
        Text(f"    {short_path(each.file, cwd)}:{each.line} in {each.function}", style="dim") for each in shown[1:]
    ]
    known = _known(left, problem)
    lines += [Text(f"  {line}", style=CAUTION) for line in _clues(left, problem, but)]
    lines += [Text(f"  {line}", style="dim") for line in known]
    seen = _briefly(_seen(problem))
    more = f" and {len(seen) - SEEN} more" if len(seen) > SEEN else ""
    lines.append(Text(f"  seen in {', '.join(seen[:SEEN])}{more}", style="dim"))
    crash = next((each.id for each in problem.events if each.id and each.raised.frames), "")
    if crash and not known:  # of a process that ended without a word there are none
        lines.append(Text(f"  variables: devkit crashes show {crash}", style="dim"))
    return lines


def _left_for(left: Left, problem: Problem) -> str:
    """What was being handled when the program called `sys.exit`: that is the error in truth."""
    mine = (each for each in _snapshots(left, problem) if each["id"] == problem.best.id)
    handled = next((str(each.get("handled") or "") for each in mine), "")
    return f", {left_for(redact.text(handled))}" if handled else ""


def _known(left: Left, problem: Problem) -> list[str]:
    """Of a process that ended without a word."""
    mine = _snapshots(left, problem)
    return [redact.text(line) for each in mine for line in told_of(each, left.crashes)]


def _clues(left: Left, problem: Problem, but: tuple[str, ...] = ()) -> list[str]:
    """What a snapshot says beside its frames."""
    mine = [{**each, **dict.fromkeys(but)} for each in _snapshots(left, problem)]
    first = next((each for each in mine if each.get("again")), None)  # what each try had done differs in numbers alone
    once = [each if each is first else {**each, "again": ""} for each in mine]
    return list(dict.fromkeys(redact.text(line) for each in once for line in clues_of(each)))


def _snapshots(left: Left, problem: Problem) -> list[Mapping[str, Any]]:
    ids = {each.id for each in problem.events if each.id}
    return [each for each in left.crashes if each["id"] in ids]


def _notes(left: Left) -> list[Text]:
    from rich.text import Text

    return [Text(), *(Text(f"note: {redact.text(n)}", style=CAUTION) for n in left.notes)] if left.notes else []


def _short(said: str, width: int = 100) -> str:
    return said if len(said) <= width else said[: width - 1] + "…"


def _seen(problem: Problem) -> list[str]:
    return list(dict.fromkeys(each.where for each in problem.events if each.where))


def _briefly(seen: Sequence[str]) -> list[str]:
    """A worker's file by the beginning of its id, with all its lines.

    >>> name = "worker-" + "ab12" * 14 + "-01000000-42.err"
    >>> _briefly(["devkit's snapshot c5", f"{name}:7", f"{name}:3"])
    ["devkit's snapshot c5", 'worker-ab12ab12…-01000000-42.err:3,7']
    """
    places: dict[str, list[str]] = {}
    for each in seen:
        file, _, line = each.rpartition(":")
        is_line = bool(file) and line.isdigit()
        known = places.setdefault(_ID.sub(r"\1…", file if is_line else each), [])
        known += [line] if is_line else []
    return [f"{file}:{','.join(sorted(lines, key=int))}" if lines else file for file, lines in places.items()]


def record(left: Left, found: FirstError, bundle: str = "") -> FirstErrorDocument:
    """The document of `--json`."""
    found = _without_secrets(found)
    return {
        "job_id": left.job.job_id,
        "submission_id": left.job.submission_id,
        "status": left.job.status,
        "cause": cause_record(left, found.cause) if found.cause else None,
        "sure": found.sure,
        "others": [cause_record(left, each) for each in found.others],
        "followed": [{"said": e.said, "why": e.why, "count": e.count, "roles": list(e.roles)} for e in found.followed],
        "logged": [cause_record(left, each) for each in found.logged],
        "ended": cause_record(left, found.ended) if found.ended else None,
        "warned": [
            {
                "kind": each.kind,
                "message": redact.text(each.said),
                "file": each.file,
                "line": each.line,
                "who": list(each.roles),
            }
            for each in warned(left.files)
        ],
        "caught": [_caught_record(row) for row in swallowed(left.caught)],
        "notes": [redact.text(note) for note in left.notes],
        "bundle": bundle,
    }


def _caught_record(row: Row) -> SwallowedError:
    return {
        "said": redact.text(row.said),
        "count": row.times,
        "at": row.at,
        "by": row.by,
        "who": [label(each) for each in row.members],
    }


def cause_record(left: Left, problem: Problem) -> ErrorCause:
    best, at = problem.best, problem.at
    frames = next((each.raised.frames for each in problem.events if own_frame(each.raised)), ())
    return {
        "type": best.raised.type,
        "message": best.raised.message,
        "file": at.file if at else "",
        "line": at.line if at else 0,
        "function": at.function if at else "",
        "frames": [{"file": each.file, "line": each.line, "function": each.function} for each in frames],
        "role": problem.role,
        "rank": problem.rank,
        "node_ip": problem.process[0],
        "pid": problem.process[1],
        "time": problem.time,
        "seen": _seen(problem),
        "known": _known(left, problem),
        "clues": _clues(left, problem),
        "crash": next((each.id for each in problem.events if each.id), ""),
    }
