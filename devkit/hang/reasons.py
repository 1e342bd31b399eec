"""What keeps a process where it waits or sleeps, as far as that can be seen in it: a sentence's tail. Pure."""

from __future__ import annotations

from collections.abc import Container

from devkit.debug.inworker.caught import TASK
from devkit.debug.inworker.counterparts import MOST as MOST_ENDS
from devkit.debug.inworker.swallowing import OF_TASKS
from devkit.debug.inworker.words import CONNECTION, QUEUED
from devkit.debug.naming import count, short_path
from devkit.debug.stack_groups import LOOP_THREAD
from devkit.hang import lines
from devkit.hang.facts import Ended, InnerWait
from devkit.hang.standing import Line
from devkit.hang.states import State, inner_wait
from devkit.hang.words import at_frame, for_what, name

_TELLING = (CONNECTION, QUEUED)  # why a wait of the kind does not end


def cause(state: State) -> str:
    """The background task that has failed, where that is what would end the wait: before what the process does."""
    inner = inner_wait(state)
    by = {end.function for line in _lines_at(state, inner) if line.ends for end in line.ends.at} if inner else set()
    each = next((each for each in state.facts.ended if each.kind == "task" and each.name in by), None)
    if each is None:
        return _gone(state, by)
    what = f"the background task {each.name}" if each.count == 1 else f"{each.count} background tasks {each.name}"
    return f"{what} of {name(state)}{failed(each, in_all(state, each))}; "


def _gone(state: State, by: set[str]) -> str:
    """The background task that was cancelled, where nothing else in the file would end what is waited for."""
    line = _known_ends(state)
    if line is None or line.ends is None:
        return ""
    over = [each for each in state.facts.ended if each.kind == "cancelled" and each.name in by and not each.open]
    # Of several, one item's each, the one that would do what is waited for may have ended otherwise.
    gone = [each for each in over if each.count == 1 or line.ends.how.startswith("worked off")]
    if {each.name for each in gone} != by or _stand_in(state, by):
        return ""
    text = " and ".join(f"{each.name}{_made(each)}" for each in gone)
    were = "s" if len(gone) > 1 else "", "were" if len(gone) > 1 else "was"
    only = f"and nothing else in {short_path(line.at.file)} would have {line.ends.what} {line.ends.how}"
    return f"the background task{were[0]} {text} of {name(state)} {were[1]} cancelled, {only}; "


def _known_ends(state: State) -> Line | None:
    """The line at which it waits, if all lines of its file are known that would end that: any task may have kept what
    is to be released, and of many such lines some are left out.
    """
    inner = inner_wait(state)
    found = next((each for each in _lines_at(state, inner) if each.ends), None) if inner else None
    if found is None or found.ends is None or found.ends.how == "released":
        return None
    return found if 0 < len(found.ends.at) < MOST_ENDS else None


def _made(task: Ended) -> str:
    return f" (made at {short_path(task.at.file)}:{task.at.line})" if task.at else ""


def _stand_in(state: State, functions: Container[str]) -> bool:
    return any(line.at.function in functions for stack in state.facts.standing for line in stack.lines)


def _blamed(state: State) -> list[Ended]:
    """The background tasks that have failed and may be why it waits: not one that, as the file stands, comes to none of
    the lines that would end the wait, where nothing that waits comes to these either.
    """
    tasks = [each for each in state.facts.ended if each.kind == "task"]
    line = _known_ends(state) if tasks else None
    if line is None or line.ends is None:
        return tasks
    by = {end.function for end in line.ends.at}
    last = {each.rpartition(".")[2] for each in by}
    if _stand_in(state, by):
        return tasks
    return [each for each in tasks if each.file != line.at.file or not each.reaches.isdisjoint(last)]


def aside(state: State) -> tuple[str, ...]:
    """Of the background tasks that have failed and are not blamed."""
    blamed = _blamed(state)
    rest = [each for each in state.facts.ended if each.kind == "task" and each not in blamed]
    tasks = [each for each in rest if not in_all(state, each)]  # else said of the error that the task keeps
    whats = ("its background task" if each.count == 1 else f"{each.count} of its background tasks," for each in tasks)
    return tuple(
        f"{name(state)}: {what} {each.name}{',' * (each.count > 1)}{failed(each, in_all(state, each))}"
        for each, what in zip(tasks, whats, strict=True)
    )


