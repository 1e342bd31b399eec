"""Ranks that wait for environments of their conversations: whose, in which call, and at which line that is. Pure."""

from __future__ import annotations

from dataclasses import replace

from devkit.debug.inworker.words import plain
from devkit.debug.naming import is_library
from devkit.debug.stack_groups import Frame
from devkit.hang import words
from devkit.hang.case import Case
from devkit.hang.facts import EnvironmentWait
from devkit.hang.records import Verdict
from devkit.hang.states import State

LONG_SECONDS = 1.0  # an answer that takes so long is told
MOST = 2  # ranks that are told
_OWN = ("/trainer/agent/inside.py", "/trainer/agent/contract.py", "/trainer/agent/homes.py", "/trainer/agent/loop.py")


def explain(found: Verdict, case: Case) -> Verdict:
    """Of ranks that wait for an environment: its row and turn, and where it stands."""
    waiting = [state for state in case.states if _oldest(state) is not None]
    if not waiting:
        return found
    waiting.sort(key=lambda state: -state.facts.environments[0].seconds)
    said = "".join(f"; {_told(case, state)}" for state in waiting[:MOST])
    home = _home(case, waiting[0])
    place = _place(home)
    blamed = (waiting[0].facts.pid, home.facts.pid if home else 0)
    is_ours = found.culprit is None or found.culprit.pid in blamed
    if home is not None and place is not None and found.hang and is_ours:
        return replace(found, sentence=found.sentence + said, culprit=words.culprit(home, place))
    return replace(found, sentence=found.sentence + said)


def _oldest(state: State) -> EnvironmentWait | None:
    return next((each for each in state.facts.environments if each.seconds >= LONG_SECONDS), None)


def _told(case: Case, state: State) -> str:
    wait, count = state.facts.environments[0], len(state.facts.environments)
    home = _home(case, state)
    sample = f", sample {wait.sample}" if wait.sample else ""
    turn = f", turn {wait.turn}" if wait.turn else ""
    many = f" {count} environments, longest for" if count > 1 else ""
    pid = f" (pid {wait.pid})" if wait.pid else ""
    where = words.at_frame(_place(home))
    text = (
        f"{words.name(state)} waits for{many} that of {plain(wait.row)}{sample}{turn}: its {wait.what} has not returned"
    )
    text = text if many else text.replace("for that of", "for the environment of")
    return f"{text} for {words.span(wait.seconds)}{pid}{where}; {_limit(wait)}"


def _limit(wait: EnvironmentWait) -> str:
    if not wait.pid:
        return "it lives in the rank's process, where no deadline ends it"
    return (
        "agent.turn_timeout is null: nothing ends it" if wait.limit is None else f"agent.turn_timeout={wait.limit:g} s"
    )


def _home(case: Case, state: State) -> State | None:
    """The process in which the oldest one lives."""
    pid, node = state.facts.environments[0].pid, state.facts.node_ip
    if not pid:
        return state
    return next((each for each in case.states if (each.facts.pid, each.facts.node_ip) == (pid, node)), None)


def _place(home: State | None) -> Frame | None:
    """The innermost line of the environment's own code."""
    frames = home.facts.stack.stack if home is not None else ()
    own = (each for each in frames if not is_library(each.file))
    found = next(own, None)
    return None if found is None or found.file.endswith(_OWN) else found
