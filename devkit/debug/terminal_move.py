"""The commands that let the program run: steps, continue, wait; and the breakpoints that stop it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import PurePath

from devkit.debug.dap_peer import Request
from devkit.debug.naming import short_path
from devkit.debug.protocols import Document
from devkit.debug.terminal_commands import Location, location
from devkit.debug.terminal_look import show_position, wrong
from devkit.debug.terminal_session import Member, Session
from devkit.debug.terminal_source import line_in_function
from devkit.errors import UsageError

STEP_SECONDS = 10.0
STOP_SECONDS = 24 * 3600.0  # `c` waits for the next stop until Ctrl-C, or until nobody can type any more
GRACE_SECONDS = 2.0  # after the first of several has stopped, the others get this long to come to theirs


def step(request: str) -> Callable[[Session, str], None]:
    """`n`, `s` and `r`: all ranks at once, then wait for all."""

    def run(session: Session, _argument: str = "") -> None:
        moved = start(session, session.stopped(), request)
        session.peers.wait(lambda: not running(moved), STEP_SECONDS)
        report(session, moved)

    return run


def go_on(session: Session, _argument: str = "") -> None:
    moved = start(session, session.stopped(), "continue")
    if moved and not session.ended():
        session.screen.notice(f"{session.name(moved)} running; Ctrl-C returns to the prompt")
    wait_for_stop(session, moved)


def wait(session: Session, _argument: str = "") -> None:
    """Waits for what still runs."""
    still = running(session.chosen())
    if not still:
        raise UsageError("no rank is running", hint="type w to see where they are")
    wait_for_stop(session, still)


def start(session: Session, members: Sequence[Member], request: str) -> list[Member]:
    """Lets them go, all at once; those that were refused stay where they are."""
    for one in members:
        # Before the answer: the next stop may be told earlier than that.
        one.state = "running"
    moved = []
    for one, reply in session.ask(members, request, lambda one: {"threadId": one.thread_id, "singleThread": True}):
        if reply.error is None or one.state == "gone":
            moved.append(one)
            continue
        one.state = "stopped"
        session.answer([(one, wrong(reply.error))])
    return moved


def running(members: Sequence[Member]) -> list[Member]:
    return [one for one in members if one.state == "running"]


def wait_for_stop(session: Session, members: Sequence[Member]) -> None:
    """Until one of them stops, or all are gone, or nobody is there to be told."""

    def has_news() -> bool:
        return bool(session.newcomers) or not all(one.state == "running" for one in members)

    session.peers.wait(lambda: has_news() or session.ended(), STOP_SECONDS)
    if has_news() and running(members):
        session.peers.wait(lambda: not running(members), GRACE_SECONDS)
    report(session, members)


def report(session: Session, members: Sequence[Member]) -> None:
    """Where they are now, and who has not come back."""
    stopped = [one for one in members if one.state == "stopped"]
    show_position(session, stopped)
    clear_once(session, stopped)
    late = running(members)
    if late and not session.ended():
        verb = "is" if len(late) == 1 else "are"
        session.screen.notice(f"{session.name(late)} {verb} still running: type wait to wait, or q to leave it running")


def set_breakpoint(session: Session, argument: str) -> None:
    if not argument:
        _list_breakpoints(session)
        return
    _add(session, argument, once=False)


def set_once(session: Session, argument: str) -> None:
    _add(session, argument, once=True)


def _add(session: Session, argument: str, *, once: bool) -> None:
    wanted = location(argument)
    members = session.with_frames(session.stopped())
    path, line = _aim(session, members, wanted)
    numbers = [int(one["number"]) for one in session.breakpoints]
    added = {
        "number": max(numbers, default=0) + 1,
        "path": path,
        "line": line,
        "function": "" if line else wanted.function,
        "condition": wanted.condition,
        "once": once,
    }
    problem = _send(session, path, [*session.breakpoints, added])
    if problem:
        raise UsageError(f"no breakpoint at {_spot(added)}: {problem}", hint="type l for the code around it")
    session.breakpoints.append(added)
    session.screen.say(f"breakpoint {added['number']} at {_spot(added)}")


def _aim(session: Session, members: Sequence[Member], wanted: Location) -> tuple[str, int]:
    """File and line of a breakpoint; nothing for a function that is not in the file that is looked at."""
    path = _path(members, wanted.file)
    if not wanted.function:
        return path, wanted.line
    line = line_in_function(session.source(members[0], members[0].frame), wanted.function)
    return (path, line) if line else ("", 0)


def _path(members: Sequence[Member], named: str) -> str:
    """The file as the workers call it: the current one, or the one in the stack that has this name."""
    if not members:
        raise UsageError("no rank is stopped here", hint="type q to quit")
    if not named:
        return members[0].frame.path
    for frame in members[0].frames:
        if PurePath(frame.path).match(named):
            return frame.path
    return named


def _spot(one: Document) -> str:
    text = str(one["function"] or f"{short_path(one['path'])}:{one['line']}")
    text += " (once)" if one["once"] else ""
    return f"{text} if {one['condition']}" if one["condition"] else text


def _send(session: Session, path: str, every: Sequence[Document]) -> str:
    """Tells all workers the breakpoints of one file, or the functions'; what they object to in the last one."""
    mine = [one for one in every if one["path"] == path]
    command = "setBreakpoints" if path else "setFunctionBreakpoints"
    where = "line" if path else "name"
    sent = [
        {where: one["line"] if path else one["function"]}
        | ({"condition": one["condition"]} if one["condition"] else {})
        for one in mine
    ]
    body = {"breakpoints": sent} | ({"source": {"path": path}} if path else {})
    replies = session.peers.gather(
        {peer: Request(peer, command, body) for peer in session.controls().values()}, session.seconds
    )
    errors = [reply.error for reply in replies.values() if reply.error is not None]
    answered = [reply.body.get("breakpoints") or [{}] for reply in replies.values() if reply.error is None]
    refused = [last[-1].get("message") or "refused" for last in answered if last[-1].get("verified") is False]
    # A line that is not loaded yet in one worker may be in another: one that took it is enough.
    return "" if mine == [] or len(refused) + len(errors) < len(replies) else str((errors + refused)[0])