def in_all(state: State, task: Ended) -> int:
    """How many tasks have failed at its line, also those that are gone by now and of which the program kept none."""
    kept = (each for each in state.facts.caught if each.at == task.at and each.by.function == TASK)
    return sum(each.count for each in kept if each.by.file.endswith(OF_TASKS))


def failed(task: Ended, many: int = 0) -> str:
    """Of one background task, or of several of one name that failed at one line; `many`: tasks that have in all.

    >>> failed(Ended("task", "feed", "KeyError: 'a'"))
    " has failed, and nobody has awaited it: KeyError: 'a'"
    >>> failed(Ended("task", "feed", "KeyError: 'a'", count=4))
    " have failed, no other of that name is under way, and nobody has awaited them: KeyError: 'a'"
    >>> failed(Ended("task", "feed", "KeyError: 'a'", count=2, alike=False, open=1))
    " have failed (1 other of that name is not done), and nobody has awaited them: one by KeyError: 'a'"
    """
    has, it = ("has", "it") if task.count == 1 else ("have", "them")
    rest = ", no other of that name is under way" if task.count > 1 else ""
    if task.open:
        rest = f" ({count(task.open, 'other')} of that name {'is' if task.open == 1 else 'are'} not done)"
    one = "" if task.alike else "one by "
    more = f", where {many} tasks have failed in all" if many > task.count and task.at else ""
    return f" {has} failed{rest}, and nobody has awaited {it}: {one}{task.said}{at_frame(task.at)}{more}"


def ended(state: State) -> str:
    """What of a process that waits has ended: it may be what it waits for."""
    tasks = _blamed(state)
    if tasks:
        first = tasks[0]
        what = "its background task" if first.count == 1 else f"{first.count} of its background tasks,"
        too = "; others of its background tasks have failed, too" if len(tasks) > 1 else ""
        return f"; {what} {first.name}{',' * (first.count > 1)}{failed(first, in_all(state, first))}{too}"
    known = next((each for each in state.facts.ended if each.said and each.kind != "task"), None)
    if known and known.kind == "part":
        return f"; {known.name} has failed meanwhile: {known.said}{at_frame(known.at)}"
    if known:
        return f"; its thread {known.name} ended with {known.said}{at_frame(known.at)}"
    threads = [each.name for each in state.facts.ended if each.kind == "thread"]
    return f"; its thread{'s' * (len(threads) > 1)} {', '.join(threads)} ended before" if threads else ""


def why(state: State, *, clear: bool = False) -> str:
    """What keeps a process that waits or sleeps where it is, as far as that can be seen in it.

    `clear`: it is known who would end the wait, so that nobody has to be suspected to have kept something.
    """
    if state.doing == "sleep":
        around = state.about or _callers_loop(state)
        return (f", in the loop {around}" if around else "") + _handles(state) + held_up(state)
    if state.doing == "lock":
        return _locked(state)
    inner = inner_wait(state) if state.doing == "wait" else None
    if inner is None:
        return held_up(state) if state.doing == "io" else ""
    slots = state.facts.concurrency
    if 1 < slots <= inner.count - inner.side and not inner.holder and not state.facts.grouped:
        rest = "the others cannot come" if "Barrier" in inner.what else "no other call can begin"
        return f"; all {slots} calls that it takes at once (max_concurrency) are there, so {rest}{_kept(inner, clear)}"
    whom = "threads" if inner.side == inner.count else "calls" if not inner.side else "calls and threads"
    more = f"; {inner.count} of its {whom} wait there" if inner.count > 1 else ""
    more += _met(state)
    return f"{more}{_holder(inner, clear)}{_of_its_parts(state, inner)}{_blocked_loop(state, inner)}"


