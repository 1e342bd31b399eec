"""Ranks whose conversations wait for an environment, an engine or a retriever: for whose, and at which line. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import urlsplit

from devkit.debug.inworker.words import plain
from devkit.debug.naming import is_library
from devkit.debug.stack_groups import Frame
from devkit.hang import words
from devkit.hang.case import Case
from devkit.hang.conversing import EngineWait, EnvironmentWait, Search
from devkit.hang.records import Verdict
from devkit.hang.states import State

LONG_SECONDS = 1.0  # an answer that takes so long is told
MOST = 2  # ranks that are told, of each kind
_OWN = ("/trainer/agent/inside.py", "/trainer/agent/contract.py", "/trainer/agent/homes.py", "/trainer/agent/loop.py")
_CLIENT = "/trainer/retrieval/"  # what an environment asks by


def explain(found: Verdict, case: Case) -> Verdict:
    """What conversations wait for: an environment's row, turn and line, an engine's turns, a retriever's URL and node.

    A wait that is known to have lasted for as long as is waited for such needs no longer look.
    """
    case = replace(case, states=tuple(_remembered(case, state) for state in case.states))
    waiting = sorted((state for state in case.states if _oldest(state)), key=lambda each: -_age(each))
    engines = [state for state in case.states if state not in waiting and _engine(state)]
    said = [_told(case, state) for state in waiting[:MOST]] + [_told_engine(state) for state in engines[:MOST]]
    asked = [(state, search) for state in _without(case, waiting) if (search := _search(state))]
    said += [f"{words.name(state)} {_asks(state, search)}" for state, search in asked[:MOST]]
    if not said:
        return found
    found = replace(found, sentence="; ".join([found.sentence, *said]))
    return _blamed(found, case, waiting[0]) if waiting else found


def _remembered(case: Case, state: State) -> State:
    """Of one that gave no answer this time, what it said before: its wait is not shorter by now."""
    before = case.before.get(state.facts.id)
    if state.facts.answers or state.facts.dead or before is None or not before.answers:
        return state
    known = replace(state.facts, environments=before.environments, engine=before.engine, searches=before.searches)
    return replace(state, facts=known)


def _blamed(found: Verdict, case: Case, state: State) -> Verdict:
    """The environment's own line is to blame, where nobody else is."""
    home = _home(case, state)
    place = _place(home)
    blamed = (state.facts.pid, home.facts.pid if home else 0)
    if not found.hang or not (found.culprit is None or found.culprit.pid in blamed):
        return found
    found = replace(found, decided=found.decided or case.decided(_age(state)))
    return found if home is None or place is None else replace(found, culprit=words.culprit(home, place))


def _without(case: Case, waiting: list[State]) -> Iterator[State]:
    """Processes whose searches are not told of as those of an environment."""
    homes = [_home(case, state) for state in waiting]
    return (state for state in case.states if state not in waiting and state not in homes)


def _oldest(state: State) -> EnvironmentWait | None:
    return next((each for each in state.facts.environments if each.seconds >= LONG_SECONDS), None)


def _age(state: State) -> float:
    return state.facts.environments[0].seconds


def _engine(state: State) -> EngineWait | None:
    wait = state.facts.engine
    return wait if wait is not None and wait.seconds >= LONG_SECONDS else None


def _search(state: State) -> Search | None:
    return next((each for each in state.facts.searches if each.seconds >= LONG_SECONDS), None)


def _told(case: Case, state: State) -> str:
    wait, count = state.facts.environments[0], len(state.facts.environments)
    home = _home(case, state)
    many = f" {count} environments, longest for" if count > 1 else ""
    pid = f" (pid {wait.pid})" if wait.pid else ""
    where = words.at_frame(_place(home))
    of = _label(wait.row, wait.sample, wait.turn)
    text = f"{words.name(state)} waits for{many} that of {of}: its {wait.what} has not returned"
    text = text if many else text.replace("for that of", "for the environment of")
    search = _search(home) if home is not None else None
    asks = f": it {_asks(home, search)}" if home is not None and search is not None else ""
    return f"{text} for {words.span(wait.seconds)}{pid}{where}{asks}; {_limit(wait)}"


def _told_engine(state: State) -> str:
    wait = state.facts.engine
    assert wait is not None
    turns = f"{wait.turns} turn{'s' * (wait.turns > 1)}"
    since = f"it has said {wait.done}, and none for {words.span(wait.seconds)}"
    of = _label(wait.row, wait.sample, wait.turn)
    return (
        f"{words.name(state)} waits for {turns} of {plain(wait.name)} (pid {wait.pid} on {wait.node_ip}), longest for "
        f"that of {of}: {since}; engine_timeout={wait.limit:g} s"
    )


def _asks(state: State, search: Search) -> str:
    """127.0.0.1 is another retriever on each node."""
    url, node = plain(search.url), state.facts.node_ip
    local = (urlsplit(url).hostname or "") in ("127.0.0.1", "localhost", "::1")
    where = f"of node {node}" if local else f", from node {node},"
    since = f"for {words.span(search.seconds)}"
    tried = f", at try {search.tries}" if search.tries > 1 else ""
    failed = f" after {search.failure}" if search.failure else ""
    answer = f"and has no answer {since}{tried}{failed}; retriever.timeout={search.limit:g} s"
    return f"asks the retriever at {url} {where} {answer}".replace(" , from", ", from")


def _label(row: str, sample: int, turn: int) -> str:
    return f"{plain(row)}{f', sample {sample}' if sample else ''}{f', turn {turn}' if turn else ''}"


def _limit(wait: EnvironmentWait) -> str:
    if not wait.pid and not wait.thread:
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
    """The innermost line of the environment's own code, behind what it called of the trainer's."""
    frames = home.facts.stack.stack if home is not None else ()
    own = (each for each in frames if not is_library(each.file) and _CLIENT not in each.file)
    found = next(own, None)
    return None if found is None or found.file.endswith(_OWN) else found