def _list_breakpoints(session: Session) -> None:
    if not session.breakpoints:
        raise UsageError("no breakpoint was set here", hint="devkit break --list shows all breakpoints of the job")
    for one in session.breakpoints:
        session.screen.say(f"{one['number']}  {_spot(one)}")


def clear(session: Session, argument: str) -> None:
    numbers = [int(part) for part in argument.split()]
    known = [one["number"] for one in session.breakpoints]
    unknown = [number for number in numbers if number not in known]
    if unknown or not known:
        raise UsageError(
            f"no breakpoint {unknown[0]!r}" if unknown else "no breakpoint was set here", hint="type b for the list"
        )
    _remove(session, [one for one in session.breakpoints if not numbers or one["number"] in numbers])


def _remove(session: Session, removed: Sequence[Document]) -> None:
    session.breakpoints = [one for one in session.breakpoints if one not in removed]
    for path in {str(one["path"]) for one in removed}:
        _send(session, path, session.breakpoints)
    for one in removed:
        session.screen.say(f"breakpoint {one['number']} removed")


def clear_once(session: Session, stopped: Sequence[Member]) -> None:
    """A breakpoint of `tbreak` is gone when somebody stands at it."""
    at = {(one.frame.path, one.frame.line) for one in stopped if one.frames}
    spent = [one for one in session.breakpoints if one["once"] and (one["path"], one["line"]) in at]
    if spent:
        _remove(session, spent)


MOVE: dict[str, Callable[[Session, str], None]] = {
    "next": step("next"),
    "step": step("stepIn"),
    "return": step("stepOut"),
    "continue": go_on,
    "wait": wait,
    "break": set_breakpoint,
    "tbreak": set_once,
    "clear": clear,
}