def _locked(state: State) -> str:
    """Which thread holds the lock, for what that one waits, and whether who could end that wants the lock, too."""
    wait = next((each for each in state.facts.locks if each.at == state.place), state.facts.locks[0])
    inner = next((each for each in state.facts.inner if each.thread == wait.holder), None)
    if wait.what:
        waits = f"; that one waits for {inner.what}{at_frame(inner.at)}" if inner else ""
        return f"; that is {for_what(wait)}{waits}"
    if not wait.holder or inner is None:
        return ""
    text = f"; thread {wait.holder} holds it, and waits for {inner.what}{at_frame(inner.at)}"
    others = [each for each in state.facts.locks if each.lock == wait.lock and each.thread != wait.holder]
    ends = {end.function for line in _lines_at(state, inner) if line.ends for end in line.ends.at}
    also = next((each for each in others if each.at.function in ends), None)
    if also is None:
        return text
    return f"{text}; thread {also.thread}, which would end that, waits for the same lock{at_frame(also.at)}"


def _lines_at(state: State, inner: InnerWait) -> list[Line]:
    return [line for stack in state.facts.standing for line in stack.lines if line.at == inner.at]


def _met(state: State) -> str:
    """Of those that wait for a predicate, how many have it, and wait to be woken up."""
    stacks = lines.at_place(state)
    many = sum(stack.lines[0].met for stack in stacks)
    if not many:
        return ""
    of = f" for {many} of them" if len(stacks) > 1 else ""
    return f"; the predicate holds now{of}, and who waits has not been woken up since"


def _blocked_loop(state: State, inner: InnerWait) -> str:
    """Another thread of it whose event loop can't go on: what is waited for may be for that loop to do."""
    each = next((each for each in state.facts.inner if each.blocks and each is not inner), None)
    if each is None:
        return ""
    return f"; thread {each.thread} waits for {each.what}{at_frame(each.at)}, which blocks its event loop"


def _callers_loop(state: State) -> str:
    """That of who has called the function that sleeps."""
    callers = [line for stack in lines.at_place(state)[:1] for line in stack.lines[1:]]
    line = next((each for each in callers if each.loop.startswith("while ") and each.looked_at), None)
    if line is None:
        return ""
    return f"`{line.loop}` ({', '.join(f'{name} = {value}' for name, value in line.looked_at)})"


def _handles(state: State) -> str:
    """The exception that it has caught before it slept: it may try again for ever."""
    found = (stack.lines[0] for stack in lines.at_place(state))
    error = next((line.handles for line in found if line.handles), None)
    return f", handling {error.said}{at_frame(error.at)}" if error else ""


def _of_its_parts(state: State, inner: InnerWait) -> str:
    """For what those calls wait that one waits for together, where that is known."""
    telling = (each for each in state.facts.inner if each.holder or each.free or each.what.startswith(_TELLING))
    below = [each for each in telling if each is not inner]
    if not inner.what.startswith(("asyncio.gather", "asyncio.wait")) or len(below) != 1:
        return ""
    each = below[0]
    them = f"{each.count} of its calls wait" if each.count > 1 else "one of its calls waits"
    return f"; {them} for {each.what}{at_frame(each.at)}{_holder(each)}"


def _kept(inner: InnerWait, clear: bool) -> str:
    return "" if clear else lines.kept(inner)


def _holder(inner: InnerWait, clear: bool = False) -> str:
    """Who keeps a lock or a semaphore, or that nobody does who is there."""
    if inner.holder:
        return f"; {inner.holder_call} holds it{at_frame(inner.held_at)}"
    return _kept(inner, clear)


def held_up(state: State) -> str:
    """Of a coroutine that blocks its event loop."""
    if not state.facts.stack.thread.startswith(LOOP_THREAD) or state.doing not in ("sleep", "io"):
        return ""
    others = f", where {count(state.facts.coroutines, 'call')} wait{'s' * (state.facts.coroutines == 1)}"
    return f"; that blocks the event loop of its actor{others if state.facts.coroutines else ''}"


__all__ = ["aside", "cause", "ended", "failed", "held_up", "why"]
