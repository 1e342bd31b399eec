"""One cause out of many errors: the same one seen in many places is one, what only follows is set aside. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from devkit.debug.belated import AFTER
from devkit.debug.briefly import brief
from devkit.debug.inworker.identity import DRIVER
from devkit.debug.inworker.kills import fields
from devkit.debug.inworker.records import DIED
from devkit.debug.inworker.words import BY_SIGTERM, NO_WORD
from devkit.debug.stack_groups import Frame
from devkit.logs.events import BEST, SIGNALS, Event, Raised
from devkit.logs.follows import ACTOR_ENDED, CAUSE, EARLIER, FOLLOWS, MAYBE, Weight, weigh
from devkit.logs.native import natively
from devkit.logs.parse import own_frame

ALIKE = 500  # errors with one message: of more, not all are compared with each other
SAME, LATER, UNTIMED = "the same, elsewhere", "came later", "when is not known"  # of what is as weighty as the cause
SAME_HERE = "the same, in the same process"
AT_ITS_LINE = "at the same line of the same process, with another path or number"
AGAIN, WITHIN = "the same once more, as when Ray tries again", "what that was raised for"
CAUGHT = "which the program caught itself"
PLAINLY = (SAME, SAME_HERE, AT_ITS_LINE, LATER, UNTIMED, AGAIN, WITHIN, CAUGHT)  # and no consequence of the cause
_PATH = re.compile(r"""(['"])[^'"\n]{0,500}/[^'"\n]{0,500}\1""")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
TOGETHER = 2.0  # seconds: clocks of nodes differ, and nothing is said of which of two was first


@dataclass(frozen=True)
class Problem:
    """One error, in all places where it was seen."""

    events: tuple[Event, ...]  # the one that tells best comes first
    weight: Weight
    time: float | None

    @property
    def best(self) -> Event:
        return self.events[0]

    @property
    def at(self) -> Frame | None:
        return next((frame for event in self.events if (frame := own_frame(event.raised))), None)

    @property
    def role(self) -> str:
        return next((event.raised.who or event.role for event in self.events if event.raised.who or event.role), "")

    @property
    def process(self) -> tuple[str, int]:
        """The node's address and the pid, of the best sighting that knows the pid: not every table of Ray's has it."""
        return next((event.process for event in self.events if event.process[1]), self.best.process)

    @property
    def times(self) -> int:
        """How often it came, by its snapshots: one error may leave rows and lines in several tables and logs."""
        known = {event.id for event in self.events if event.id}
        own = {event.id for event in self.events if event.id and event.root not in known}
        passed_on = {event.id for event in self.events if event.role == DRIVER and event.root}
        return max(1, len(own - passed_on))

    @property
    def rank(self) -> int | None:
        known = (each.rank if each.rank is not None else each.raised.rank for each in self.events)
        return next((rank for rank in known if rank is not None), None)


@dataclass(frozen=True)
class Followed:
    """Errors of one kind that came from the cause."""

    said: str
    why: str
    count: int
    roles: tuple[str, ...]
    late: bool = False  # they came when the driver had failed already


@dataclass(frozen=True)
class FirstError:
    """The cause, errors that may be causes of their own, and what followed."""

    cause: Problem | None
    others: tuple[Problem, ...]
    followed: tuple[Followed, ...]
    sure: bool  # false: all that was found may be a consequence of something that left no trace
    logged: tuple[Problem, ...] = ()  # in logs of workers alone: the program has caught it, and may have got over it
    ended: Problem | None = None  # what the driver failed by, where that is none of the above


def first_error(events: Iterable[Event]) -> FirstError:
    """The earliest of what is most likely a cause."""
    problems = with_ends(merge(events))
    if not problems:
        return FirstError(None, (), (), True)
    least = min(problem.weight.level for problem in problems)
    candidates = _of_no_other([problem for problem in problems if problem.weight.level == least])
    cause = min([each for each in candidates if not is_logged_alone(each)] or candidates, key=_order)
    logged = () if is_logged_alone(cause) else tuple(filter(is_logged_alone, problems))
    # What is as weighty but clearly later may be its consequence, too; what is alike on another rank is no news.
    others = _without(candidates, cause, *logged)
    near = tuple(each for each in others if least == CAUSE and _is_near(cause, each))
    ended = driver_end(problems)
    # What followed in the very process, as the end of an actor whose `__init__` failed, goes back to the cause, too.
    known = ended is cause or any(ended is each for each in near) or (ended and ended.process == cause.process)
    # Nor is what surely follows from an error: another worker may have failed alike.
    known = known or (ended is not None and ended.weight.level == FOLLOWS)
    ended = None if known else ended
    rest = _without(problems, cause, ended, *near, *logged)
    sure = least == CAUSE or has_ended_itself(cause) or cause.weight.why == EARLIER  # it may be another run's
    return FirstError(cause, near, _followed(rest, cause, _end(problems)), sure, logged, ended)


def _of_no_other(problems: Sequence[Problem]) -> list[Problem]:
    """Without those that have one of the others as their root, whatever the clocks say."""
    known = {event.id: id(each) for each in problems for event in each.events if event.id}
    return [each for each in problems if known.get(each.best.root, id(each)) == id(each)] or list(problems)


def _without(problems: Sequence[Problem], *others: Problem | None) -> list[Problem]:
    """By who they are: to compare thousands with each other takes minutes."""
    known = {id(each) for each in others}
    return [each for each in problems if id(each) not in known]


def is_logged_alone(problem: Problem) -> bool:
    """Whether nothing but a worker's log has it: what leaves a task, an actor or a thread is told elsewhere, too."""
    in_logs = all(each.source == "log" and not each.is_native for each in problem.events)
    return in_logs and any(each.pid and each.role != DRIVER for each in problem.events)


def driver_end(problems: Sequence[Problem]) -> Problem | None:
    """What the last crash of a driver goes back to."""
    ends = [(event, each) for each in problems for event in each.events if event.id and event.kind == DRIVER]
    if not ends:
        return None
    event, own = max(ends, key=lambda one: one[0].time or 0.0)
    known = (each for each in problems if event.root and any(other.id == event.root for other in each.events))
    return next(known, own)


def _end(problems: Sequence[Problem]) -> Event | None:
    """The last crash of a driver; one that calls `sys.exit` may have caught that itself."""
    crashes = (event for each in problems for event in each.events if event.id and event.kind == DRIVER)
    return max((each for each in crashes if each.raised.type != "SystemExit"), key=_time_of, default=None)


def _time_of(event: Event) -> float:
    return event.time or 0.0


def _is_late(problem: Problem, end: Event | None) -> bool:
    """Whether a crash came after the driver's, on the clock of one machine."""
    best = problem.best
    if end is None or best.source != "crash" or best.kind in ("", DRIVER, "exit") or end in problem.events:
        return False
    is_one_clock = best.node_ip == end.node_ip != "" and problem.time is not None
    return is_one_clock and (problem.time or 0.0) - _time_of(end) >= AFTER


def has_ended_itself(problem: Problem) -> bool:
    """Whether the program left where a snapshot shows it, by `sys.exit` or `os._exit`."""
    raised = problem.best.raised
    is_asked = BY_SIGTERM in raised.message  # somebody else wanted it to
    return problem.best.source == "crash" and raised.type == "SystemExit" and not problem.best.root and not is_asked


def _order(problem: Problem) -> tuple[float, int, int]:
    time = problem.time if problem.time is not None else float("inf")
    return time, BEST.index(problem.best.source), problem.best.order


def _is_near(cause: Problem, other: Problem) -> bool:
    """Whether nobody can say which of the two was first."""
    if _is_within(other, cause):
        return False
    if cause.time is None or other.time is None:
        return other.best.raised.type != cause.best.raised.type and cause.time is None
    return other.time - cause.time <= TOGETHER and not _is_same(other, cause)


def _is_same(other: Problem, cause: Problem) -> bool:
    """Whether both say the same, at one line also with another path or number in it."""
    said, first = other.best.raised.said, cause.best.raised.said
    return said == first or (cause.at is not None and other.at == cause.at and _bare(said) == _bare(first))


def _bare(said: str) -> str:
    """
    >>> _bare("OSError: [Errno 24] Too many open files: '/tmp/a_1/rule_9.txt'")
    "OSError: [Errno #] Too many open files: '/'"
    """
    return _NUMBER.sub("#", _PATH.sub(r"\1/\1", said))


def merge(events: Iterable[Event]) -> list[Problem]:
    """Sightings of one error together: same process and exception, at the same line where both know it."""
    signals, others = natively(list(events))
    heads: dict[tuple[object, ...], list[Event]] = defaultdict(list)
    for event in others:
        heads[_identity(event)].append(event)
    groups = _join_nameless(heads)
    problems = [*map(_problem, groups), *map(_signal, signals)]
    return [_of_its_own(each, problems) for each in problems]


def _of_its_own(problem: Problem, problems: Sequence[Problem]) -> Problem:
    """Who calls `os._exit` may do so for an error before it; where its process had none, that call is the cause.

    A driver may have been told of an error elsewhere, and have caught it, before it calls `sys.exit`.
    """
    if not has_ended_itself(problem) or problem.weight.level != MAYBE or problem.time is None:
        return problem
    if _is_outlived(problem, problems):
        return replace(problem, weight=Weight(FOLLOWS, CAUGHT))
    earlier = (
        each
        for each in problems
        if each is not problem
        and (each.time or 0.0) <= problem.time
        and (each.process == problem.process or (problem.role == DRIVER and each.weight.level == CAUSE))
    )
    return problem if any(earlier) else replace(problem, weight=Weight(CAUSE))


def _is_outlived(problem: Problem, problems: Sequence[Problem]) -> bool:
    """Whether a driver called `sys.exit`, as a parser of arguments does, and went on to another crash."""
    if problem.best.kind != DRIVER or problem.best.raised.message.startswith("os._exit"):
        return False
    crashes = (event for each in problems if each is not problem for event in each.events if event.kind == DRIVER)
    return any(event.process == problem.process and (event.time or 0.0) > (problem.time or 0.0) for event in crashes)


def _identity(event: Event) -> tuple[object, ...]:
    raised = event.raised
    frame = own_frame(raised)
    line = (frame.file.rpartition("/")[2], frame.line) if frame else None
    first = raised.message.strip().splitlines()[0][:200] if raised.message.strip() else ""
    return (event.process[1], raised.type.rpartition(".")[2], first, line)


def _join_nameless(heads: Mapping[tuple[object, ...], list[Event]]) -> list[list[Event]]:
    """What a driver's log says without a process, or without a line, is what a process said itself."""
    groups: list[list[Event]] = []
    alike: dict[tuple[object, ...], list[tuple[tuple[object, ...], list[Event]]]] = defaultdict(list)
    for key, events in sorted(heads.items(), key=lambda item: (item[0][3] is None, not item[0][0])):
        pid, _, _, line = key
        is_echo = len(alike[key[1:3]]) > 0 and _is_echo(events)
        for known, group in islice(alike[key[1:3]], ALIKE):
            if (line in (None, known[3]) and (pid in (0, known[0]) or is_echo)) or (line == known[3] and is_echo):
                group.extend(events)
                break
        else:
            groups.append(list(events))
            alike[key[1:3]].append((key, groups[-1]))
    return groups


def _is_echo(events: Sequence[Event]) -> bool:
    """Whether they come from a driver's log or Ray's word on a job, which repeat what happened elsewhere."""
    return all(event.source == "job" or (event.source == "log" and event.role == "driver") for event in events)


def _problem(group: Sequence[Event]) -> Problem:
    ordered = tuple(sorted(group, key=lambda event: (BEST.index(event.source), event.time or float("inf"))))
    times = [event.time for event in ordered if event.time is not None]
    return Problem(ordered, _weight(ordered), min(times, default=None))


def _signal(group: Sequence[Event]) -> Problem:
    times = [event.time for event in group if event.time is not None]
    return Problem(tuple(group), weigh(group[0]), min(times, default=None))


def with_ends(problems: Sequence[Problem]) -> list[Problem]:
    """Of a process that Ray knows to be dead and no more, what others know of its end."""
    ends = {each.process[1]: each.best.raised for each in problems if _is_known_end(each)}
    return [_with_end(each, ends) for each in problems] if ends else list(problems)


def _is_known_end(problem: Problem) -> bool:
    best = problem.best
    if best.source == "crash" and best.kind == "exit":
        return best.raised.type != DIED or NO_WORD not in best.raised.message
    return best.raised.type in SIGNALS


def _with_end(problem: Problem, ends: Mapping[int, Raised]) -> Problem:
    raised = problem.best.raised
    words = brief(raised.type, raised.message)
    if NO_WORD not in words.message:
        return problem
    pid = int(fields(raised.message).get("pid") or 0)
    end = ends.get(pid) or (next(iter(ends.values())) if len(ends) == 1 and not pid else None)
    if end is None:
        return problem
    known = end.said.removeprefix(f"{DIED}: the process died: ")
    told = replace(raised, type=words.type, message=words.message.replace(NO_WORD, known))
    return replace(problem, events=(replace(problem.best, raised=told), *problem.events[1:]))


def _weight(events: Sequence[Event]) -> Weight:
    """A consequence for one sighting is one for all: they are the same error. So is what the program raised itself.

    A crash that followed from another sighting of the same error is only that error on its way out.
    """
    known = {event.id for event in events if event.id}
    first = [event for event in events if event.root not in known] or events
    own = next((event for event in first if event.raised.own and not event.root), None)
    return weigh(own) if own else max(map(weigh, first), key=lambda weight: weight.level)


def _followed(problems: Sequence[Problem], cause: Problem, end: Event | None) -> tuple[Followed, ...]:
    """Equal ones in one line, the commonest first; those at the cause's own line by the first of them."""
    kinds: dict[tuple[str, str, bool], list[Problem]] = defaultdict(list)
    for problem in sorted(problems, key=lambda each: each.time or 0.0):
        why, late = _why(problem, cause), _is_late(problem, end)
        kinds["" if why == AT_ITS_LINE else _as_raised(problem), why, late].append(problem)
    found = [
        Followed(
            said or _as_raised(group[0]),
            why,
            sum(each.times for each in group),
            tuple(sorted({name for each in group if (name := called(each))})),
            late,
        )
        for (said, why, late), group in kinds.items()
    ]
    return tuple(sorted(found, key=lambda each: (-each.count, each.said)))


def _as_raised(problem: Problem) -> str:
    """Of whoever got Ray's word for an actor that failed: that word, and behind it what the actor failed by."""
    said = problem.best.raised.said
    got = next((name for name in ACTOR_ENDED if any(name in event.text for event in problem.events)), "")
    return f"{got}: {said}" if got and problem.weight.level == FOLLOWS and not said.startswith(got) else said


def _why(problem: Problem, cause: Problem) -> str:
    """What it follows from, or how it is to the cause."""
    said, first = problem.best.raised.said, cause.best.raised.said
    own = {event.id for event in problem.events}
    if (
        any(event.root and event.root not in own for event in problem.events)
        and said == first
        and _is_retried(problem, cause)
    ):
        return AGAIN
    if problem.weight.why:
        return problem.weight.why
    if _is_within(problem, cause):
        return WITHIN
    if _is_same(problem, cause):
        is_here = problem.process == cause.process and problem.process[1] != 0
        return (SAME_HERE if said == first else AT_ITS_LINE) if is_here else SAME
    return LATER if problem.time is not None and cause.time is not None else UNTIMED


def _is_retried(problem: Problem, cause: Problem) -> bool:
    """Whether it may be the same call in another process of the same actor or task."""
    return problem.role == cause.role != DRIVER and problem.process != cause.process


def _is_within(problem: Problem, cause: Problem) -> bool:
    """Whether the cause is Ray's own error, which it has put around this one."""
    return cause.best.raised.said.endswith(f": {problem.best.raised.said}")


def called(problem: Problem) -> str:
    """Who it is, in a word: `Rank.train rank 1`."""
    rank = "" if problem.rank is None else f" rank {problem.rank}"
    return f"{problem.role}{rank}".strip()
