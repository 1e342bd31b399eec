"""Processes that wait for children which they have forked, where those can never go on. Pure.

A fork copies memory and one thread. What another thread held is held for ever in the child, and Ray's client, which
lives in threads, does not work there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from devkit.debug.inworker.words import READERS_TURN, UNREAD
from devkit.debug.naming import is_library
from devkit.hang import words
from devkit.hang.case import Case
from devkit.hang.facts import LockWait
from devkit.hang.records import Kind, Verdict
from devkit.hang.states import IN_C, Doing, State

WAITING: frozenset[Doing] = frozenset({"io", "wait", "sleep", "lock"})
EXPLAINED: frozenset[Kind] = frozenset({"io", "stuck", "missing"})
CALLS = ("get", "wait")  # of Ray
_TURN, _IN_C, _UNREAD = "turn", "call of C", "unread"


class Family(NamedTuple):
    """Children that stand at the same place for the same reason, and who has forked them."""

    parent: State
    children: tuple[State, ...]


def families(case: Case) -> list[Family]:
    """The largest first."""
    found: dict[object, list[State]] = {}
    for state in case.states:
        if state.facts.fork is not None and not state.moved and (cause := _cause(case, state)):
            key = (_owner(state), state.place, cause, None if cause == _TURN else state.facts.fork)
            found.setdefault(key, []).append(state)
    parents = {state.facts.id: state for state in case.states}
    known = [
        Family(parents[owner], tuple(children))
        for children in sorted(found.values(), key=len, reverse=True)
        if (owner := _owner(children[0])) in parents
    ]
    return [each for each in known if each.parent.doing in WAITING and not _may_rest(each)]


def _may_rest(family: Family) -> bool:
    """Of children in a call of C beside a parent that sleeps nobody knows that it is for them."""
    return family.parent.doing == "sleep" and family.children[0].about == IN_C


def verdict(case: Case) -> Verdict | None:
    """A parent that waits while its children can't go on."""
    found = families(case)
    if not found:
        return None
    parent, children = found[0]
    others = [each for each in case.states if each.waits_for_others and each.facts.fork is None and each is not parent]
    tail = f"; {words.they(others, 'waits', 'wait')} for {words.name(parent)}" if others else ""
    waits = f"waits{words.at(parent)} for {_told(children)}"
    if parent.doing == "lock":  # which may have nothing to do with them
        waits = f"waits for a lock{words.at(parent)}, and has {_told(children).removeprefix('its ')}"
    text = f"no progress: {words.name(parent)} {waits}{tail}"
    return Verdict("io", text, words.culprit(children[0]), None, words.waits(case.states), case.decided(0.0))


def explain(found: Verdict, case: Case) -> Verdict:
    """Of who is to blame for something else, and waits for such children."""
    if found.kind not in EXPLAINED or found.culprit is None:
        return found
    for parent, children in families(case):
        if (parent.facts.pid, parent.facts.node_ip) == (found.culprit.pid, found.culprit.node_ip):
            return replace(found, sentence=f"{found.sentence}; it waits for {_told(children)}")
    return found


def _owner(state: State) -> str:
    """The id of the process that has forked it."""
    return state.facts.id.rpartition("-")[0]


def _cause(case: Case, state: State) -> str:
    """Why a forked child can't go on; empty where that is not known.

    Who waits for a lock that only now another process or thread could give back is not meant: it has a holder. Who
    waits for its turn is not meant while one of its siblings may have that.
    """
    if state.doing == "lock" and _orphan(state) is not None:
        return "lock"
    if _waits_for_turn(state):
        siblings = [each for each in case.states if each.facts.fork is not None and _owner(each) == _owner(state)]
        return _TURN if all(map(_waits_for_turn, siblings)) else ""
    if _waits_for_shared(state):  # a sibling at work may have it
        siblings = [each for each in case.states if each.facts.fork is not None and _owner(each) == _owner(state)]
        return state.about if all(map(_waits_for_shared, siblings)) else ""
    if state.doing == "wait" and state.about == IN_C:
        return _IN_C
    if state.doing == "wait" and state.about == UNREAD:
        return _UNREAD
    return "ray" if state.doing == "ray" else ""


def _waits_for_turn(state: State) -> bool:
    return state.doing == "wait" and state.about == READERS_TURN and not state.moved


def _waits_for_shared(state: State) -> bool:
    """For a lock: at an event or a semaphore children rest that have nothing to do."""
    is_lock = state.about.startswith("a multiprocessing.") and state.about.endswith("that is taken")
    return state.doing == "wait" and is_lock and not state.moved


def _orphan(state: State) -> LockWait | None:
    return next((each for each in state.facts.locks if each.holder is None), None)


def _told(children: Sequence[State]) -> str:
    first, many = children[0], len(children) > 1
    pids = ", ".join(str(each.facts.pid) for each in children)
    fork = first.facts.fork
    forked = f" (forked{words.at_frame(fork.at)})" if fork is not None and fork.at is not None else ""
    who = f"its {'children pids' if many else 'child pid'} {pids}{forked}"
    return f"{who}, which {_why(first, many)}"


def _why(state: State, many: bool) -> str:
    if _waits_for_turn(state):
        turn = READERS_TURN.replace("its", "their", 1) if many else READERS_TURN
        kept = "no forked child that lives has it; who had it may have ended and kept it, as after a kill"
        return f"{'wait' if many else 'waits'} for {turn}{words.at(state)}: {kept}"
    if _waits_for_shared(state):
        return f"{'wait' if many else 'waits'} for {state.about}{words.at(state)}"
    if state.about == IN_C:
        lacks = "it may be for threads of a native library, such as OpenMP's, which are not in a forked child"
        return f"{'wait' if many else 'waits'} in a call of C{words.at(state)}: {lacks}"
    if state.about == UNREAD:  # at its end, in no line of its own
        whose = UNREAD.replace("it has", "they have") if many else UNREAD
        return f"{'wait at their end' if many else 'waits at its end'} for {whose}"
    orphan = _orphan(state)
    if orphan is None:
        call = next(iter(_calls(state)), "a call of Ray")
        return f"{'stand' if many else 'stands'} in {call}{words.at(state)}: Ray does not work in a forked child"
    waits = f"{'wait' if many else 'waits'} for a lock{words.at_frame(orphan.at)}"
    they, owners = ("they were", "a child") if many else ("it was", "the child")
    then = orphan.then
    held = f", as by thread {then[0]}, which takes it{words.at_frame(then[1])}" if then else ""
    return f"{waits}: it was held when {they} forked{held}, and no thread of {owners} holds it"


def _calls(state: State) -> Iterator[str]:
    """The function of Ray that the program has called."""
    for frame in reversed([each for each in state.facts.stack.stack if is_library(each.file)]):
        name = frame.function.rpartition(".")[2]
        if "/ray/" in frame.file and name in CALLS:
            yield f"ray.{name}"
