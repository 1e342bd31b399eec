"""Loops that count up to something, come round, and get no further, though somebody is at work. Pure.

Such as `while len(kept) < wanted:` around a sampler whose groups are all dropped, or `while pos < len(text):` where
nothing moves `pos`. Whoever looks at the sampler alone sees work. Only a condition that compares numbers says what a
loop is for: `while not self.stopped` may well turn for ever.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from devkit.debug.inworker import expressions
from devkit.debug.stack_groups import Frame
from devkit.hang import chains, coming_back, lines, words
from devkit.hang.case import Case, Seen, Sighting
from devkit.hang.facts import CallWait, ProcessFacts, Sample
from devkit.hang.records import Verdict
from devkit.hang.standing import Line, Standing, Turn
from devkit.hang.states import State

TIMES = 2  # as long as for a wait: one turn may rightly bring nothing
SOON = 6.0  # seconds, in which a loop that turns fast is seen to come round
_MAY_BE_MEANT = "if further turns of that loop may help, this is no hang: devkit hang --after SECONDS looks for longer"
_WHILE = "while "
_EACH = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)
_ASKS = ("get", "wait")


def seen(known: Seen, before: Sample, now: Sample) -> Seen:
    """What two samples that follow each other add to what is `known`."""
    earlier = {each.id: each for each in before.processes}
    pairs = [(earlier[each.id], each) for each in now.processes if each.id in earlier]
    changed = known.changed | {(after.id, *loop) for then, after in pairs for loop in _changed(then, after)}
    return Seen(changed, _sightings(_sightings(known.turned, before), now))


def _sightings(known: tuple[Sighting, ...], now: Sample) -> tuple[Sighting, ...]:
    found = {_key(each.process, each.turn): each for each in known}
    for process in now.processes:
        for turn in process.turning:
            key = _key(process.id, turn)
            first = found[key].first if key in found else now.time
            found[key] = Sighting(process.id, turn, first, now.time)
    return tuple(found.values())


def _key(process: str, turn: Turn) -> tuple[str, str, str, str]:
    return process, turn.at.file, turn.loop, turn.whole


def _changed(then: ProcessFacts, now: ProcessFacts) -> set[tuple[str, str]]:
    """(file, loop) of those in which what they count is not what it was."""
    before, after = _counted(then), _counted(now)
    return {each for each in before.keys() & after.keys() if before[each] != after[each]}


def _counted(facts: ProcessFacts) -> dict[tuple[str, str], str]:
    standing = (line for stack in facts.standing for line in stack.lines if counts(line.loop))
    known = {(line.at.file, line.loop): line.whole for line in standing}
    return known | {(each.at.file, each.loop): each.whole for each in facts.turning if not each.states}


def _turned(case: Case, state: State) -> Iterator[tuple[lines.Loop, Frame]]:
    """Its loops that compute, and came round again and again with the same values."""
    for each in _in_vain(case):
        if each.process == state.facts.id and each.last - each.first >= case.patience:
            yield lines.Loop(each.turn.loop, each.turn.values, still=True), each.turn.at


def _in_vain(case: Case) -> Iterator[Sighting]:
    changed = case.seen.changed
    turned = (each for each in case.seen.turned if not each.turn.states)
    return (each for each in turned if (each.process, each.turn.at.file, each.turn.loop) not in changed)


def verdict(case: Case) -> Verdict | None:
    """None where a step or a collective has ended: that is progress, whatever else turns."""
    if any(state.advanced for state in case.states):
        return None
    found = next(((state, loop) for state in case.states for loop in _circles(case, state)), None)
    if found is None:
        return coming_back.verdict(case, TIMES)
    state, (loop, at) = found
    values = ", ".join(f"{name} = {value}" for name, value in loop.looked_at)
    others = [each for each in case.states if each is not state]
    busy = [each for each in others if each.moved or each.doing == "busy"]
    alike = len({each.works_at for each in busy}) == 1
    place = words.at(busy[0]) if len(busy) == 1 else words.at_frame(busy[0].works_at) if alike else ""
    though = f", though {words.they(busy, 'has', 'have')} been at work meanwhile{place}" if busy else ""
    awaited = chains.awaited(case)
    waiting = [each for each in others if awaited.get(each.facts.id, ("", ""))[1] == state.facts.id]
    though += f"; {words.they(waiting, 'waits', 'wait')} for {words.name(state)}" if waiting else ""
    text = (
        f"no progress: {words.name(state)} is in the loop `{loop.text}` ({values}){words.at_frame(at)}"
        f"{words.thread_in(state, at)}, which has come round, and nothing that it looks at has changed in "
        f"{words.span(case.seconds)}{though}"
    )
    evidence = (*words.waits(case.states, awaited), _MAY_BE_MEANT)
    return Verdict("livelock", text, words.culprit(state, at), None, evidence, case.decided(0.0, TIMES))


def may(case: Case) -> bool:
    """Whether a process works its way through such a loop, of which it is too early to say more."""
    if any(state.advanced for state in case.states):
        return False
    if coming_back.may(case, TIMES):
        return True
    lately = any(case.now.time - each.last < SOON for each in _in_vain(case))
    if lately and not case.decided(0.0, TIMES):
        return True
    return case.seconds < SOON and any(True for state in case.states for _ in _turning(case, state))


def _turning(case: Case, state: State) -> Iterator[tuple[Standing, Standing, lines.Loop, Line]]:
    """Its threads in such a loop, then and now, unless they wait for the same as before."""
    before = case.before.get(state.facts.id)
    if before is None or state.facts.dead:
        return
    earlier = {each.thread: each for each in before.standing}
    for stack in state.facts.standing:
        then, line = earlier.get(stack.thread), next((each for each in stack.lines if each.loop), None)
        loop = next(iter(lines.loops([stack], before.standing)), None)
        if then is None or line is None or loop is None or not (loop.still and loop.text == line.loop):
            continue
        if (state.facts.id, line.at.file, line.loop) in case.seen.changed:
            continue
        mine = (_waits(before, stack.thread), _waits(state.facts, stack.thread))
        asks = any(mine) or any(map(_asks_ray, (*then.lines, *stack.lines)))
        if asks and counts(loop.text) and not (all(mine) and mine[0] == mine[1]):
            yield then, stack, loop, line


def _waits(facts: ProcessFacts, thread: str) -> tuple[CallWait, ...]:
    return tuple(each for each in facts.waits if each.thread == thread)


def _circles(case: Case, state: State) -> Iterator[tuple[lines.Loop, Frame]]:
    """A loop that computes; or the innermost one around a line that asks Ray, if it counts, has come round, and counts
    the same.
    """
    yield from _turned(case, state)
    for then, stack, loop, line in _turning(case, state):
        if _asks_for_each(stack) or not _may_be_another_turn(then, line):
            continue
        if _waits_anew(case.before[state.facts.id], state.facts, stack.thread) or _is_there_again(then, stack, line):
            yield loop, line.at


def _may_be_another_turn(then: Standing, line: Line) -> bool:
    """Whether the function of the loop is no further down in it than before: what it calls may stand at one line for
    several things of one turn.
    """
    same = (each for each in then.lines if each.at.file == line.at.file and each.at.function == line.at.function)
    earlier = next(same, None)
    return earlier is None or line.at.line <= earlier.at.line


def _waits_anew(before: ProcessFacts, now: ProcessFacts, thread: str) -> bool:
    """It waits for other results at the same line, or at one further up in the same function."""
    earlier = {each.at.function: each for each in _waits(before, thread)}
    found = ((earlier.get(each.at.function), each) for each in _waits(now, thread))
    return any(then is not None and _has_come_round(then, each) for then, each in found)


def _has_come_round(then: CallWait, now: CallWait) -> bool:
    other = bool(then.tasks) and set(then.tasks).isdisjoint(now.tasks)
    return other and then.at.file == now.at.file and now.at.line <= then.at.line


def _is_there_again(then: Standing, now: Standing, line: Line) -> bool:
    """At one line that asks Ray, directly in the loop, with other values: seen while it was not waiting just then."""
    earlier = next((each for each in then.lines if each.at == line.at), None)
    inner = now.lines[: now.lines.index(line) + 1]
    return earlier is not None and earlier.values != line.values and any(map(_asks_ray, inner))


def _asks_ray(line: Line) -> bool:
    try:
        return any(map(_asks, ast.walk(ast.parse(line.text))))
    except (SyntaxError, ValueError):
        return False


def _asks_for_each(stack: Standing) -> bool:
    """`[ray.get(each) for each in refs]` comes to other results within one turn; so may what can't be read."""
    try:
        tree = ast.parse(stack.lines[0].text)
    except (SyntaxError, ValueError):
        return True
    parts = (node for each in ast.walk(tree) if isinstance(each, _EACH) for node in ast.walk(each))
    return any(map(_asks, parts)) or any(line.at.function.endswith(">") for line in stack.lines[:-1])


def _asks(node: ast.AST) -> bool:
    called = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _ASKS
    return called or isinstance(node, ast.Await)


def counts(loop: str) -> bool:
    """Whether it is a `while` that counts, as `expressions.counts` has it.

    >>> counts("while len(kept) < self.size"), counts("while self.running"), counts("for step in range(9)")
    (True, False, False)
    """
    if not loop.startswith(_WHILE):
        return False
    try:
        return expressions.counts(ast.parse(loop.removeprefix(_WHILE).rstrip(":"), mode="eval").body)
    except (SyntaxError, ValueError):
        return False


__all__ = ["counts", "may", "seen", "verdict"]
